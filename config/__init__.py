"""Settings, URLs, ASGI, the Celery app, the supervisor and the embedded servers.

Every process begins here. What it loads until Django is set up stays until it ends, and looking for garbage among it
takes a tenth of the start: `config.apps` turns the collector on again, with all of that left out of its rounds.
"""

import gc

gc.disable()

"""The ASGI application that web processes serve."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ.setdefault("DATABASE_POOL_SIZE", "20")  # threads come and go with requests; their connections are pooled

application = get_asgi_application()

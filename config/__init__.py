"""Settings, URLs, ASGI, the Celery app, the supervisor and the embedded servers."""

from django.apps import AppConfig


class StreamingConfig(AppConfig):
    name = "streaming"
    label = "capstan_streaming"
    verbose_name = "Streams"
    default_auto_field = "django.db.models.BigAutoField"

from django.apps import AppConfig


class ContextConfig(AppConfig):
    name = "context"
    label = "capstan_context"
    default_auto_field = "django.db.models.BigAutoField"

from django.apps import AppConfig


class ObservabilityConfig(AppConfig):
    name = "observability"
    label = "capstan_observability"
    default_auto_field = "django.db.models.BigAutoField"

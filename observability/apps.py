from django.apps import AppConfig


class ObservabilityConfig(AppConfig):
    name = "observability"
    label = "capstan_observability"
    verbose_name = "Model calls"
    default_auto_field = "django.db.models.BigAutoField"

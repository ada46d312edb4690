from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class ContextConfig(AppConfig):
    name = "context"
    label = "capstan_context"
    verbose_name = "Context"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        autodiscover_modules("agent_snapshot")

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "config"
    label = "capstan_config"
    verbose_name = "Configuration"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from config import celery, checks  # noqa: F401  the tasks' current app; the system checks

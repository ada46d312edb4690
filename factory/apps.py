from django.apps import AppConfig


class FactoryConfig(AppConfig):
    name = "factory"
    label = "capstan_factory"
    verbose_name = "Agents"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from factory import checks  # noqa: F401  # registers

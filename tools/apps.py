from django.apps import AppConfig


class ToolsConfig(AppConfig):
    name = "tools"
    label = "capstan_tools"
    verbose_name = "Tools"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from tools import connections, registry

        connections.install()
        registry.discover()

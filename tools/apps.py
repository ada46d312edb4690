from django.apps import AppConfig


class ToolsConfig(AppConfig):
    name = "tools"
    label = "capstan_tools"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from tools import connections, registry

        connections.install()
        registry.discover()

from django.apps import AppConfig


class WorkerConfig(AppConfig):
    name = "worker"
    label = "capstan_worker"
    verbose_name = "Workers"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from worker import broker
        from worker import checks as _system_checks  # noqa: F401

        broker.install()

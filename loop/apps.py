from django.apps import AppConfig


class LoopConfig(AppConfig):
    name = "loop"
    label = "capstan_loop"
    verbose_name = "Turns"
    default_auto_field = "django.db.models.BigAutoField"

from django.apps import AppConfig


class PlanConfig(AppConfig):
    name = "plan"
    label = "capstan_plan"
    verbose_name = "Plans"
    default_auto_field = "django.db.models.BigAutoField"

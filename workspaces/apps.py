from django.apps import AppConfig


class WorkspacesConfig(AppConfig):
    name = "workspaces"
    label = "capstan_workspaces"
    verbose_name = "Workspaces and people"
    default_auto_field = "django.db.models.BigAutoField"

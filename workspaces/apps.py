from django.apps import AppConfig


class WorkspacesConfig(AppConfig):
    name = "workspaces"
    label = "capstan_workspaces"
    default_auto_field = "django.db.models.BigAutoField"

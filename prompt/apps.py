from django.apps import AppConfig


class PromptConfig(AppConfig):
    name = "prompt"
    label = "capstan_prompt"
    default_auto_field = "django.db.models.BigAutoField"

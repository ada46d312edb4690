from django.apps import AppConfig


class PromptConfig(AppConfig):
    name = "prompt"
    label = "capstan_prompt"
    verbose_name = "Recipes"
    default_auto_field = "django.db.models.BigAutoField"

from django.apps import AppConfig


class LlmConfig(AppConfig):
    name = "llm"
    label = "capstan_llm"
    verbose_name = "Models"
    default_auto_field = "django.db.models.BigAutoField"

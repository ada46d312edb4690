from django.apps import AppConfig


class ChatConfig(AppConfig):
    name = "chat"
    label = "capstan_chat"
    verbose_name = "Conversations"
    default_auto_field = "django.db.models.BigAutoField"

from django.apps import AppConfig


class ChatConfig(AppConfig):
    name = "chat"
    label = "capstan_chat"
    default_auto_field = "django.db.models.BigAutoField"

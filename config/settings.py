"""Django's settings, read from the environment; `.env` fills what the process does not set (design § 9)."""

from __future__ import annotations

import os
from pathlib import Path

import dj_database_url
import django_stubs_ext
from dotenv import load_dotenv

django_stubs_ext.monkeypatch()  # lets generic Django classes be subscripted at run time

BASE_DIR = Path(__file__).resolve().parent.parent
load_dotenv(BASE_DIR / ".env")

STATE_DIR = Path(os.environ.get("CAPSTAN_STATE_DIR", BASE_DIR / "var"))
DEBUG = os.environ.get("DEBUG", "false").lower() in {"1", "true", "yes"}
SECRET_KEY = os.environ.get("SECRET_KEY", "")
ALLOWED_HOSTS = [h for h in os.environ.get("ALLOWED_HOSTS", "127.0.0.1,localhost").split(",") if h]

DOMAIN_APPS = [a for a in os.environ.get("CAPSTAN_DOMAIN_APPS", "catalog").split(",") if a]
ROOMS = ["workspaces", "observability", "events", "streaming", "llm", "prompt", "context", "tools", "plan", "loop", "factory", "chat", "worker"]

INSTALLED_APPS = [
    *[f"{room}.apps.{room.capitalize()}Config" for room in [*ROOMS, *DOMAIN_APPS]],
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
]
AUTH_USER_MODEL = "capstan_workspaces.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": dj_database_url.parse(os.environ.get("DATABASE_URL", "postgres:///capstan"))}
DATABASES["default"]["OPTIONS"] = {
    **DATABASES["default"].get("OPTIONS", {}),
    "pool": {"min_size": 1, "max_size": 20, "timeout": 10},
    "prepare_threshold": 5,
}
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
STATIC_URL = "static/"
STATIC_ROOT = STATE_DIR / "static"
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"

CAPSTAN_LEASE_SECONDS = float(os.environ.get("CAPSTAN_LEASE_SECONDS", "30"))
TURN_SYNC_SECONDS = float(os.environ.get("TURN_SYNC_SECONDS", "25"))
CORRELATION_ID_HEADER = os.environ.get("CORRELATION_ID_HEADER", "X-Correlation-ID")

# Dotted paths that fill the lower rooms' ports (design § 3 "Reaching up").
CAPSTAN_PORTS = {
    "Dispatcher": "worker.dispatch.CeleryDispatcher",
    "RunOwner": {"turn": "chat.runs.TurnOwner", "step": "plan.runs.StepOwner"},
}

"""Django's settings, read from the environment; `.env` fills what the process does not set (design § 9)."""

from __future__ import annotations

import os
from pathlib import Path

import django_stubs_ext
from dotenv import load_dotenv

from config.celery_settings import celery_settings
from config.databases import database_settings
from config.embedded import servers_of
from config.environment import Environment
from config.logs import logging_settings
from config.state import Servers, StateFolder
from config.tool_settings import approvals_from, limits_from, tools_from

django_stubs_ext.monkeypatch()  # lets generic Django classes be subscripted at run time

BASE_DIR = Path(__file__).resolve().parent.parent
# CAPSTAN_ENV_FILE names another file; set and empty it means none.
ENV_FILE = BASE_DIR / os.environ.get("CAPSTAN_ENV_FILE", ".env") if os.environ.get("CAPSTAN_ENV_FILE") != "" else None
if ENV_FILE is not None:
    load_dotenv(ENV_FILE, override=False)  # the process's variables win
env = Environment(os.environ)

DEBUG = env.flag("DEBUG", default=False)
SECRET_KEY = env.required(
    "SECRET_KEY", hint="`make run` writes a generated one into .env; or set 50 random characters."
)
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS", "127.0.0.1,localhost")
PORT = env.integer("PORT", default=8000, minimum=1, maximum=65_535)

STATE_DIR = (BASE_DIR / env.text("CAPSTAN_STATE_DIR", "var")).resolve()
STATE = StateFolder(STATE_DIR)
GIVEN_SERVERS = Servers(database_url=env.text("DATABASE_URL"), redis_url=env.text("REDIS_URL"))
_running = STATE.running_servers() or servers_of(STATE)  # those that run there, else those that `up` is to start

DOMAIN_APPS = env.words("CAPSTAN_DOMAIN_APPS", "catalog")
ROOMS = [
    "workspaces",
    "observability",
    "events",
    "streaming",
    "llm",
    "prompt",
    "context",
    "tools",
    "plan",
    "loop",
    "factory",
    "chat",
    "worker",
    "config",
]

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
    "drf_spectacular_sidecar",
]
AUTH_USER_MODEL = "capstan_workspaces.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

MIDDLEWARE = [
    "observability.middleware.CorrelationMiddleware",
    "config.health.HealthMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "chat.pages.NothingHere",
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

DATABASES = {
    "default": database_settings(
        GIVEN_SERVERS.database_url or _running.database_url,
        # 0: a connection a thread, closed after each request or task; processes with many threads set it
        pool_size=env.integer("DATABASE_POOL_SIZE", default=0, minimum=0, maximum=1_000),
        idle_in_transaction_s=max(10.0, env.number("CAPSTAN_LEASE_SECONDS", default=30, minimum=1, maximum=3_600)),
    )
}
REDIS_URL = GIVEN_SERVERS.redis_url or _running.redis_url

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
LOGGING = logging_settings(debug=DEBUG)

# With DEBUG the static files are found in the apps; without it `collectstatic` gathers them for whitenoise.
STATIC_URL = "static/"
STATIC_ROOT = None if DEBUG else STATE_DIR / "static"
WHITENOISE_USE_FINDERS = DEBUG
WHITENOISE_AUTOREFRESH = DEBUG
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

# Behind TLS (DEBUG off): cookies travel encrypted only. uvicorn takes the scheme from a proxy it trusts.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not DEBUG
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.SessionAuthentication",
        "rest_framework.authentication.TokenAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
SPECTACULAR_SETTINGS = {"TITLE": "Capstan", "VERSION": "0.1.0", "SERVE_INCLUDE_SCHEMA": False}

CAPSTAN_LEASE_SECONDS = env.number("CAPSTAN_LEASE_SECONDS", default=30, minimum=1, maximum=3_600)
TURN_SYNC_SECONDS = env.number("TURN_SYNC_SECONDS", default=25, minimum=0, maximum=3_600)
STREAM_PING_SECONDS = env.number("STREAM_PING_SECONDS", default=15, minimum=0.1, maximum=300)
CORRELATION_ID_HEADER = env.text("CORRELATION_ID_HEADER", "X-Correlation-ID")

globals().update(
    celery_settings(
        broker_url=env.text("CELERY_BROKER_URL") or REDIS_URL,
        result_backend=env.text("CELERY_RESULT_BACKEND") or REDIS_URL,
        lease_s=CAPSTAN_LEASE_SECONDS,
    )
)

CAPSTAN_TOOLS = tools_from(env)
CAPSTAN_APPROVALS = approvals_from(env)
CAPSTAN_LIMITS = limits_from(env)

# What every member of a workspace may do there; all other writes take a group or a permission of the user's own.
CAPSTAN_MEMBER_PERMISSIONS = ("capstan_plan.add_executionplan",)

# Dotted paths that fill the lower rooms' ports (design § 3 "Reaching up").
CAPSTAN_PORTS = {
    "Dispatcher": "worker.dispatch.CeleryDispatcher",
    "RunOwner": {"turn": "chat.runs.TurnOwner", "step": "plan.runs.StepOwner", "call": "tools.doors.CallOwner"},
}

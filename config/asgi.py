"""The ASGI application that web processes serve: event streams first, Django behind them."""

import os
from typing import cast

from django.core.asgi import get_asgi_application
from django.core.management.base import BaseCommand

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ.setdefault("DATABASE_POOL_SIZE", "20")  # threads come and go with requests; their connections are pooled

django_application = get_asgi_application()
BaseCommand().check()  # a missing key stops this process too

from chat.streams import stream_gate  # noqa: E402  after the apps are loaded
from config.mcp import McpMount  # noqa: E402
from config.stopping import StopsEarly  # noqa: E402
from streaming.sse import ASGIApp, StreamApp  # noqa: E402
from tools import heartbeat  # noqa: E402

streams = StreamApp(cast("ASGIApp", django_application), gate=stream_gate)
application = StopsEarly(McpMount(streams), streams.stop, heartbeat.shut_down)

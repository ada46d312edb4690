"""The ASGI application that web processes serve: event streams first, Django behind them."""

import os
from typing import cast

from django.core.asgi import get_asgi_application
from django.core.management.base import BaseCommand

from config import collector

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ.setdefault("DATABASE_POOL_SIZE", "20")  # threads come and go with requests; their connections are pooled

with collector.paused():
    django_application = get_asgi_application()
    BaseCommand().check()  # a missing key stops this process too

    # after the apps are loaded
    from chat.streams import stream_gate
    from config.mcp import McpMount
    from config.stopping import StopsEarly
    from streaming.sse import ASGIApp, StreamApp
    from tools import heartbeat

streams = StreamApp(cast("ASGIApp", django_application), gate=stream_gate)
application = StopsEarly(McpMount(streams), streams.stop, heartbeat.shut_down)

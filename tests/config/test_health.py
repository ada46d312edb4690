"""The probes of a real web process whose parts are missing one by one."""

import json
import time
import urllib.error
import urllib.request

import pytest

from llm.testing.loopback import OpenAILoopback
from tests.support.processes import Processes
from tests.support.redis import mute_redis

NOWHERE = "postgres://capstan@%2Fnowhere/capstan"


def ready(base: str) -> tuple[int, dict[str, dict[str, str]]]:
    try:
        with urllib.request.urlopen(f"{base}/health/ready", timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


@pytest.mark.parametrize(
    ("missing", "status", "word", "down"),
    [
        (
            {"REDIS_URL": "unix:///nowhere/valkey.sock?db=0", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
            200,
            "degraded",
            ["broker", "llm"],
        ),
        ({"DATABASE_URL": NOWHERE}, 503, "down", ["database"]),
    ],
    ids=["no broker and no model", "no database"],
)
def test_only_the_database_down_is_503_and_a_probe_needs_no_allowed_host(
    processes: Processes, missing: dict[str, str], status: int, word: str, down: list[str]
):
    with OpenAILoopback() as model:
        environment = {**model.environment(), "ALLOWED_HOSTS": "capstan.example", **missing}
        _, base = processes.web(environment=environment)
        code, body = ready(base)
        parts = ("database", "broker", "llm")
        assert (code, body["status"], [p for p in parts if body[p]["status"] == "down"]) == (status, word, down)
        with urllib.request.urlopen(f"{base}/health/live", timeout=10) as answer:
            assert answer.status == 200


def test_a_broker_that_takes_connections_and_says_nothing_is_down_within_seconds(processes: Processes):
    with OpenAILoopback() as model, mute_redis() as url:
        _, base = processes.web(environment={**model.environment(), "REDIS_URL": url})
        began = time.monotonic()
        code, body = ready(base)
    assert (code, body["broker"]["status"], body["database"]["status"]) == (200, "down", "ok")
    assert time.monotonic() - began < 6


def test_a_missing_key_stops_a_web_process_and_is_named(processes: Processes):
    with OpenAILoopback() as model:
        keyless = {**model.environment(), "OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
        web = processes.start("web", ("-m", "uvicorn", "config.asgi:application", "--port", "0"), keyless)
        assert web.wait(30) != 0
    assert "OPENAI_API_KEY is not set" in web.output

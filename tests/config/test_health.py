"""The probes of a real web process whose parts are missing one by one."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from llm.testing.loopback import OpenAILoopback
from tests.support.processes import Processes

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
        ({}, 200, "ok", []),
        ({"REDIS_URL": "unix:///nowhere/valkey.sock?db=0"}, 200, "degraded", ["broker"]),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, 200, "degraded", ["llm"]),
        ({"DATABASE_URL": NOWHERE}, 503, "down", ["database"]),
    ],
    ids=["all there", "no broker", "no model", "no database"],
)
def test_only_the_database_down_is_503(
    processes: Processes, missing: dict[str, str], status: int, word: str, down: list[str]
):
    with OpenAILoopback() as model:
        _, base = processes.web(environment={**model.environment(), **missing})
        code, body = ready(base)
        parts = ("database", "broker", "llm")
        assert (code, body["status"], [p for p in parts if body[p]["status"] == "down"]) == (status, word, down)
        with urllib.request.urlopen(f"{base}/health/live", timeout=10) as answer:
            assert answer.status == 200


def test_a_missing_key_stops_a_web_process_and_is_named(processes: Processes):
    with OpenAILoopback() as model:
        keyless = {**model.environment(), "OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
        web = processes.start("web", ("-m", "uvicorn", "config.asgi:application", "--port", "0"), keyless)
        assert web.wait(30) != 0
    assert "OPENAI_API_KEY: " in web.output


def test_a_probe_needs_no_allowed_host(processes: Processes):
    _, base = processes.web(environment={"ALLOWED_HOSTS": "capstan.example"})
    with urllib.request.urlopen(f"{base}/health/live", timeout=10) as answer:
        assert answer.status == 200


def test_a_worker_that_was_killed_leaves_nothing(processes: Processes):
    worker = processes.worker("suspect", pool="solo", concurrency=1)
    worker.kill()
    assert worker.process.returncode == -9
    assert not Path(f"/proc/{worker.pid}").exists()

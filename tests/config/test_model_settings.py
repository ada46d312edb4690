"""What a start says when the model is not configured, or does not answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.config import up
from tests.config.test_up import manage

NO_MODEL = {"LLM_PROVIDER": "openai", "OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}
MISSING = ("OPENAI_API_KEY", "LLM_TIER_PLANNING", "LLM_TIER_EXECUTION", "LLM_TIER_FIELD")


@pytest.mark.parametrize("command", ["check", "check_llm", "up"])
def test_all_missing_variables_are_named_at_once(tmp_path: Path, command: str):
    done = manage(command, environment=up.environment(tmp_path / "state", **NO_MODEL))
    assert done.returncode != 0
    for name in MISSING:
        assert f"{name} is not set" in done.stderr
    assert "does not fit" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_variable_that_is_set_wrongly_does_not_fit(tmp_path: Path):
    wrong = NO_MODEL | {"OPENAI_BASE_URL": "localhost:1/v1", "LLM_TIMEOUT_SECONDS": "soon"}
    tiers = dict.fromkeys(MISSING[1:], "m")
    done = manage("check", environment=up.environment(tmp_path / "state", **wrong, **tiers))
    assert "OPENAI_BASE_URL does not fit" in done.stderr
    done = manage(
        "check", environment=up.environment(tmp_path / "state", **wrong | {"OPENAI_BASE_URL": "http://h"}, **tiers)
    )
    assert "LLM_TIMEOUT_SECONDS does not fit" in done.stderr


@pytest.mark.parametrize(
    ("provider", "variable", "other"),
    [("openai", "OPENAI_BASE_URL", "OLLAMA_HOST"), ("ollama", "OLLAMA_HOST", "OPENAI")],
)
def test_a_model_that_does_not_answer_is_named_by_its_address(tmp_path: Path, provider: str, variable: str, other: str):
    url = f"http://127.0.0.1:{up.free_port()}"
    chosen = {"LLM_PROVIDER": provider, variable: url, **dict.fromkeys(MISSING[1:], "m")}
    done = manage("check_llm", environment=up.environment(tmp_path / "state", **chosen))
    assert done.returncode == 2
    assert re.search(rf"does not answer at {re.escape(url)} .*llm.connection.*{variable} sets the address", done.stderr)
    assert other not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_command_logs_from_warnings_on_and_more_when_asked(tmp_path: Path):
    code = "import logging; log = logging.getLogger('capstan'); log.info('an info'); log.warning('a warning')"
    environment = up.environment(tmp_path / "state")
    quiet = manage("shell", "--no-imports", "-c", code, environment=environment)
    assert "a warning" in quiet.stderr
    assert "an info" not in quiet.stderr
    full = manage("shell", "--no-imports", "-c", code, "--verbosity=2", environment=environment)
    assert "an info" in full.stderr

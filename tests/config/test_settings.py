"""Settings that other processes depend on."""

import logging
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.checks import run_checks

from config.celery_settings import celery_settings, kombu_url
from config.databases import database_settings
from config.envfile import write_first
from config.logs import OneLineFormatter
from workspaces.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("ours", "kombu"),
    [
        ("unix:///tmp/c/valkey.sock?db=3", "redis+socket:///tmp/c/valkey.sock?virtual_host=3"),
        ("unix:///tmp/valkey.sock", "redis+socket:///tmp/valkey.sock?virtual_host=0"),
        ("unix://user:secret@/tmp/valkey.sock?db=1", "redis+socket://user:secret@/tmp/valkey.sock?virtual_host=1"),
        ("redis://host:6379/2", "redis://host:6379/2"),
        ("amqp://guest@host//", "amqp://guest@host//"),
    ],
)
def test_a_socket_url_reads_for_kombu_as_for_redis(ours: str, kombu: str):
    assert kombu_url(ours) == kombu


def test_the_sweep_comes_every_sixth_of_a_lease_and_dies_in_time():
    settings = celery_settings(broker_url="redis://h/0", result_backend="redis://h/0", lease_s=3)
    assert settings["CELERY_BEAT_SCHEDULE"]["sweep"] == {
        "task": "worker.sweep",
        "schedule": 0.5,
        "options": {"queue": "sweep", "expires": 600.5},
    }


def test_another_broker_gets_no_redis_options():
    settings = celery_settings(broker_url="amqp://h//", result_backend="redis://h/0", lease_s=30)
    assert settings["CELERY_BROKER_TRANSPORT_OPTIONS"] == {}


@pytest.mark.parametrize("url", ["mysql://a@b/c", "nonsense", "postgres://host", "sqlite:///x"])
def test_a_url_that_is_no_postgresql_is_refused(url: str):
    with pytest.raises(ConfigurationError) as refused:
        database_settings(url, pool_size=0)
    assert refused.value.details["setting"] == "DATABASE_URL"


@pytest.mark.parametrize("url", ["postgres://u@%2Ftmp%2FXy/n", "postgres://u@/n?host=/tmp/Xy"])
def test_a_socket_folder_is_the_host(url: str):
    database = database_settings(url, pool_size=4)
    assert (database["HOST"], database["NAME"], database["USER"]) == ("/tmp/Xy", "n", "u")
    assert database["OPTIONS"]["pool"]["max_size"] == 4
    assert database["CONN_HEALTH_CHECKS"] is True


def test_atomic_requests_is_a_check_error(settings, monkeypatch: pytest.MonkeyPatch):
    assert run_checks(tags=["capstan"]) == []
    monkeypatch.setitem(settings.DATABASES["default"], "ATOMIC_REQUESTS", True)
    assert "capstan_config.E001" in {message.id for message in run_checks(tags=["capstan"])}


def test_an_env_file_that_others_read_is_named(settings, tmp_path: Path):
    settings.ENV_FILE = tmp_path / ".env"
    settings.ENV_FILE.write_text("SECRET_KEY=x\n")
    settings.ENV_FILE.chmod(0o644)
    found = [message for message in run_checks(tags=["security"]) if message.id == "capstan_config.W001"]
    assert [message.hint for message in found] == [f"chmod 600 {settings.ENV_FILE}"]
    settings.ENV_FILE.chmod(0o600)
    assert not [message for message in run_checks(tags=["security"]) if message.id == "capstan_config.W001"]


def test_the_first_env_file_is_private_has_a_key_of_its_own_and_is_never_overwritten(tmp_path: Path):
    first, second = tmp_path / "a", tmp_path / "b"
    assert write_first(example=ROOT / ".env.example", target=first)
    assert write_first(example=ROOT / ".env.example", target=second)
    lines = [line for path in (first, second) for line in path.read_text().splitlines()]
    keys = [line for line in lines if line.startswith("SECRET_KEY=")]
    assert len(set(keys)) == 2
    assert min(map(len, keys)) >= len("SECRET_KEY=") + 50
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    kept = first.read_text()
    assert not write_first(example=ROOT / ".env.example", target=first)
    assert first.read_text() == kept


def test_a_message_cannot_forge_a_second_record():
    record = logging.LogRecord("chat", logging.INFO, __file__, 1, "typed %s", ("a\n2026 ERROR forged",), None)
    record.correlation_id = "c0ffee"
    line = OneLineFormatter().format(record)
    assert "\n" not in line
    assert line.endswith(r"INFO chat [c0ffee] typed a\n2026 ERROR forged")


def test_the_lock_names_no_host():
    for name in ("base", "dev"):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        assert "://" not in text
        assert "--index" not in text
        pinned = [line for line in text.splitlines() if "==" in line]
        assert pinned
        assert all(line.endswith("\\") for line in pinned)  # its hashes follow


def collector_after(code: str) -> tuple[bool, int]:
    """Whether garbage is collected in a process that ran this, and how many objects are left out of it."""
    asked = f"{code}\nimport gc; print(gc.isenabled(), gc.get_freeze_count())"
    said = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True, cwd=ROOT)
    collects, left_out = said.stdout.splitlines()[-1].split()
    return collects == "True", int(left_out)


def test_whoever_imports_our_settings_keeps_the_collector_as_it_is():
    assert collector_after("import config, django; django.setup()") == (True, 0)


@pytest.mark.parametrize(
    "entry",
    [
        "import config.asgi",
        "from config.celery import app; app.loader.import_default_modules()",
        "from config.commandline import main; main(['manage.py', 'version'])",
    ],
    ids=["web", "celery", "command"],
)
def test_what_a_process_of_ours_loads_at_its_start_is_left_out_of_the_collectors_rounds(entry):
    collects, left_out = collector_after(entry)
    assert collects
    assert left_out > 10_000

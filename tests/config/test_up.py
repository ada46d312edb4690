"""`make run`'s one command, as real processes. Limits of the design are asserted with three times their room."""

from __future__ import annotations

import http.cookiejar
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.conf import settings

from config.state import StateFolder
from tests.config import up
from tests.support.processes import Running
from tests.support.waiting import wait_until

STOP_S = 3 * 5.0


@pytest.fixture(scope="module")
def state() -> Path:
    return up.fresh_state()


@pytest.fixture(scope="module")
def stack(state: Path) -> Iterator[tuple[Running, int]]:
    with up.running(state) as started:
        yield started


def get(port: int, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def manage(*argv: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *argv],
        env=environment,
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_fresh_folder_serves_and_reports_its_parts(stack: tuple[Running, int]):
    _, port = stack
    assert get(port, "/health/live") == (200, {"status": "ok"})
    status, ready = get(port, "/health/ready")
    assert (status, ready["database"], ready["broker"]) == (200, {"status": "ok"}, {"status": "ok"})


def test_the_printed_password_signs_in_and_is_kept_for_its_owner_alone(stack: tuple[Running, int], state: Path):
    process, port = stack
    kept = StateFolder(state).password_file
    password = re.search(r"Sign in as admin with the password (\S+)", process.output)[1]
    assert kept.read_text().strip() == password
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    cookies = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    login = f"http://127.0.0.1:{port}/admin/login/"
    with browser.open(login, timeout=10):
        token = next(cookie.value for cookie in cookies if cookie.name == "csrftoken")
    form = {"username": "admin", "password": password, "csrfmiddlewaretoken": token, "next": "/admin/"}
    with browser.open(login, urllib.parse.urlencode(form).encode(), timeout=10) as page:
        assert page.url.endswith("/admin/")
    assert "sessionid" in {cookie.name for cookie in cookies}


def test_a_healthy_start_reads_like_one(stack: tuple[Running, int]):
    process, _ = stack
    process.wait_for_line("The workers are ready", up.START_S)
    assert not re.search(r"FATAL|Traceback|d5f0c3", process.output), process.output


def test_a_second_start_on_the_folder_is_refused_with_the_reason(stack: tuple[Running, int], state: Path):
    process, _ = stack
    second = up.start(state, up.free_port())
    assert second.wait(30) == 2
    assert re.search(
        rf"already runs on the state folder .*{re.escape(str(state))} \(process {process.pid}\)", second.output
    )


def test_another_command_finds_the_running_servers(stack: tuple[Running, int], state: Path):
    code = "from workspaces.models import Membership; print([str(m) for m in Membership.objects.all()])"
    done = manage("shell", "-v", "0", "-c", code, environment=up.environment(state))
    assert (done.returncode, done.stdout.strip()) == (0, "['admin in demo']"), done.stderr


def test_a_killed_child_is_started_again(stack: tuple[Running, int], state: Path):
    process, port = stack
    web = next(pid for pid, command in up.processes_of(state).items() if "uvicorn" in command)
    printed = len(process.lines)
    os.kill(web, signal.SIGKILL)
    process.wait_for_line(r"web ended \(-9\); starts again in 0\.5 s", after=printed)
    process.wait_for_line(r"Uvicorn running on", after=printed)
    assert get(port, "/health/live")[0] == 200


def test_a_killed_database_is_started_again(stack: tuple[Running, int], state: Path):
    process, port = stack
    postmaster = next(pid for pid, command in up.processes_of(state).items() if "bin/postgres -D" in command)
    os.kill(postmaster, signal.SIGKILL)
    process.wait_for_line(r"postgres ended \(-9\)")
    wait_until(lambda: get(port, "/health/ready")[0] == 200, 30, what="a ready database")


@dataclass(frozen=True)
class Stopped:
    """How a stack ended that was sent SIGTERM, and the folder it left."""

    state: Path
    code: int
    took_s: float
    left: dict[int, str]
    output: str

    def copy(self) -> Path:
        """The same on a folder of its own: what is started there need not make a database first."""
        state = up.fresh_state()
        subprocess.run(["cp", "-a", self.state, state], check=True)
        return state


@pytest.fixture(scope="module")
def stopped() -> Stopped:
    state = up.fresh_state()
    with up.running(state) as (process, _):
        names = {"postgres", "valkey-server", "uvicorn", "turns,plans", "sweep", "suspect", "beat"}
        up.wait_for(state, lambda running: all(any(name in each for each in running) for name in names), what="all")
        asked = time.monotonic()
        code = process.terminate(2 * STOP_S)
        return Stopped(state, code, time.monotonic() - asked, up.processes_of(state), process.output)


def test_sigterm_leaves_no_process(stopped: Stopped):
    assert stopped.code == 0, stopped.output
    assert stopped.took_s < STOP_S
    assert stopped.left == {}
    assert not StateFolder(stopped.state).in_use()


def test_a_killed_manager_leaves_no_process(stopped: Stopped):
    state = stopped.copy()
    with up.running(state) as (process, _):
        assert "with the password" not in process.output  # it was printed once
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        up.wait_for_end(state, STOP_S)


def test_it_stops_with_its_parent_when_asked_to():
    """`kill -9` of `make` must not leave the manager behind."""
    state, port = up.fresh_state(), up.free_port()
    starter = (
        "import subprocess, sys; "
        f"sys.exit(subprocess.call([sys.executable, 'manage.py', 'up', '--port', '{port}', '--stop-with-parent']))"
    )
    parent = Running(
        "parent",
        subprocess.Popen(
            [sys.executable, "-c", starter],
            env=up.environment(state, PYTHONUNBUFFERED="1"),
            cwd=settings.BASE_DIR,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ),
    )
    try:
        parent.wait_for_line("ready to accept connections", up.START_S)
        os.kill(parent.pid, signal.SIGKILL)
        up.wait_for_end(state, STOP_S)
    finally:
        parent.close()
        up.remove_sockets(StateFolder(state))


def test_what_a_killed_test_session_had_started_ends_with_it():
    state = up.fresh_state()
    session = (
        "import django; django.setup(); from pathlib import Path; from tests.config import up; "
        f"up.start(Path({str(state)!r}), {up.free_port()}).wait(60)"
    )
    killed = Running(
        "session",
        subprocess.Popen(
            [sys.executable, "-c", session],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
            cwd=settings.BASE_DIR,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ),
    )
    try:
        up.wait_for(state, lambda running: "bin/postgres -D" in str(running), up.START_S, what="its PostgreSQL")
        os.kill(killed.pid, signal.SIGKILL)
        up.wait_for_end(state, STOP_S)
    finally:
        killed.close()
        up.remove_sockets(StateFolder(state))


def test_a_taken_port_is_one_clear_line(stack: tuple[Running, int], tmp_path: Path):
    _, port = stack
    refused = up.start(tmp_path / "state", port)
    assert refused.wait(30) == 2
    assert f"Port {port} is in use: choose another, such as PORT={port + 1}." in refused.output
    assert "Traceback" not in refused.output


def test_a_redis_that_does_not_answer_is_one_clear_line(tmp_path: Path):
    url = f"redis://:secret@127.0.0.1:{up.free_port()}/0"
    refused = up.start(tmp_path / "state", up.free_port(), REDIS_URL=url)
    assert refused.wait(30) == 2
    assert re.search(r"^CommandError: REDIS_URL: the Redis does not answer: .*refused", refused.output, re.MULTILINE)
    assert "Traceback" not in refused.output
    assert "secret" not in refused.output


def test_a_state_folder_that_is_gone_stops_everything(stopped: Stopped):
    """An interrupted test session removes it under a running stack."""
    state = stopped.copy()
    with up.running(state) as (process, _):
        shutil.rmtree(state)
        postmaster = next(pid for pid, command in up.processes_of(state).items() if "bin/postgres -D" in command)
        os.kill(postmaster, signal.SIGKILL)
        assert process.wait(3 * 15) == 2
        assert "postgres ended 6 times in a row, and nothing works without it" in process.output
        assert not up.processes_of(state)


def test_ctrl_c_while_the_workers_start_prints_no_traceback(stopped: Stopped):
    state = stopped.copy()
    with up.running(state) as (process, _):
        process.process.send_signal(signal.SIGINT)
        assert process.wait(STOP_S) == 0
        assert "Traceback" not in process.output, process.output


def test_a_command_without_a_database_says_make_run(tmp_path: Path):
    done = manage("showmigrations", environment=up.environment(tmp_path / "state"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "make run" in done.stderr
    assert "DATABASE_URL" in done.stderr


def test_a_command_that_needs_no_database_works_without_one(tmp_path: Path):
    done = manage("check", environment=up.environment(tmp_path / "state"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "value"), [("SECRET_KEY", ""), ("PORT", "many"), ("DATABASE_URL", "mysql://a/b")])
def test_a_wrong_environment_is_one_line_that_names_the_variable(tmp_path: Path, name: str, value: str):
    done = manage("check", environment=up.environment(tmp_path / "state", **{name: value}))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith(f"{name}: ")


def test_a_socket_folder_open_to_others_stops_the_start():
    state = up.fresh_state()
    sockets = up.socket_folder(StateFolder(state))
    sockets.mkdir(mode=0o755)
    try:
        refused = up.start(state, up.free_port())
        assert refused.wait(30) == 2
        assert f"{sockets} exists and is no folder with mode 0700" in refused.output
    finally:
        sockets.rmdir()

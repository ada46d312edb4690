"""The manager's own rules, on small programs."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from config.processes import Program
from config.supervisor import CHILDREN_STOP_S, SERVER_RESTARTS, ServerLost, Stopped, Supervisor

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("stubborn", flush=True)
time.sleep(60)
"""


def program(name: str, code: str) -> Program:
    return Program(name=name, argv=(sys.executable, "-u", "-c", code), environment={"PATH": os.defpath}, cwd=Path("/"))


def watch_for(supervisor: Supervisor, output: io.StringIO, text: str, times: int = 1) -> None:
    deadline = time.monotonic() + 20
    seen = lambda: output.getvalue().count(text) >= times  # noqa: E731
    assert supervisor.watch(until=lambda: seen() or time.monotonic() > deadline, poll_s=0.05)
    assert seen(), output.getvalue()


def test_a_child_that_ends_is_started_again_each_time_after_a_longer_pause():
    output = io.StringIO()
    supervisor = Supervisor(keep=(), output=output)
    with supervisor.running():
        supervisor.start(program("short", "print('here'); raise SystemExit(3)"))
        watch_for(supervisor, output, "short ended", times=3)
    text = output.getvalue()
    assert text.index("ended (3); starts again in 0.5 s") < text.index("starts again in 1 s") < text.index("in 2 s")
    assert text.count("short    | here\n") >= 3


def test_one_that_does_not_stop_is_killed_in_time():
    output = io.StringIO()
    supervisor = Supervisor(keep=(), output=output)
    with supervisor.running():
        child = supervisor.start(program("mule", STUBBORN))
        watch_for(supervisor, output, "stubborn")
        left = time.monotonic()
    assert time.monotonic() - left < 3 * CHILDREN_STOP_S
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL
    assert "mule did not stop in time and is killed" in output.getvalue()


def test_what_a_child_started_ends_with_it():
    output = io.StringIO()
    supervisor = Supervisor(keep=(), output=output)
    code = "import subprocess, time; p = subprocess.Popen(['sleep', '60']); print('pid', p.pid); time.sleep(60)"
    with supervisor.running():
        supervisor.start(program("parent", code))
        watch_for(supervisor, output, "pid ")
        pid = int(output.getvalue().split("pid ")[1].split()[0])
    deadline = time.monotonic() + 10
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_signal_while_starting_stops_the_start_and_the_children():
    supervisor = Supervisor(keep=(), output=io.StringIO())
    with pytest.raises(Stopped), supervisor.running():
        child = supervisor.start(program("child", "import time; time.sleep(60)"))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    assert child.process is not None
    assert child.process.returncode == -signal.SIGTERM


def test_a_line_of_bytes_that_are_no_text_is_printed_all_the_same():
    output = io.StringIO()
    supervisor = Supervisor(keep=(), output=output)
    with supervisor.running():
        supervisor.start(program("raw", r"import sys; sys.stdout.buffer.write(b'\xff no newline')"))
        watch_for(supervisor, output, "raw ended")
    assert "raw      | \ufffd no newline\n" in output.getvalue()


def test_a_server_that_does_not_come_back_ends_the_watch():
    output = io.StringIO()
    supervisor = Supervisor(keep=(), output=output, clock=lambda: time.monotonic() * 20)
    with pytest.raises(ServerLost, match="store ended 6 times in a row"), supervisor.running():
        other = supervisor.start(program("other", "import time; time.sleep(60)"))
        supervisor.start(program("store", "raise SystemExit(1)"), server=True)
        supervisor.watch(poll_s=0.01)
    assert output.getvalue().count("store ended (1); starts again") == SERVER_RESTARTS
    assert not other.running


def test_a_server_whose_program_is_gone_ends_the_watch(tmp_path: Path):
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\nexit 1\n")
    server.chmod(0o755)
    gone = Program(name="store", argv=(str(server),), environment={}, cwd=Path("/"))
    output = io.StringIO()
    supervisor = Supervisor(keep=(), output=output, clock=lambda: time.monotonic() * 20)
    with pytest.raises(ServerLost), supervisor.running():
        supervisor.start(gone, server=True)
        server.unlink()
        supervisor.watch(poll_s=0.01)
    assert "store cannot be started (No such file or directory); starts again" in output.getvalue()


STARTING = """
import signal, sys, time
def stop(*_):
    print("Traceback of an import", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, stop)
print("here", flush=True)
{ready}
time.sleep(60)
"""


@pytest.mark.parametrize(("ready", "shown"), [("", False), ("print('it is ready', flush=True)", True)])
def test_what_is_stopped_before_it_was_ready_says_no_more(ready: str, shown: bool):
    output = io.StringIO()
    supervisor = Supervisor(keep=(), output=output)
    with supervisor.running():
        child = supervisor.start(replace(program("child", STARTING.format(ready=ready)), ready_line="it is ready"))
        watch_for(supervisor, output, "here")
        if shown:
            supervisor.watch(until=lambda: child.ready)
    assert ("Traceback of an import" in output.getvalue()) is shown
    assert "it is ready" not in output.getvalue()


def _runs(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped by init has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

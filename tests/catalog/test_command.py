"""`extract_elements` as a process: exit codes, what it prints, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from catalog.models import ChangeSet, Element
from llm.testing import When, held
from llm.testing.gate import Gate
from llm.testing.plugin import MakeLoopback
from tests.catalog.agents import answer, scripted
from tests.catalog.commands import domain_rows, extract_elements
from tests.catalog.trees import SHOP, SHOP_ELEMENTS, write_tree
from tests.support.processes import Processes, Running, process_environment
from tests.support.runs import make_workspace
from workspaces.models import Workspace

WAIT_S = 60.0
Start = Callable[..., Running]


def everything_on(screen: int) -> str:
    """What a terminal that nobody writes to any more has shown; closes it."""
    shown = b""
    with os.fdopen(screen, "rb", buffering=0) as pipe, contextlib.suppress(OSError):  # EIO is the end
        while chunk := pipe.read(65_536):
            shown += chunk
    return shown.decode()


@pytest.fixture
def workspace(transactional_db: None) -> Workspace:
    return make_workspace()


@pytest.fixture
def start(processes: Processes, workspace: Workspace, openai_loopback: MakeLoopback) -> Start:
    """Starts the command on the test's database, its model behind a loopback server."""

    def run(*args: str, answers: object = None, **environment: str) -> Running:
        server = openai_loopback(When(lambda request: True, answers or answer(), times=None))
        return processes.manage(
            "extract_elements",
            "--workspace",
            workspace.slug,
            *args,
            environment={**server.environment(), **environment},
        )

    return run


def test_a_scan_is_proposed_then_applied_then_finds_nothing_new(
    start: Start, tmp_path: Path, workspace: Workspace
) -> None:
    tree = str(write_tree(tmp_path / "shop-1.0", SHOP))
    proposed = start(tree)
    assert proposed.wait(WAIT_S) == 0
    assert re.search(
        rf"^{SHOP_ELEMENTS} add, 0 update, 0 delete \(proposed as change set \d+\)$", proposed.output, re.M
    )
    assert not Element.objects.exists()
    applied = start(tree, "--apply")
    assert applied.wait(WAIT_S) == 0
    assert re.search(rf"^{SHOP_ELEMENTS} add, 0 update, 0 delete \(applied as change set \d+\)$", applied.output, re.M)
    assert Element.objects.for_workspace(workspace).count() == SHOP_ELEMENTS
    again = start(tree, "--apply")
    assert again.wait(WAIT_S) == 0
    assert "0 add, 0 update, 0 delete (nothing to change)" in again.output


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda root: root / "missing", "missing: No such file or directory"),
        (lambda root: root / "manage.py", "manage.py: not a folder"),
        (lambda root: root / "empty", "empty: holds no Python source"),
        (lambda root: root / "loop", "loop: Too many levels of symbolic links"),
        (lambda root: root / "only_tests", "only_tests: every candidate was rejected by rule; check --exclude"),
        (lambda root: Path("/proc/1/task/1/fdinfo/../../../../self/map_files/0-0"), "0-0: No such file or directory"),
    ],
    ids=["missing", "file", "empty", "loop", "noise", "proc"],
)
def test_a_path_without_usable_source_ends_with_2_and_one_line(
    tmp_path: Path, make: Callable[[Path], Path], line: str, workspace: Workspace
) -> None:
    write_tree(tmp_path, {"manage.py": "", "only_tests/tests/test_a.py": ""})
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    llm = scripted()
    ended = extract_elements(make(tmp_path), workspace, llm)
    assert (ended.code, ended.error.endswith(line), ended.error.count("\n"), llm.requests) == (2, True, 0, [])
    assert not any(domain_rows(workspace).values())


def test_the_shell_sees_2_for_a_bad_path_and_for_an_unknown_workspace(
    processes: Processes, tmp_path: Path, workspace: Workspace
) -> None:
    path = str(tmp_path / "missing")
    bad_path = processes.manage("extract_elements", path, "--workspace", workspace.slug)
    unknown = processes.manage("extract_elements", str(tmp_path), "--workspace", "nobody")
    assert (bad_path.wait(WAIT_S), unknown.wait(WAIT_S)) == (2, 2)
    assert bad_path.lines == [f"CommandError: {path}: No such file or directory"]
    assert unknown.lines == ["CommandError: no workspace has the slug 'nobody'"]


def test_a_broken_file_ends_with_1_names_it_and_writes_nothing(
    start: Start, tmp_path: Path, workspace: Workspace
) -> None:
    tree = write_tree(tmp_path, {**SHOP, "shop/broken.py": b"x = '\xff\xfe'\n", "shop/late.py": "def f(:\n"})
    ended = start(str(tree), "--apply")
    assert ended.wait(WAIT_S) == 1
    assert "2 file(s) could not be read; nothing was written." in ended.output
    assert "shop/late.py:1: syntax error" in ended.output
    assert not any(domain_rows(workspace).values())
    mended = start(str(tree), "--apply", "--exclude", "shop/broken.py", "--exclude", "shop/late.py")
    assert mended.wait(WAIT_S) == 0


def test_a_broken_file_among_the_tests_is_left_out_and_said_so(start: Start, tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {**SHOP, "shop/tests/broken.py": "1syntax_error\n"})
    ended = start(str(tree))
    assert ended.wait(WAIT_S) == 0
    assert "left out, unparsable: shop/tests/broken.py:1: syntax error" in ended.output


def test_an_answer_that_is_no_json_ends_with_1_and_writes_nothing(
    start: Start, tmp_path: Path, workspace: Workspace
) -> None:
    ended = start(str(write_tree(tmp_path, SHOP)), "--apply", answers="I would rather not.")
    assert ended.wait(WAIT_S) == 1
    assert "factory.extract" in ended.output
    assert "nothing was written" in ended.output
    assert not any(domain_rows(workspace).values())


def test_ctrl_c_ends_with_130_and_writes_nothing(
    processes: Processes, tmp_path: Path, workspace: Workspace, openai_loopback: MakeLoopback
) -> None:
    gate = Gate()
    server = openai_loopback(held(gate, "[]"), requeue=True)
    tree = str(write_tree(tmp_path, SHOP))
    running = processes.manage(
        "extract_elements", "--workspace", workspace.slug, tree, "--apply", environment=server.environment()
    )
    assert gate.reached.wait(WAIT_S), running.output
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(WAIT_S) == 130
    assert running.lines[-1] == "CommandError: interrupted; nothing was written"
    assert "Traceback" not in running.output
    assert not any(domain_rows(workspace).values())


def test_progress_shows_on_a_terminal_only(tmp_path: Path, workspace: Workspace, openai_loopback: MakeLoopback) -> None:
    server = openai_loopback(When(lambda request: True, answer(), times=None))
    tree = str(write_tree(tmp_path, SHOP))
    argv = [sys.executable, "manage.py", "extract_elements", tree, "--workspace", workspace.slug]
    environment = process_environment({**server.environment(), "TERM": "xterm"})
    quiet = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert "reading" not in quiet.stderr
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    argv.append("--ask-again")
    shown = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, stderr=terminal, text=True, timeout=WAIT_S)
    os.close(terminal)
    drawn = everything_on(screen)
    assert (quiet.returncode, shown.returncode) == (0, 0)
    assert "reading: 100%" in drawn
    assert "asking the model: 100%" in drawn
    assert "add, 0 update" in shown.stdout


def test_unchanged_candidates_are_asked_about_again_on_request(tmp_path: Path, workspace: Workspace) -> None:
    tree = write_tree(tmp_path, SHOP)
    assert extract_elements(tree, workspace, scripted(), apply=True).code == 0
    renamed = scripted({"module:shop": {"verdict": "rename", "name": "Bookshop"}})
    assert extract_elements(tree, workspace, renamed, apply=True).code == 0
    assert renamed.requests == []
    assert extract_elements(tree, workspace, renamed, apply=True, ask_again=True).code == 0
    assert Element.objects.get(key="module:shop").name == "Bookshop"
    assert ChangeSet.objects.order_by("-pk")[0].updated == 1

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
from django.db import IntegrityError, connection

from catalog.models import ChangeSet, Element
from llm.testing import held
from llm.testing.gate import Gate
from llm.testing.plugin import MakeLoopback
from tests.catalog.agents import answer, scripted
from tests.catalog.commands import domain_rows, extract_elements
from tests.catalog.trees import SHOP, SHOP_ELEMENTS, write_tree
from tests.support.processes import Processes, process_environment
from tests.support.runs import make_workspace
from workspaces.models import Workspace

WAIT_S = 60.0


def everything_on(screen: int) -> str:
    """What a terminal that nobody writes to any more has shown; closes it."""
    shown = b""
    with os.fdopen(screen, "rb", buffering=0) as pipe, contextlib.suppress(OSError):  # EIO is the end
        while chunk := pipe.read(65_536):
            shown += chunk
    return shown.decode()


@pytest.fixture
def workspace(db: None) -> Workspace:
    return make_workspace()


def test_a_scan_is_proposed_then_applied_then_finds_nothing_new(tmp_path: Path, workspace: Workspace) -> None:
    tree = write_tree(tmp_path, SHOP)
    proposed = extract_elements(tree, workspace, scripted())
    assert re.search(rf"^{SHOP_ELEMENTS} add, 0 update, 0 delete \(proposed as change set \d+\)$", proposed.out, re.M)
    assert not Element.objects.exists()
    applied = extract_elements(tree, workspace, scripted(), apply=True)
    assert re.search(rf"^{SHOP_ELEMENTS} add, 0 update, 0 delete \(applied as change set \d+\)$", applied.out, re.M)
    assert Element.objects.for_workspace(workspace).count() == SHOP_ELEMENTS
    again = extract_elements(tree, workspace, scripted(), apply=True)
    assert "0 add, 0 update, 0 delete (nothing to change)" in again.out
    assert (proposed.code, applied.code, again.code) == (0, 0, 0)


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


def test_an_unknown_workspace_ends_with_2(tmp_path: Path, db: None) -> None:
    ended = extract_elements(tmp_path, Workspace(slug="nobody"), scripted())
    assert (ended.code, ended.error) == (2, "no workspace has the slug 'nobody'")


def test_a_broken_file_ends_with_1_until_it_is_excluded(tmp_path: Path, workspace: Workspace) -> None:
    tree = write_tree(tmp_path, {**SHOP, "shop/broken.py": b"x = '\xff\xfe'\n", "shop/late.py": "def f(:\n"})
    ended = extract_elements(tree, workspace, scripted(), apply=True)
    assert ended.code == 1
    assert "2 file(s) could not be read; nothing was written." in ended.error
    assert "shop/late.py:1: syntax error" in ended.error
    assert not any(domain_rows(workspace).values())
    assert extract_elements(tree, workspace, scripted(), exclude=["shop/broken.py", "shop/late.py"]).code == 0


def test_a_broken_file_among_the_tests_is_left_out_and_said_so(tmp_path: Path, workspace: Workspace) -> None:
    tree = write_tree(tmp_path, {**SHOP, "shop/tests/broken.py": "1syntax_error\n"})
    ended = extract_elements(tree, workspace, scripted())
    assert ended.code == 0
    assert "left out, unparsable: shop/tests/broken.py:1: syntax error" in ended.remarks


def test_a_name_that_is_too_long_is_refused(tmp_path: Path, workspace: Workspace) -> None:
    ended = extract_elements(write_tree(tmp_path, SHOP), workspace, scripted(), label="x" * 201)
    assert (ended.code, ended.error.endswith("give one with --label")) == (2, True)


def test_when_the_database_refuses_the_elements_no_proposal_is_left_either(
    tmp_path: Path, workspace: Workspace
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE capstan_catalog_element ADD CONSTRAINT refused CHECK (key <> 'module:shop.tasks')")
    with pytest.raises(IntegrityError):
        extract_elements(write_tree(tmp_path, SHOP), workspace, scripted(), apply=True)
    assert not any(domain_rows(workspace).values())


def test_unchanged_candidates_are_asked_about_again_on_request(tmp_path: Path, workspace: Workspace) -> None:
    tree = write_tree(tmp_path, SHOP)
    assert extract_elements(tree, workspace, scripted(), apply=True).code == 0
    renamed = scripted({"module:shop": {"verdict": "rename", "name": "Bookshop"}})
    assert extract_elements(tree, workspace, renamed, apply=True).code == 0
    assert renamed.requests == []
    assert extract_elements(tree, workspace, renamed, apply=True, ask_again=True).code == 0
    assert Element.objects.get(key="module:shop").name == "Bookshop"
    assert ChangeSet.objects.order_by("-pk")[0].updated == 1


def test_the_shell_sees_2_and_one_line_for_a_bad_path(
    processes: Processes, tmp_path: Path, transactional_db: None
) -> None:
    path = str(tmp_path / "missing")
    ended = processes.manage("extract_elements", path, "--workspace", make_workspace().slug)
    assert ended.wait(WAIT_S) == 2
    assert ended.lines == [f"CommandError: {path}: No such file or directory"]


def test_the_shell_sees_1_when_the_model_answers_no_json(
    processes: Processes, tmp_path: Path, openai_loopback: MakeLoopback
) -> None:
    workspace, server = make_workspace(), openai_loopback("I would rather not.")
    argv = ("extract_elements", str(write_tree(tmp_path, SHOP)), "--workspace", workspace.slug, "--apply")
    ended = processes.manage(*argv, environment=server.environment())
    assert ended.wait(WAIT_S) == 1
    assert ended.lines[-1].startswith("CommandError: factory.extract")
    assert "reading" not in ended.output, "no progress bar where nobody watches"
    assert not any(domain_rows(workspace).values())


def test_ctrl_c_ends_with_130_and_writes_nothing(
    processes: Processes, tmp_path: Path, openai_loopback: MakeLoopback
) -> None:
    gate, workspace = Gate(), make_workspace()
    server = openai_loopback(held(gate, "[]"), requeue=True)
    argv = ("extract_elements", str(write_tree(tmp_path, SHOP)), "--workspace", workspace.slug, "--apply")
    running = processes.manage(*argv, environment=server.environment())
    assert gate.reached.wait(WAIT_S), running.output
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(WAIT_S) == 130
    assert running.lines[-1] == "CommandError: interrupted; nothing was written"
    assert "Traceback" not in running.output
    assert not any(domain_rows(workspace).values())


def test_a_terminal_shows_progress_and_the_counts_go_to_stdout(
    tmp_path: Path, transactional_db: None, openai_loopback: MakeLoopback
) -> None:
    server = openai_loopback(answer())
    argv = [sys.executable, "manage.py", "extract_elements", str(write_tree(tmp_path, SHOP))]
    argv += ["--workspace", make_workspace().slug, "--apply"]
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    environment = process_environment({**server.environment(), "TERM": "xterm"})
    ended = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, stderr=terminal, text=True, timeout=WAIT_S)
    os.close(terminal)
    drawn = everything_on(screen)
    assert ended.returncode == 0, drawn
    assert "reading: 100%" in drawn
    assert "asking the model: 100%" in drawn
    assert f"{SHOP_ELEMENTS} add, 0 update, 0 delete (applied" in ended.stdout
    assert Element.objects.count() == SHOP_ELEMENTS

"""The README's way to see an approval: one line of `.env`, one sentence, with the stand-in and the real tools."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from catalog.models import ElementNote
from chat import services
from chat.runner import run_turn
from config.environment import Environment
from config.tool_settings import approvals_from
from factory.agents import create_agent
from tests.catalog.commands import extract_elements
from tests.llm.demo_play import LLM
from tests.support.runs import make_conversation, make_workspace
from tools.models import Approval
from tools.services import decide
from workspaces.models import User

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_readmes_sentence_asks_a_person_before_it_writes(settings: Any, tmp_path: Path) -> None:
    readme, env = (ROOT / "README.md").read_text(), (ROOT / ".env.example").read_text()
    (line,) = re.findall(r"`(TOOL_APPROVALS=.+)`", readme)
    assert f"\n#{line}\n" in env, "there is a line to uncomment"
    settings.CAPSTAN_APPROVALS = approvals_from(Environment({"TOOL_APPROVALS": line.partition("=")[2]}))
    (sentence,) = re.findall(r"“(Annotate .+?)”", readme)
    user = User.objects.create_superuser("ana", password=None)
    workspace = make_workspace(user)
    for part in ("llm/__init__.py", "llm/errors.py"):  # of this folder, what the sentence is about
        (tmp_path / part).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / part, tmp_path / part)
    assert extract_elements(tmp_path, workspace, LLM, "--apply").code == 0
    turn = services.send_message(
        conversation_id=make_conversation(user=user, workspace=workspace).pk,
        author=user,
        text=sentence,
        respond_async=False,
        correlation_id="readme",
        now=timezone.now(),
    )
    agents = partial(create_agent, llm=LLM)
    assert run_turn(turn.pk, agents=agents, clock=timezone.now).status == "waiting_approval"
    approval = Approval.objects.get()
    assert approval.arguments == {"key": "module:llm.errors", "note": "split this up"}
    assert not ElementNote.objects.exists()
    decide(approval_id=approval.pk, user=user, decision="approve", now=timezone.now())
    ended = run_turn(turn.pk, agents=agents, clock=timezone.now)
    assert ended.status == "completed"
    note = ElementNote.objects.get()
    assert (note.text, note.key) == ("split this up", "module:llm.errors")

"""PRF-SC02-02 (adverse): an answer that cannot be parsed never ends with exit code 0 and no effect (CAP-009)."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.models import Element
from llm.testing import ScriptedLLM
from observability.models import AgentInteraction
from tests.catalog.agents import scripted
from tests.catalog.commands import domain_rows, extract_elements
from tests.catalog.trees import SHOP, SHOP_ELEMENTS, write_tree
from tests.support.agent_story import assert_agent_story, record_trace
from tests.support.runs import make_workspace

SCRIPTS = Path(__file__).parent.parent / "fixtures" / "llm_scripts" / "PRF-SC02-02"

pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("reject_*.json")), ids=lambda path: path.stem)
def test_an_unusable_answer_fails_the_command_and_is_still_on_record(tmp_path: Path, script: Path) -> None:
    workspace = make_workspace()
    ended = extract_elements(write_tree(tmp_path, SHOP), workspace, ScriptedLLM.from_file(script), apply=True)
    assert ended.code == 1
    assert "nothing was written" in ended.error
    assert "add" not in ended.out
    assert not any(domain_rows(workspace).values())
    paid = AgentInteraction.objects.get(workspace=workspace)
    assert (paid.owner_kind, paid.tier) == ("command", "planning")
    assert_agent_story(
        record_trace(paid.correlation_id, workflow="SC-02"), workflow="SC-02", beats={"config": ["scripted:planning"]}
    )


def test_a_source_file_that_cannot_be_parsed_fails_the_command_before_the_model_is_called(tmp_path: Path) -> None:
    workspace = make_workspace()
    tree = write_tree(tmp_path, {**SHOP, "shop/broken.py": "def sell(:\n"})
    llm = ScriptedLLM(["never asked"])
    ended = extract_elements(tree, workspace, llm, apply=True)
    assert (ended.code, llm.requests) == (1, [])
    assert "shop/broken.py:1: syntax error" in ended.error
    assert not any(domain_rows(workspace).values())


def test_the_same_tree_with_a_good_answer_has_effects(tmp_path: Path) -> None:
    workspace = make_workspace()
    ended = extract_elements(write_tree(tmp_path, SHOP), workspace, scripted(), apply=True)
    assert (ended.code, ended.error) == (0, "")
    assert Element.objects.for_workspace(workspace).count() == SHOP_ELEMENTS

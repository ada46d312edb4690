"""PRF-SC02-04 (adverse): when D1 fails, the exit code is not 0 and the domain is as it was, whatever came before."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm.testing import ScriptedLLM
from llm.testing.replies import load
from observability.models import AgentInteraction
from tests.catalog.agents import answer, scripted
from tests.catalog.commands import domain_rows, extract_elements
from tests.catalog.trees import SHOP, write_tree
from tests.support.runs import make_workspace

SCRIPTS = Path(__file__).parent.parent / "fixtures" / "llm_scripts" / "PRF-SC02-04"
SECOND_BATCH = {f"shop/part{n:03}.py": f"class Part{n}:\n    pass\n" for n in range(120)}

pytestmark = [pytest.mark.agent_proof, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("reject_*.json")), ids=lambda path: path.stem)
def test_a_failure_in_the_second_batch_leaves_the_catalogue_untouched(tmp_path: Path, script: Path) -> None:
    workspace = make_workspace()
    write_tree(tmp_path, SHOP)
    assert extract_elements(tmp_path, workspace, scripted(), apply=True).code == 0
    before = domain_rows(workspace)
    write_tree(tmp_path, SECOND_BATCH)
    (tmp_path / "shop" / "prices.py").unlink()

    llm = ScriptedLLM([answer(), *load(script)])
    ended = extract_elements(tmp_path, workspace, llm, apply=True)

    assert (ended.code, llm.remaining) == (1, 0)
    assert "nothing was written" in ended.error
    assert domain_rows(workspace) == before
    assert AgentInteraction.objects.filter(workspace=workspace).count() == 3, "what was paid for is on record"

"""PRF-SC02-03: D0 reduces the candidates, the same way each time."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import celery
import pytest

from catalog.gather import gather
from catalog.models import Element
from catalog.prefilter import prefilter
from tests.catalog.agents import scripted
from tests.catalog.commands import extract_elements
from tests.catalog.trees import SHOP, write_tree
from tests.support.runs import make_workspace

pytestmark = pytest.mark.agent_proof


def test_noise_never_reaches_the_model_nor_the_catalogue(tmp_path: Path, db: None) -> None:
    workspace = make_workspace()
    llm = scripted()
    ended = extract_elements(write_tree(tmp_path, SHOP), workspace, llm, apply=True)
    assert ended.code == 0
    asked = "".join(request.messages[-1].content for request in llm.requests)
    stored = " ".join(Element.objects.for_workspace(workspace).values_list("key", flat=True))
    for text in (asked, stored):
        assert "shop.models" in text
        assert "tests" not in text
        assert "migrations" not in text


def test_a_real_package_is_reduced_to_the_same_candidates_each_time() -> None:
    first = gather(Path(celery.__file__).parent)
    reduced = prefilter(first)
    assert len(reduced.graph.candidates) < len(first.candidates) * 0.9
    assert sum(reduced.rejected.values()) == len(first.candidates) - len(reduced.graph.candidates)
    for seed in range(3):
        shuffled = list(first.candidates)
        random.Random(seed).shuffle(shuffled)
        assert prefilter(replace(first, candidates=tuple(shuffled))) == reduced

"""The difference of two graphs as ops: deletes first, then updates, then adds, each in key order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from catalog.types import ElementState, OpName


@dataclass(frozen=True, slots=True)
class Op:
    """One element's change; `before` is None for an add, `after` for a delete."""

    op: OpName
    key: str
    before: ElementState | None
    after: ElementState | None


def diff_states(before: Mapping[str, ElementState], after: Mapping[str, ElementState]) -> list[Op]:
    """What turns `before` into `after`; nothing when they are equal.

    Deletes come first because both sides share the natural keys (SC-02 × SC-05, invariant 2).
    """
    deletes = [Op("delete", key, before[key], None) for key in sorted(before.keys() - after.keys())]
    shared = sorted(before.keys() & after.keys())
    updates = [Op("update", key, before[key], after[key]) for key in shared if before[key] != after[key]]
    adds = [Op("add", key, None, after[key]) for key in sorted(after.keys() - before.keys())]
    return [*deletes, *updates, *adds]

"""A decision, a change, a cancel, a retry, a sweep and the worker's own end, each with each other at one plan, at once.

Whoever is first: no plan waits for ever, nothing is run twice, and what was accepted is on record (issue 6, fault 5).
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from tests.plan.races import play

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis")]

HANDS = ("decide", "adapt", "cancel", "completion", "retry", "sweep")
PAIRS = list(combinations_with_replacement(HANDS, 2))
A_FEW, MANY = 2, 200


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_at_once_leave_a_plan_that_ends_and_ran_once(first, second):
    play(first, second, rounds=A_FEW, seed=5)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_at_once_many_times(first, second):
    stood = play(first, second, rounds=MANY, seed=11)
    print(f"{first} with {second}: {dict(stood)}")  # noqa: T201  # the closing figures

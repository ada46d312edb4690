"""The sweep goes on past a row that it cannot change, and forgets what nobody asks for any more."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from chat.models import IdempotencyKey
from tests.support.plans import hold_plan, llm_step
from tests.support.runs import make_turn, make_user
from tools.runs import LeasedRun
from worker.recovery import sweep

pytestmark = pytest.mark.django_db

REFUSE = """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = 'check_violation'; END $$"""


def refuse_changes_of(run: LeasedRun) -> None:
    """Every change of this row's status raises."""
    with connection.cursor() as cursor:
        cursor.execute(REFUSE)
        cursor.execute(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON {run._meta.db_table} FOR EACH ROW"
            f" WHEN (OLD.id = {run.pk} AND NEW.status <> OLD.status) EXECUTE FUNCTION refuse()"
        )


@pytest.mark.parametrize("make", [lambda: hold_plan(llm_step("a")), make_turn])
@pytest.mark.parametrize("ending", ["cancelled", "failed"])
def test_one_row_that_cannot_be_ended_does_not_keep_the_others(make, ending, caplog):
    stuck, *_ = [make() for _ in range(3)]
    rows = type(stuck).objects
    if ending == "cancelled":
        rows.update(cancel_requested_at=timezone.now())
    else:
        rows.update(status="running", attempts=5, lease_until=timezone.now() - timedelta(minutes=1))
    refuse_changes_of(stuck)
    swept = sweep(now=timezone.now())
    assert getattr(swept, ending) == 2
    assert set(rows.exclude(pk=stuck.pk).values_list("status", flat=True)) == {ending}
    assert f"run {stuck.pk} could not be changed" in caplog.text


def test_keys_of_idempotent_requests_are_forgotten_after_a_day():
    user, now = make_user(), timezone.now()
    for name, hours in (("old", 25), ("young", 23)):
        row = IdempotencyKey.objects.create(user=user, key=name, path="POST /", digest="x", status_code=200)
        IdempotencyKey.objects.filter(pk=row.pk).update(created_at=now - timedelta(hours=hours))
    sweep(now=now)
    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["young"]

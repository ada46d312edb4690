"""A POST sent again under its `Idempotency-Key` shows what its user may see now, and does nothing (design § 8)."""

from __future__ import annotations

import pytest

from chat.models import Conversation, IdempotencyKey, Turn
from plan.models import ExecutionPlan, PlanStep
from tests.chat.test_api import Api, api, conversation, error, play
from tests.support.plans import hold_plan, llm_step
from workspaces.models import Membership

__all__ = ["api", "play"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_deleted_conversation_answers_no_replay_and_leaves_no_text(api, play):
    play("the secret answer")
    made = api("post", "/conversations/", {"title": "the secret title"}, Idempotency_Key="c-1")
    key = made.json()["id"]
    url = f"/conversations/{key}/messages/"
    sent = api("post", url, {"text": "the secret question"}, Idempotency_Key="m-1")
    assert (sent.status_code, sent.json()["text"]) == (201, "the secret answer")
    branch = {"turn_id": sent.json()["turn_id"]}
    assert api("post", f"/conversations/{key}/branch/", branch, Idempotency_Key="b-1").status_code == 200
    assert api("delete", f"/conversations/{key}/").status_code == 204
    assert not [row for row in IdempotencyKey.objects.values() if "secret" in str(row)]
    assert error(api("post", url, {"text": "the secret question"}, Idempotency_Key="m-1")) == (404, "not_found")
    assert error(api("post", f"/conversations/{key}/branch/", branch, Idempotency_Key="b-1")) == (404, "not_found")
    again = api("post", "/conversations/", {"title": "the secret title"}, Idempotency_Key="c-1")
    assert error(again) == (404, "not_found")
    assert Conversation.objects.count() == Turn.objects.count() == 0


def test_who_has_left_the_workspace_gets_no_replay(api, play):
    play("one")
    key = conversation(api)
    url = f"/conversations/{key}/messages/"
    turn = api("post", url, {"text": "Hi"}, Idempotency_Key="m-1").json()["turn_id"]
    posts = [
        (url, {"text": "Hi"}, "m-1"),
        (f"/conversations/{key}/branch/", {"turn_id": turn}, "b-1"),
        (f"/turns/{turn}/cancel/", {}, "t-1"),
    ]
    for path, body, header in posts:
        assert api("post", path, body, Idempotency_Key=header).status_code in (200, 201)
    Membership.objects.all().delete()
    for path, body, header in posts:
        assert error(api("post", path, body, Idempotency_Key=header)) == (404, "not_found")


def test_who_has_left_the_workspace_gets_no_plan_again():
    plan = hold_plan(llm_step("a"), llm_step("b"))
    owner = Api(plan.owner)
    added = {"changes": [{"op": "insert", "key": "c", "after": "b", "action": "Do c."}]}
    posts = [(f"/plans/{plan.pk}/adapt/", added, "a-1"), (f"/plans/{plan.pk}/cancel/", {}, "c-1")]
    for path, body, header in posts:
        assert owner("post", path, body, Idempotency_Key=header).status_code == 200
    again = owner("post", *posts[0][:2], Idempotency_Key="a-1")
    assert (again.status_code, again.json()["status"], len(again.json()["steps"])) == (200, "cancelled", 3)
    Membership.objects.all().delete()
    for path, body, header in posts:
        assert error(owner("post", path, body, Idempotency_Key=header)) == (404, "not_found")


def test_a_replay_does_not_take_back_what_was_done_since(api, play):
    play("one", "two")
    key = conversation(api)
    first = api("post", f"/conversations/{key}/messages/", {"text": "Hi"}).json()["turn_id"]
    second = api("post", f"/turns/{first}/regenerate/").json()["turn_id"]
    url = f"/conversations/{key}/branch/"
    assert api("post", url, {"turn_id": first}, Idempotency_Key="b-1").status_code == 200
    assert api("post", url, {"turn_id": second}).status_code == 200
    again = api("post", url, {"turn_id": first}, Idempotency_Key="b-1")
    assert (again.status_code, again.headers["Idempotent-Replay"]) == (200, "true")
    assert Conversation.objects.get().active_turn_id == second


def test_a_replayed_assessment_leaves_the_later_word():
    plan = hold_plan(llm_step("a"))
    PlanStep.objects.filter(plan=plan).update(status="completed", llm_synthesis="said")
    ExecutionPlan.objects.filter(pk=plan.pk).update(status="completed", ended_at=plan.created_at)
    owner, url = Api(plan.owner), f"/plans/{plan.pk}/steps/a/assess/"
    assert owner("post", url, {"satisfaction": 2}, Idempotency_Key="s-1").status_code == 200
    assert owner("post", url, {"satisfaction": 5}).status_code == 200
    again = owner("post", url, {"satisfaction": 2}, Idempotency_Key="s-1")
    assert (again.status_code, again.json()["outcome"]["satisfaction"]) == (200, 5)

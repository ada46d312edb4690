"""The API's branches, new tries and approvals; recipes of turns; what the sweep ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from chat.models import Turn
from chat.runs import fail_spent_turns
from events.models import Event
from llm.testing import call, calls
from prompt.services import publish_recipe
from tests.chat.test_api import Api, api, error, play  # noqa: F401  the fixtures of the API's tests
from tests.support.runs import make_user, make_workspace
from tools.runs import MAX_ATTEMPTS

pytestmark = pytest.mark.django_db(transaction=True)


def start(api: Api, *texts: str) -> str:  # noqa: F811
    key = api("post", "/conversations/", {}).json()["id"]
    for text in texts:
        assert api("post", f"/conversations/{key}/messages/", {"text": text}).status_code == 201
    return key


def shown(api: Api, key: str) -> list[dict]:  # noqa: F811
    return api("get", f"/conversations/{key}/messages/").json()["results"]


def test_edit_new_try_and_switching_branches(api, play):  # noqa: F811
    play("A1", "A1b", "A1c")
    key = start(api, "Q1")
    question, answer = shown(api, key)
    again = api("post", f"/turns/{question['turn_id']}/regenerate/", Idempotency_Key="r1")
    assert (again.status_code, again.json()["text"]) == (201, "A1b")
    assert api("post", f"/turns/{question['turn_id']}/regenerate/", Idempotency_Key="r1").json() == again.json()
    rows = shown(api, key)
    assert [row["text"] for row in rows] == ["Q1", "A1b"]
    assert rows[1]["sibling_ids"] == [answer["id"], rows[1]["id"]]
    edited = api("post", f"/conversations/{key}/messages/", {"text": "Q1 edited", "parent_id": None})
    assert edited.json()["text"] == "A1c"
    assert [row["text"] for row in shown(api, key)] == ["Q1 edited", "A1c"]
    back = api("post", f"/conversations/{key}/branch/", {"message_id": answer["id"]})
    assert back.status_code == 200
    assert [row["text"] for row in shown(api, key)] == ["Q1", "A1"]
    assert error(api("post", f"/conversations/{key}/branch/", {"message_id": 999_999})) == (400, "invalid")
    bad = api("post", f"/conversations/{key}/messages/", {"text": "x", "parent_id": 999_999})
    assert bad.json()["error"]["details"]["field"] == "parent_id"


def test_a_turn_named_over_http_is_one_of_this_conversation_and_a_number(api, play):  # noqa: F811
    play(*"ABC", "A, rather")
    key, beside = start(api, "Q"), start(api, "Q")
    stranger = make_user(is_superuser=True)
    make_workspace(stranger)
    foreign = start(Api(stranger), "Q")
    own, other, theirs = (Turn.objects.get(conversation=each) for each in (key, beside, foreign))

    def send(**named: object) -> Any:
        return api("post", f"/conversations/{key}/messages/", {"text": "Q, rather", **named})

    def show(**named: object) -> Any:
        return api("post", f"/conversations/{key}/branch/", named)

    def field(answer: Any) -> str:
        assert error(answer) == (400, "invalid")
        details = answer.json()["error"]["details"]
        return details["field"] if "field" in details else ",".join(details["fields"])

    for turn in (other.pk, theirs.pk, 10**30, "none", [own.pk], -1):
        assert (field(send(after_turn=turn)), field(show(turn_id=turn))) == ("after_turn", "turn_id")
    assert field(send(after_turn=own.pk, parent_id=own.question_id)) == "after_turn"
    assert field(send(after_turn=None, parent_id=None)) == "after_turn"
    for named in ({"turn_id": None}, {"turn_id": own.pk, "message_id": own.question_id}, {}):
        assert field(show(**named)) == "turn_id"
    for path, body in (("messages", {"text": "Q", "after_turn": theirs.pk}), ("branch", {"turn_id": theirs.pk})):
        assert error(api("post", f"/conversations/{foreign}/{path}/", body))[0] == 404
    assert [row["text"] for row in shown(api, key)] == ["Q", "A"]
    assert Turn.objects.count() == 3
    assert send(after_turn=None).json()["text"] == "A, rather"  # null is the beginning
    assert [row["text"] for row in shown(api, key)] == ["Q, rather", "A, rather"]
    assert show(turn_id=str(own.pk)).status_code == 200  # a number may be written as text
    assert [row["text"] for row in shown(api, key)] == ["Q", "A"]


def test_a_recipe_is_pinned_and_one_that_names_a_tool_that_is_gone_costs_no_model_call(api, play):  # noqa: F811
    llm = play("Reviewed.")
    publish_recipe(name="review", prompt_template="Review it line by line.")
    key = start(api)
    sent = api("post", f"/conversations/{key}/messages/", {"text": "Go", "recipe": "review"})
    assert sent.json()["text"] == "Reviewed."
    assert "Review it line by line." in llm.requests[0].system[-1].text
    turn = Turn.objects.get(pk=sent.json()["turn_id"])
    assert (turn.recipe, turn.recipe_version) == ("review", 1)
    publish_recipe(name="review", prompt_template="Other.", required_tools=["gone_tool"])
    refused = api("post", f"/conversations/{key}/messages/", {"text": "Go", "recipe": "review"})
    assert (refused.json()["status"], refused.json()["stop_reason"]) == ("failed", "prompt.recipe_invalid")
    assert len(llm.requests) == 1
    unknown = api("post", f"/conversations/{key}/messages/", {"text": "Go", "recipe": "nothing"})
    assert error(unknown) == (400, "prompt.unknown_recipe")


def test_a_turn_that_never_gets_further_is_given_up(chat):
    it = chat("never")
    turn = it.send("Hi")
    Turn.objects.filter(pk=turn.pk).update(
        status="running", attempts=MAX_ATTEMPTS, lease_until=timezone.now() - timedelta(seconds=1)
    )
    assert it.run(turn, suspect=True).status == "running"  # no claim at the cap
    assert fail_spent_turns() == [turn.pk]
    turn.refresh_from_db()
    assert (turn.status, turn.stop_reason) == ("failed", "attempts")
    assert Event.objects.filter(stream=turn.stream_id).order_by("-seq")[0].payload["status"] == "failed"
    assert fail_spent_turns() == []


def test_an_approval_is_listed_decided_once_and_its_turn_goes_on(api, play, settings):  # noqa: F811
    settings.CAPSTAN_APPROVALS = {"planner": {"create_plan": "call"}}
    steps = [{"key": "a", "action": "Look", "is_critical": True}]
    play(calls(call("create_plan", goal="Do it", steps=steps)))
    key = start(api)
    sent = api("post", f"/conversations/{key}/messages/", {"text": "Plan"})
    assert (sent.status_code, sent.json()["status"]) == (202, "waiting_approval")
    (waiting,) = sent.json()["approvals"]
    listed = api("get", "/approvals/?status=pending").json()["results"]
    assert [row["id"] for row in listed] == [waiting]
    assert listed[0]["arguments"]["goal"] == "Do it"
    assert error(api("get", "/approvals/?status=maybe")) == (400, "invalid")
    assert error(api("post", f"/approvals/{waiting}/decide/", {"decision": "perhaps"})) == (400, "invalid")
    for _ in range(2):  # the second is a replay
        rejection = {"decision": "reject", "note": "no"}
        decided = api("post", f"/approvals/{waiting}/decide/", rejection, Idempotency_Key="d-1")
        assert (decided.status_code, decided.json()["status"]) == (200, "rejected")
    assert error(api("post", f"/approvals/{waiting}/decide/", {"decision": "approve"}))[0] == 409
    assert api("get", f"/turns/{sent.json()['turn_id']}/").json()["status"] == "queued"

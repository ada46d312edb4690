"""What a newcomer asks the stand-in: an empty catalogue, who depends on whom, what matters most, how many there are."""

from __future__ import annotations

import json

import pytest

from llm.types import LLMMessage, ModelRequest
from tests.llm.demo_play import CHAT, GOAL, LLM, RESULTS, SNAPSHOT, WORKFLOW, converse

HINT = "The catalogue is empty. An operator fills it with `manage.py extract_elements PATH --workspace w --apply`."
EMPTY = {"catalog": {"empty": HINT, "repositories": [], "packages": [], "notes": []}}
FOUND_NOTHING = {
    **RESULTS,
    "search_elements": {"total": 0, "elements": [], "more": False, "empty": HINT},
    "catalog_overview": {"empty": HINT, "repositories": {}, "packages": []},
}
OWN_STEPS = (
    "Step 1, survey: Survey what belongs to `auth`.",
    "Step 2, examine: Examine the structure and the dependencies of `auth`.",
    "Step 3, propose: Draw conclusions and propose what to do: Analyse the auth module and propose a refactor plan",
)


def element(key, kind="module", **facts):
    return {"key": key, "name": key.rpartition(".")[2], "kind": kind, **facts}


@pytest.mark.parametrize("step", OWN_STEPS)
def test_the_stand_ins_own_sentences_name_no_elements(step):
    calls, last = converse(step, WORKFLOW, snapshot=None, system=GOAL, results={"search_elements": {"elements": []}})
    assert {c["arguments"]["query"] for c in calls if c["name"] == "search_elements"} == {"auth"}
    for word in ("`Draw`", "`Survey`", "`Examine`", "Pin the behaviour", "Separate the concerns"):
        assert word not in last.content


def test_the_words_of_somebody_elses_step_still_count():
    calls, _last = converse("Step 1, look: Inspect how billing works.", WORKFLOW, snapshot=None, system=GOAL)
    assert calls[0]["arguments"] == {"query": "auth"}
    calls, _last = converse("Step 1, look: Inspect how billing works.", WORKFLOW, snapshot=None)
    assert calls[0]["arguments"] == {"query": "billing"}


@pytest.mark.parametrize("step", OWN_STEPS)
def test_a_step_on_an_empty_catalogue_says_so_and_proposes_nothing(step):
    _calls, last = converse(step, WORKFLOW, snapshot=None, system=GOAL, results=FOUND_NOTHING)
    assert HINT in last.content
    assert "fill the catalogue" in last.content
    assert "found nothing" not in last.content
    assert "Proposal" not in last.content


@pytest.mark.parametrize(
    "text",
    [
        "Which modules does everything else depend on?",
        "Which elements are the hardest to change, and why?",
        "What is ModelBase?",
        "Which modules import shop.auth?",
        "How many classes are there?",
        "What is in this workspace?",
        "Analyse the auth module and propose a refactor plan",
        "hello",
    ],
)
def test_any_question_about_an_empty_catalogue_gets_the_way_to_fill_it(text):
    _calls, last = converse(text, snapshot=EMPTY, results=FOUND_NOTHING)
    assert last.content.count(HINT) == 1


def test_a_full_catalogue_that_holds_no_match_is_not_called_empty():
    results = {**RESULTS, "search_elements": {"total": 0, "elements": [], "more": False}}
    _calls, last = converse("What is ModelBase?", results=results)
    assert "found nothing" in last.content
    assert "fills it" not in last.content


@pytest.mark.parametrize(
    ("text", "key", "direction"),
    [
        ("Which modules import shop.auth?", "package:shop.auth", "incoming"),
        ("Who imports package:shop.auth?", "package:shop.auth", "incoming"),
        ("What depends on module:shop.auth.models?", "module:shop.auth.models", "incoming"),
        ("Where is shop.auth used?", "package:shop.auth", "incoming"),
        ("Is shop.auth imported by anything?", "package:shop.auth", "incoming"),
        ("What would break if I change shop.auth?", "package:shop.auth", "incoming"),
        ("Show me the importers of shop.auth", "package:shop.auth", "incoming"),
        ("Wer verwendet shop.auth?", "package:shop.auth", "incoming"),
        ("Was hängt von shop.auth ab?", "package:shop.auth", "incoming"),
        ("List the dependencies of shop.auth", "package:shop.auth", "outgoing"),
        ("What does shop.auth import?", "package:shop.auth", "outgoing"),
        ("What is imported by shop.auth?", "package:shop.auth", "outgoing"),
        ("Wovon hängt shop.auth ab?", "package:shop.auth", "outgoing"),
    ],
)
def test_a_question_about_dependencies_looks_the_right_way(text, key, direction):
    calls, _last = converse(text)
    assert [(c["name"], c["arguments"]) for c in calls] == [("list_dependencies", {"key": key, "direction": direction})]


@pytest.mark.parametrize(
    "text", ["Who uses the billing module?", "Which modules import billing?", "which apps use billing"]
)
def test_a_name_without_its_key_is_searched_first(text):
    hits = [
        element("class:shop.Billing", "class"),
        element("function:a.billing", "function"),
        element("module:shop.billing"),
    ]
    dependencies = {"key": "module:shop.billing", "direction": "incoming", "total": 71, "more": True}
    dependencies["dependencies"] = [{"key": f"module:m{n}", "relation": "imports", "times": n} for n in range(50)]
    results = {"search_elements": {"elements": hits}, "list_dependencies": dependencies}
    calls, last = converse(text, results=results)
    assert [(c["name"], c["arguments"]) for c in calls] == [
        ("search_elements", {"query": "billing"}),
        ("list_dependencies", {"key": "module:shop.billing", "direction": "incoming"}),
    ]
    assert "What depends on `module:shop.billing`, from outside it: 71, the first 20\n\n- `module:m0`" in last.content
    assert "class:shop.Billing" not in last.content


def test_that_nothing_depends_on_it_is_told_in_words():
    nothing = {"key": "package:shop.auth", "direction": "incoming", "total": 0, "dependencies": [], "more": False}
    _calls, last = converse("Who imports shop.auth?", results={"list_dependencies": nothing})
    assert "Nothing outside `package:shop.auth` imports it" in last.content


@pytest.mark.parametrize("text", ["How do I use shop.auth?", "Why does shop.auth depend on sessions?"])
def test_how_and_why_are_no_questions_about_a_list(text):
    calls, _last = converse(text)
    assert "list_dependencies" not in [c["name"] for c in calls]


@pytest.mark.parametrize(
    "text",
    [
        "Which modules does everything else depend on?",
        "What are the most used packages?",
        "Which elements are the hardest to change, and why?",
        "Was ist am schwersten zu ändern?",
    ],
)
def test_what_most_others_use_comes_from_the_snapshot(text):
    calls, last = converse(text)
    assert calls == []
    assert last.content.index("1. `package:shop.auth`") < last.content.index("2. `package:shop.orders`")
    calls, last = converse(text, snapshot={"catalog": {}})
    assert [c["name"] for c in calls] == ["catalog_overview"]
    assert "1. `package:shop.auth`" in last.content


def test_a_name_that_holds_a_kind_does_not_restrict_the_search():
    kinds = {"enum": ["package", "module", "model", "class"], "type": "string"}
    chat = json.loads(json.dumps(CHAT).replace(json.dumps(SEARCH_KIND), json.dumps(kinds)))
    for text, arguments in {
        "What is ModelBase?": {"query": "ModelBase"},
        "Where is django.db.models?": {"query": "django.db.models"},
        "Find the invoice module": {"query": "invoice"},
        "Find the invoice models": {"query": "invoice", "kind": "model"},
    }.items():
        calls, _last = converse(text, chat)
        assert calls[0]["arguments"] == arguments, text


SEARCH_KIND = {"enum": ["package", "module", "class"], "type": "string"}


def test_the_element_of_exactly_that_name_is_told_first():
    hits = [element("class:a.ModelBaseTest", "class"), element("class:db.ModelBase", "class", path="db.py", line=9)]
    _calls, last = converse("What is ModelBase?", results={"search_elements": {"total": 2, "elements": hits}})
    assert last.content.startswith("`class:db.ModelBase` is a class in `db.py:9`.")


def test_a_search_of_one_kind_that_finds_nothing_is_made_of_all_kinds():
    calls, _last = converse("Where is the invoice class?", results={"search_elements": {"elements": []}})
    assert [c["arguments"] for c in calls] == [{"query": "invoice", "kind": "class"}, {"query": "invoice"}]


def test_how_many_is_answered_by_the_counts_even_where_a_package_has_the_kinds_name():
    snapshot = {"catalog": {"packages": [{"key": "module:shop.models", "used_by": 1}]}}
    calls, _last = converse("How many models are there?", snapshot=snapshot)
    assert [c["name"] for c in calls] == ["catalog_overview"]
    counts = {"repositories": {"shop": {"class": 16, "model": 3}, "lib": {"model": 2}}, "packages": []}
    _calls, last = converse("How many models are there?", snapshot=snapshot, results={"catalog_overview": counts})
    assert last.content == (
        "- `shop` holds 3 elements of the kind `model`.\n- `lib` holds 2 elements of the kind `model`."
    )
    _calls, last = converse("Wie viele Klassen gibt es?", snapshot=snapshot, results={"catalog_overview": counts})
    assert last.content == "- `shop` enthält 16 Elemente der Art `class`."


def test_one_of_two_words_is_no_definition():
    hits = [element("function:a.url", "function", path="a.py"), element("class:b.URLResolver", "class", path="b.py")]
    _calls, last = converse("Where is the url resolver?", results={"search_elements": {"total": 2, "elements": hits}})
    assert " is a function in " not in last.content


def test_a_page_is_not_taken_for_the_count():
    page = [element(f"module:m{n}") for n in range(20)]
    whole = {"search_elements": {"total": 146, "elements": page, "more": True}}
    _calls, last = converse("middleware", results=whole)
    assert "found 146, the first 20:" in last.content
    assert last.content.count("- `module:m") == 20
    cut = {"search_elements": {"elements": page, "more": True}}
    assert "found more than 20, the first 20:" in converse("middleware", results=cut)[1].content
    _calls, last = converse(OWN_STEPS[0], WORKFLOW, snapshot=None, system=GOAL, results={**RESULTS, **whole})
    assert "found 146, the first 8:" in last.content


def test_a_longer_key_is_not_mistaken_for_the_package_around_it():
    asked = LLMMessage(
        "user", f"Explain shop.auth.tokens\n\n<context>\n{json.dumps({'snapshot': SNAPSHOT})}\n</context>"
    )
    response = LLM.call(ModelRequest(messages=(asked,), tools=CHAT))
    assert [c["arguments"] for c in response.tool_calls or []] == [{"query": "shop.auth.tokens"}]


def test_a_plan_works_on_the_package_of_that_name():
    hits = [
        element("function:a.auth", "function"),
        element("class:a.AuthConfig", "app"),
        element("module:b.auth", "package"),
    ]
    calls, last = converse(
        OWN_STEPS[2], WORKFLOW, snapshot=None, system=GOAL, results={**RESULTS, "search_elements": {"elements": hits}}
    )
    assert [c["arguments"] for c in calls[-2:]] == [{"key": "module:b.auth"}] * 2
    assert "Pin the behaviour of `module:b.auth`" in last.content
    assert "inside `function:a.auth`" not in last.content

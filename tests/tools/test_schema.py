"""Signatures and docstrings become schemas, and JSON becomes what the annotations say (CAP-034)."""

from __future__ import annotations

import enum
import importlib.util
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import jsonschema
import pytest
from pydantic import BaseModel, Field

from llm.types import ToolCall
from tests.tools.conftest import MakeContext, call_of, executor_of
from tools.errors import InvalidArguments, ToolRegistrationError
from tools.registry import Registry, tool
from tools.schema import FunctionSchema, function_schema
from tools.types import ToolContext

CASES = Path(__file__).parents[1] / "fixtures" / "cases"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"case_{name}", CASES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("entry", ["07_schema_types", "09_schema_varargs", "10_schema_docstrings"])
def test_cap_034_schemas_let_through_what_they_should(entry: str, context_of: MakeContext) -> None:
    functions = load(entry).FUNCTIONS
    expect = json.loads((CASES / f"{entry}.expect.json").read_text())

    def schema_of(name: str) -> dict[str, Any]:
        read = function_schema(functions[name])
        return {"description": read.description, "parameters": read.input_schema}

    def call(name: str, arguments: dict[str, Any]) -> Any:
        signature = function_schema(functions[name]).signature
        return signature.call(functions[name], signature.parse(arguments).values, context_of())

    assert load("schema_semantics").judge(expect, schema_of, call) == {"hard": [], "soft": []}


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Window:
    days: int
    start: date | None = None


class Line(TypedDict):
    sku: str
    note: NotRequired[str]


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


def everything(
    colour: Colour,
    window: Window,
    lines: list[Line],
    tree: Tree,
    when: datetime,
    price: Decimal,
    key: UUID,
    copies: Annotated[int, Field(ge=1, description="How many")] = 1,
    size: Literal["s", "l"] | None = None,
    maybe: int | None = None,  # an older spelling that tools may use
) -> str:
    """Take one of each."""
    return ""


SENT: dict[str, Any] = {
    "colour": "red",
    "window": {"days": 2, "start": "2031-02-03"},
    "lines": [{"sku": "a"}, {"sku": "b", "note": "c"}],
    "tree": {"name": "root", "children": [{"name": "leaf"}]},
    "when": "2031-02-03T04:05:06Z",
    "price": "1.10",
    "key": "12345678123456781234567812345678",
}


def parsed(**changes: Any) -> Any:
    return function_schema(everything).signature.parse({**SENT, **changes}).values


def test_a_tool_receives_what_its_annotations_say() -> None:
    values = parsed(size="l")
    assert values["colour"] is Colour.RED
    assert values["window"] == Window(days=2, start=date(2031, 2, 3))
    assert values["lines"] == [{"sku": "a"}, {"sku": "b", "note": "c"}]
    assert values["tree"].children[0].name == "leaf"
    assert values["when"] == datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert (values["price"], values["key"]) == (Decimal("1.10"), UUID(SENT["key"]))
    assert "copies" not in values  # the function's own default applies


def test_the_schema_accepts_what_the_signature_takes_and_has_no_titles() -> None:
    schema = function_schema(everything).input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(SENT, schema)
    assert '"title"' not in json.dumps(schema)
    assert schema["additionalProperties"] is False


def test_parameters_may_have_names_that_pydantic_uses_itself() -> None:
    def odd(schema: str, copy: int, model_config: str = "", title: str = "x", self: int = 1, _hidden: int = 2) -> str:
        """Odd names."""
        return f"{schema}{copy}{model_config}{title}{self}{_hidden}"

    read = function_schema(odd)
    assert set(read.input_schema["properties"]) == {"schema", "copy", "model_config", "title", "self", "_hidden"}
    assert odd(**read.signature.parse({"schema": "s", "copy": 1, "title": "t", "_hidden": 3}).values) == "s1t13"


def test_a_default_of_none_lets_null_through() -> None:
    def f(x: int = None) -> None:  # type: ignore[assignment]  # an older spelling that tools may use  # noqa: RUF013
        pass

    jsonschema.validate({"x": None}, function_schema(f).input_schema)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"window": {"days": "many"}}, "window.days: "),
        ({"lines": [{"sku": "a"}, {}]}, "lines[1].sku: is required"),
        ({"colour": "s3cret"}, "colour: Input should be 'red'"),
        ({"wrong": "s3cret"}, "wrong: is not a parameter"),
        ({"s3cret no word": 1}, "(a name that is no word): is not a parameter"),
        ({"copies": 0}, "copies: "),
        ({"lines": [{"sku": "a\x00"}]}, "lines"),
    ],
)
def test_wrong_arguments_are_named_and_not_echoed(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        parsed(**arguments)
    assert told in caught.value.problems
    assert "s3cret" not in caught.value.problems


def test_a_list_encoded_once_more_as_text_is_decoded_and_text_stays_text() -> None:
    def f(items: list[int], body: str) -> None:
        pass

    values = function_schema(f).signature.parse({"items": "[1, 2]", "body": '{"a": 1}'}).values
    assert values == {"items": [1, 2], "body": '{"a": 1}'}


def undescribed(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...
def untyped(x) -> None: ...  # type: ignore[no-untyped-def]
async def waits(x: int) -> None: ...
def unfillable(x: ToolCall, y: ModuleType) -> None: ...
def user(user_id: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (undescribed, "star parameter"),
        (keywords, "star parameter"),
        (untyped, "no type annotation"),
        (waits, "plain function"),
        (unfillable, "cannot fill a parameter of this type"),
        (user, "the server sets it"),
    ],
)
def test_what_a_model_cannot_fill_is_refused_with_the_reason(fn: Any, reason: str) -> None:
    with pytest.raises(ToolRegistrationError) as caught:
        function_schema(fn)
    assert reason in str(caught.value)
    assert fn.__name__ in str(caught.value)


def test_an_annotation_known_only_to_type_checkers_is_named() -> None:
    def f(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(ToolRegistrationError, match="'Nowhere' cannot be resolved"):
        function_schema(f)


def test_a_tool_may_use_types_of_the_function_that_declares_it() -> None:
    class Local(enum.Enum):
        A = "a"

    local = Registry()

    @tool(effect="read", registry=local)
    def f(x: Local) -> str:
        return x.value

    spec = local.get("f")
    assert spec is not None
    assert spec.signature.parse({"x": "a"}).values == {"x": Local.A}


def test_cap_036_context_and_ids_are_injected_and_hidden(context_of: MakeContext) -> None:
    def f(user_id: int, scope_id: str, who: ToolContext | None, text: str) -> str:
        assert who is not None
        return f"{user_id} {scope_id} {who.correlation_id} {text}"

    read: FunctionSchema = function_schema(f)
    assert set(read.input_schema["properties"]) == {"text"}
    arguments = read.signature.parse({"text": "t", "user_id": 99, "scope_id": "other", "who": {}})
    context = context_of()
    assert arguments.dropped == ("user_id", "scope_id", "who")
    assert arguments.stored == {"text": "t"}
    assert read.signature.call(f, arguments.values, context) == (
        f"{context.user.pk} {context.workspace.scope_id} c-1 t"
    )


def test_cap_036_ids_the_model_sends_to_a_tool_without_them_are_dropped(
    context_of: MakeContext, caplog: pytest.LogCaptureFixture
) -> None:
    local = Registry()

    @tool(effect="read", registry=local)
    def echo(text: str) -> str:
        return text

    envelope = executor_of(local).execute(call_of("echo", text="t", user_id=99), context=context_of())
    assert envelope == {"success": True, "result": "t", "error": None}
    assert "the model sent user_id to echo" in caplog.text

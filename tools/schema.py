"""From a plain typed function to the schema a model reads and the values the function gets (CAP-034).

pydantic does the work: one model a function, its fields under the parameters' names as aliases, so that no parameter
name can collide with one of pydantic's own.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails, PydanticUndefined

from tools.docstrings import described
from tools.errors import InvalidArguments, ToolRegistrationError
from tools.types import Arguments, ToolContext
from tools.values import clean_text, storable

SERVER_SET: Mapping[str, Callable[[ToolContext], int]] = {
    "user_id": lambda context: context.user.pk,
    "scope_id": lambda context: context.workspace.pk,
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SAFE_KEY = re.compile(r"\w{1,64}")
_WANTS_CONTAINER = {"list_type", "dict_type", "model_type", "model_attributes_type", "dataclass_type", "tuple_type"}


class _Schema(GenerateJsonSchema):
    """pydantic's generator, without what costs most for a few hundred tools: an adapter for each plain default."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}
    mode = "validation"  # in pydantic a property that asks the configuration each time

    def encode_default(self, dft: Any) -> Any:
        return dft if dft is None or type(dft) in (bool, int, float, str) else super().encode_default(dft)


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """How one function takes its arguments; made once, when the tool is registered."""

    model: type[BaseModel]
    fields: tuple[tuple[str, str, bool], ...]  # parameter, field of the model, has a default in the signature
    positional: tuple[str, ...]
    context_names: tuple[str, ...]
    server_set: tuple[tuple[str, type], ...]

    def parse(self, arguments: Mapping[str, Any]) -> Arguments:
        """Validate what the model sent (CAP-031, CAP-036).

        Raises:
            InvalidArguments: names the fields that do not fit, and echoes no value.
        """
        hidden = {*SERVER_SET, *self.context_names}
        dropped = tuple(name for name in arguments if name in hidden)
        sent = {name: value for name, value in arguments.items() if name not in hidden} if dropped else arguments
        unclean = unstorable_names(sent)
        if unclean:
            raise InvalidArguments(f"arguments hold NUL or broken characters: {', '.join(unclean)}")
        try:
            parsed = self.model.model_validate(sent)
        except ValidationError as exc:
            sent = _unpacked(sent, exc)
            try:
                parsed = self.model.model_validate(sent)
            except ValidationError as second:
                raise InvalidArguments(_problems(second)) from None
        given = parsed.model_fields_set
        values = {
            name: getattr(parsed, field)
            for name, field, has_default in self.fields
            if field in given or not has_default
        }
        return Arguments(values=values, stored=storable(dict(sent), "arguments"), dropped=dropped)

    def call(self, fn: Callable[..., Any], values: Mapping[str, Any], context: ToolContext) -> Any:
        """Call `fn` with typed values, the context where it asks for it, and the ids that only the server sets."""
        named = dict(values)
        for name in self.context_names:
            named[name] = context
        for name, kind in self.server_set:
            named[name] = kind(SERVER_SET[name](context))
        if not self.positional:
            return fn(**named)
        return fn(*[named.pop(name) for name in self.positional if name in named], **named)


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """What a function looks like to a model."""

    description: str
    input_schema: dict[str, Any]
    signature: FunctionSignature


def function_schema(fn: Callable[..., Any], *, local_names: Mapping[str, Any] | None = None) -> FunctionSchema:
    """Read a function once.

    Args:
        fn: plain and typed; its docstring describes it and its parameters.
        local_names: names its string annotations may use besides its module's.

    Raises:
        ToolRegistrationError: it has a parameter that a model cannot fill; the details name it and the cure.

    Source: CAP-034.
    """
    name = getattr(fn, "__name__", "")
    if not _NAME.fullmatch(name):
        raise ToolRegistrationError(tool=name, reason="a tool's name is 1 to 64 letters, digits, _ or - (ASCII)")
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ToolRegistrationError(tool=name, reason="a tool is a plain function; wrap what is async or a generator")
    parameters = inspect.signature(fn).parameters
    hints = _hints(fn, name, local_names)
    docs = described(fn.__doc__)
    definitions: dict[str, Any] = {}
    fields: list[tuple[str, str, bool]] = []
    positional: list[str] = []
    context_names: list[str] = []
    server_set: list[tuple[str, type]] = []
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ToolRegistrationError(
                tool=name,
                parameter=str(parameter).split(":")[0],
                reason="a model cannot fill a star parameter; name each parameter, or take a list or a dict",
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(parameter.name)
        if parameter.name not in hints:
            raise ToolRegistrationError(tool=name, parameter=parameter.name, reason="it has no type annotation")
        hint = hints[parameter.name]
        if _is_context(hint):
            context_names.append(parameter.name)
        elif parameter.name in SERVER_SET:
            server_set.append((parameter.name, _id_type(name, parameter.name, hint)))
        else:
            field = f"p{len(fields)}"
            fields.append((parameter.name, field, parameter.default is not parameter.empty))
            definitions[field] = _field(parameter, _portable(hint, name), docs.parameters.get(parameter.name, ""))
    model = _model(name, definitions, [parameter for parameter, _, _ in fields])
    signature = FunctionSignature(
        model=model,
        fields=tuple(fields),
        positional=tuple(positional),
        context_names=tuple(context_names),
        server_set=tuple(server_set),
    )
    return FunctionSchema(
        description=docs.text or name.replace("_", " "),
        input_schema=_input_schema(name, model),
        signature=signature,
    )


def unstorable_names(arguments: Mapping[str, Any]) -> list[str]:
    """Names of arguments that hold text PostgreSQL refuses, or numbers JSON has not."""
    return [
        clean_text(str(name))[:64]
        for name, value in arguments.items()
        if clean_text(str(name)) != name or storable(value) != value
    ]


def _hints(fn: Callable[..., Any], name: str, local_names: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn, localns=dict(local_names or {}), include_extras=True)
    except NameError as exc:
        raise ToolRegistrationError(
            tool=name,
            reason=f"annotation {exc.name!r} cannot be resolved when the process runs",
            cure="import it outside `if TYPE_CHECKING:`",
        ) from exc


def _is_context(hint: Any) -> bool:
    if get_origin(hint) in (typing.Annotated, Union, types.UnionType):
        return any(_is_context(part) for part in get_args(hint))
    return hint is ToolContext


def _id_type(tool: str, parameter: str, hint: Any) -> type:
    if get_origin(hint) in (typing.Annotated, Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if hint in (int, str):
        return typing.cast(type, hint)
    raise ToolRegistrationError(tool=tool, parameter=parameter, reason="the server sets it, as an int or a str")


def _field(parameter: inspect.Parameter, hint: Any, doc: str) -> tuple[Any, Any]:
    default = parameter.default
    if default is None and not _allows_none(hint):
        hint = hint | None if not isinstance(hint, str) else hint
    options: dict[str, Any] = {"alias": parameter.name}
    if doc and not _has_description(hint):
        options["description"] = " ".join(doc.split()) if "\n-" not in doc else doc
    if default is not parameter.empty:
        options["default"] = default
    return hint, Field(**options)


def _allows_none(hint: Any) -> bool:
    if get_origin(hint) in (typing.Annotated, Union, types.UnionType):
        return any(_allows_none(part) for part in get_args(hint))
    return hint in (None, type(None), Any)


def _has_description(hint: Any) -> bool:
    return any(isinstance(part, FieldInfo) and part.description for part in getattr(hint, "__metadata__", ()))


def _model(tool: str, definitions: dict[str, Any], names: list[str]) -> type[BaseModel]:
    try:
        return create_model(f"{tool}_arguments", __config__=ConfigDict(extra="forbid"), **definitions)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as exc:
        raise ToolRegistrationError(
            tool=tool, parameters=names, reason="a model cannot fill a parameter of this type: " + _first_line(exc)
        ) from exc


def _input_schema(tool: str, model: type[BaseModel]) -> dict[str, Any]:
    try:
        schema = model.model_json_schema(by_alias=True, schema_generator=_Schema)
    except PydanticInvalidForJsonSchema as exc:
        raise ToolRegistrationError(tool=tool, reason=_first_line(exc)) from exc
    schema.setdefault("properties", {})
    untitled: dict[str, Any] = _untitled(schema)
    return untitled


def _untitled(schema: Any, *, names: bool = False) -> Any:
    """The schema without the titles pydantic gives; `names`: the keys at this level are names, not keywords."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value
        if key in ("default", "enum", "const", "examples") and not names
        else _untitled(value, names=not names and key in ("properties", "$defs", "patternProperties"))
        for key, value in schema.items()
        if names or key != "title"
    }


def _portable(hint: Any, tool: str) -> Any:
    """`hint` with each `typing.TypedDict` rebuilt as pydantic wants it before Python 3.12."""
    if sys.version_info >= (3, 12):
        return hint
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        return _portable_typed_dict(hint, tool)
    parts, origin = get_args(hint), get_origin(hint)
    if not parts or origin is typing.Literal:
        return hint
    if origin is typing.Annotated:
        return typing.Annotated[(_portable(parts[0], tool), *hint.__metadata__)]
    rebuilt = tuple(_portable(part, tool) for part in parts)
    if rebuilt == parts:
        return hint
    if origin in (Union, types.UnionType):
        return Union[rebuilt]  # noqa: UP007  # built from a tuple
    return origin[rebuilt if len(rebuilt) > 1 else rebuilt[0]]


def _portable_typed_dict(hint: Any, tool: str) -> Any:
    keys: dict[str, Any] = {}
    for key, part in typing.get_type_hints(hint, include_extras=True).items():
        required = key in hint.__required_keys__
        while get_origin(part) in (typing.Required, typing.NotRequired):
            required = get_origin(part) is typing.Required
            part = get_args(part)[0]
        if part is hint:
            raise ToolRegistrationError(
                tool=tool, reason=f"{hint.__name__} refers to itself", cure="use typing_extensions.TypedDict"
            )
        part = _portable(part, tool)
        keys[key] = part if required else typing_extensions.NotRequired[part]
    rebuilt = typing_extensions.TypedDict(hint.__name__, keys)  # type: ignore[misc]  # known at run time
    rebuilt.__doc__ = hint.__doc__
    return rebuilt


def _unpacked(sent: Mapping[str, Any], exc: ValidationError) -> Mapping[str, Any]:
    """`sent` with lists and objects that the model encoded once more as text decoded, where only those fit."""
    again = dict(sent)
    for error in exc.errors(include_url=False, include_context=False):
        location = error["loc"]
        if error["type"] in _WANTS_CONTAINER and len(location) == 1 and isinstance(again.get(str(location[0])), str):
            try:
                value = json.loads(again[str(location[0])])
            except ValueError:
                continue
            if isinstance(value, (dict, list)) and storable(value) == value:
                again[str(location[0])] = value
    return again


def _problems(exc: ValidationError) -> str:
    told = [
        f"{path_of(error['loc'])}: {_reason(error)}" for error in exc.errors(include_url=False, include_context=False)
    ]
    return "wrong arguments: " + "; ".join(dict.fromkeys(told))


def path_of(location: tuple[int | str, ...]) -> str:
    """A path such as `items[2].sku`; a name that is no plain word is not repeated."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += ("." if path else "") + (part if _SAFE_KEY.fullmatch(part) else "(a name that is no word)")
    return path or "(arguments)"


def _reason(error: ErrorDetails) -> str:
    if error["type"] == "missing":
        return "is required"
    if error["type"] == "extra_forbidden":
        return "is not a parameter"
    sent = error.get("input", PydanticUndefined)
    text = str(sent)
    if error["type"] in ("value_error", "assertion_error", "union_tag_invalid") and text and text in error["msg"]:
        return "is not valid"
    return error["msg"]


def _first_line(exc: Exception) -> str:
    return str(exc).strip().splitlines()[0]

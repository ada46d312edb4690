"""Checks a JSON value against a JSON Schema or a Pydantic type, and names the places that do not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


class Check:
    """Checks a value: the value to hand out, and what is wrong with it."""

    def __call__(self, value: Any) -> tuple[Any, list[str]]:
        raise NotImplementedError


class _SchemaCheck(Check):
    def __init__(self, schema: Schema) -> None:
        import jsonschema

        self._validator = jsonschema.Draft202012Validator(dict(schema))

    def __call__(self, value: Any) -> tuple[Any, list[str]]:
        errors = sorted(self._validator.iter_errors(value), key=lambda error: list(map(str, error.absolute_path)))
        return value, [f"{error.json_path}: {_reason(error)}" for error in errors[:20]]


class _ModelCheck(Check):
    def __init__(self, model: Any) -> None:
        from pydantic import TypeAdapter

        self._adapter: TypeAdapter[Any] = TypeAdapter(model)

    def __call__(self, value: Any) -> tuple[Any, list[str]]:
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(json.dumps(value), strict=True), []
        except ValidationError as exc:
            faults = exc.errors(include_url=False, include_context=False, include_input=False)
            return None, ["$" + "".join(f".{part}" for part in f["loc"]) + f": {f['msg']}" for f in faults[:20]]


def _reason(error: Any) -> str:
    """Why, without the value itself."""
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"missing {', '.join(missing)}"
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        return f"unknown {', '.join(sorted(set(error.instance) - set(known))[:5])}"
    return f"does not meet {error.validator}: {json.dumps(error.validator_value, default=str)[:120]}"


def checker(schema: type[Any] | Schema) -> Check:
    """The check for a schema or a type."""
    return _SchemaCheck(schema) if isinstance(schema, Mapping) else _ModelCheck(schema)


def wants_array(schema: type[Any] | Schema) -> bool:
    """Whether the schema asks for an array."""
    return isinstance(schema, Mapping) and schema.get("type") == "array"


def json_schema(schema: type[Any] | Schema) -> dict[str, Any]:
    """The JSON Schema of a model, or the schema itself."""
    if isinstance(schema, Mapping):
        return dict(schema)
    from pydantic import TypeAdapter

    return TypeAdapter(schema).json_schema()

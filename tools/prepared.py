"""A hot statement, prepared by the server and sent through Django's connection."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Field, JSONField, Model
from psycopg.raw_cursor import RawCursor

M = TypeVar("M", bound=Model)
_NAMED = re.compile(r"%\((\w+)\)s")


class Prepared:
    """One statement whose parsing and planning are paid once a connection (`prepare_threshold` of the settings).

    Django's error classes and query log stay; psycopg neither splits the text nor looks for parameters at each call.

    Args:
        text: SQL with `%(name)s` for each parameter. Give whole numbers as `Int8`: the type of a plain `int` follows
            its size, and every mix of types is prepared apart.
    """

    __slots__ = ("names", "text")

    def __init__(self, text: str) -> None:
        places: dict[str, int] = {}
        self.text = _NAMED.sub(lambda named: f"${places.setdefault(named[1], len(places) + 1)}", " ".join(text.split()))
        self.names = tuple(places)

    def row(self, params: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """The first row that the statement returns; None: there is none.

        Raises:
            KeyError: a parameter is missing.
        """
        connection.ensure_connection()
        raw: Any = connection
        cursor_class: Any = RawCursor
        with raw._prepare_cursor(cursor_class(raw.connection)) as cursor:
            cursor.execute(self.text, [params[name] for name in self.names])
            found: tuple[Any, ...] | None = cursor.fetchone()
        return found


def columns_of(model: type[Model], alias: str) -> str:
    """Every column of a model, for a statement's RETURNING or SELECT."""
    return ", ".join(f'{alias}."{field.column}"' for field in _fields(model))


def instance_of(
    model: type[M], row: Sequence[Any], *, names: Sequence[str] | None = None, parents: Sequence[str] = ()
) -> M:
    """The instance that a row holds, read as the ORM reads it.

    Args:
        row: the values of `columns_of(model)`, then those of each parent; or of the fields that `names` names.
        names: attribute names; the other fields are deferred. None: all fields.
        parents: foreign keys whose rows follow, none of them null.
    """
    fields = _fields(model) if names is None else _named(model, tuple(names))
    assert len(row) >= len(fields), f"{len(row)} values for {len(fields)} columns of {model._meta.label}"
    found = model.from_db(DEFAULT_DB_ALIAS, [f.attname for f in fields], _values(fields, row))
    start = len(fields)
    for name in parents:
        field: Any = model._meta.get_field(name)
        parent: type[Model] = field.related_model
        own = _fields(parent)
        values = _values(own, row[start : start + len(own)])
        setattr(found, name, parent.from_db(DEFAULT_DB_ALIAS, [f.attname for f in own], values))
        start += len(own)
    return found


def inserted(model: type[Model], *, but: Sequence[str] = ()) -> tuple[str, str]:
    """What an INSERT from `json_row` names: the columns, and the record that `jsonb_to_record` makes of it.

    Args:
        but: columns that the statement fills itself, beside the key.
    """
    fields = [field for field in _fields(model) if not field.primary_key and field.column not in but]
    columns = [str(field.column) for field in fields]
    return ", ".join(f'"{column}"' for column in columns), record_of(model, columns)


def record_of(model: type[Model], columns: Sequence[str]) -> str:
    """Columns with their types, as `jsonb_to_record` wants them."""
    by_column = {field.column: field for field in _fields(model)}
    return ", ".join(f'"{column}" {_type(by_column[column])}' for column in columns)


def json_row(row: Model) -> str:
    """A new instance by its columns, the key left to the database.

    Raises:
        TypeError: a JSON column holds what is not plain JSON.
    """
    return json.dumps(_by_column(row), ensure_ascii=False)


def json_rows(rows: Sequence[Model]) -> str:
    """New instances by their columns, for `jsonb_to_recordset`."""
    return json.dumps([_by_column(row) for row in rows], ensure_ascii=False)


def stored(row: Model, pk: int) -> None:
    """The instance is in the database under this key now."""
    row.pk = pk
    row._state.adding = False
    row._state.db = DEFAULT_DB_ALIAS


def _by_column(row: Model) -> dict[str, Any]:
    return {str(field.column): _written(field, row) for field in _fields(type(row)) if not field.primary_key}


def _written(field: Field[Any, Any], row: Model) -> Any:
    """A column's value as JSON has it: times to the microsecond, numbers and keys in full."""
    value = field.pre_save(row, True)
    if isinstance(field, JSONField) or value is None or isinstance(value, str | int | float):
        return value
    return value.isoformat() if isinstance(value, date) else str(value)


def _type(field: Field[Any, Any]) -> str:
    """The column's type in PostgreSQL."""
    return str(field.rel_db_type(connection) if field.is_relation else field.db_type(connection))


def _values(fields: Sequence[Field[Any, Any]], row: Sequence[Any]) -> list[Any]:
    return [
        field.from_db_value(value, None, connection) if hasattr(field, "from_db_value") else value
        for field, value in zip(fields, row, strict=False)
    ]


@cache
def _fields(model: type[Model]) -> tuple[Field[Any, Any], ...]:
    return tuple(model._meta.concrete_fields)


@cache
def _named(model: type[Model], names: tuple[str, ...]) -> tuple[Field[Any, Any], ...]:
    named = tuple(field for field in model._meta.concrete_fields if field.attname in names)
    if tuple(field.attname for field in named) != names:  # `from_db` hands values out in the model's order
        raise ValueError(f"{model._meta.label}: name the fields in the order of the model, and only such as it has")
    return named

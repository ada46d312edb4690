"""JSON that PostgreSQL can keep, made from whatever a tool returns; canonical text and digests of it (CAP-031)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from django.db import models
from pydantic import BaseModel

from tools.errors import NotStorable

REPLACEMENT = "\ufffd"
LONGEST_INT_BITS = 13_288  # 4,000 digits: Python writes and reads no number that is much longer


def storable(value: Any, where: str = "result") -> Any:
    """Plain JSON of `value`, a fresh copy.

    Dates become ISO 8601, Decimal and UUID text, enums their values, dataclasses and pydantic models objects, iterables
    lists; NaN and infinities become their names, NUL and lone surrogates U+FFFD.

    Raises:
        NotStorable: `where` holds something else, such as bytes or a model instance.

    Source: CAP-031.
    """
    kind = type(value)
    if value is None or kind is bool or (kind is int and value.bit_length() <= LONGEST_INT_BITS):
        return value
    if kind is str:
        return clean_text(value)
    if kind is float:
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {_key(key, where): storable(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(item, f"{where}[{index}]") for index, item in enumerate(value)]
    return _converted(value, where)


def _converted(value: Any, where: str) -> Any:
    if isinstance(value, Enum):
        return storable(value.value, where)
    if isinstance(value, int) and value.bit_length() > LONGEST_INT_BITS:
        raise NotStorable(where, "is a number of more than 4,000 digits; return it as text")
    if isinstance(value, (bool, int, float)):
        return storable(float(value) if isinstance(value, float) else int(value), where)
    if isinstance(value, (str, Decimal, UUID, PurePath)):
        return clean_text(str(value))
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, BaseModel):
        return storable(value.model_dump(), where)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: storable(getattr(value, field.name), f"{where}.{field.name}") for field in fields(value)}
    if isinstance(value, models.Model):
        raise NotStorable(where, f"is a {type(value).__name__} row; return the values that the model should read")
    if isinstance(value, (set, frozenset)):
        return sorted((storable(item, where) for item in value), key=canonical)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [storable(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise NotStorable(where, f"is of type {type(value).__name__}, which JSON cannot hold")


def _key(key: Any, where: str) -> str:
    if isinstance(key, str):
        return clean_text(str(key))
    if key is None or isinstance(key, (bool, int, float, Enum, date, UUID, Decimal)):
        return str(storable(key, where))
    raise NotStorable(where, f"has a key of type {type(key).__name__}, which JSON cannot hold")


def clean_text(text: str) -> str:
    """`text` without what PostgreSQL refuses: NUL and lone surrogates become U+FFFD."""
    if "\x00" in text:
        text = text.replace("\x00", REPLACEMENT)
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(REPLACEMENT if "\ud800" <= character <= "\udfff" else character for character in text)
    return text


def canonical(value: Any) -> str:
    """One spelling for equal JSON: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any) -> str:
    """sha256 of the canonical JSON, 64 hex digits (CAP-035)."""
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()

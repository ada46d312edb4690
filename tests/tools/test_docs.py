"""What docs/tools.md shows runs (documentation examples run)."""

from __future__ import annotations

import re
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from tests.tools.conftest import MakeContext
from tools.registry import Registry, tool

DOCS = Path(__file__).parents[2] / "docs" / "tools.md"


def test_the_example_is_a_tool(context_of: MakeContext) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    local = Registry()
    namespace: dict[str, Any] = {"__name__": "example", "tool": partial(tool, registry=local)}
    exec(code.replace("from tools.registry import tool\n", ""), namespace)  # the process's registry is frozen
    spec = local.get("book_room")
    assert spec is not None
    assert spec.input_schema["properties"]["day"] == {
        "type": "string",
        "format": "date",
        "description": "the day wanted.",
    }
    values = spec.signature.parse({"day": "2031-02-03", "seats": 2}).values
    assert values == {"day": date(2031, 2, 3), "seats": 2}
    assert spec.signature.call(spec.fn, values, context_of()) == {"room": "small 03.02.", "booked_by": "mia"}

"""`llm.structured` is the one place where model text becomes data (CAP-009): nothing else in the product parses it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")
LENIENT = {"json_repair", "json5", "demjson3", "dirtyjson", "hjson", "partial_json_parser", "jiter"}
STRICT = {"blackboard", "catalog", "factory", "learning", "loop"}  # rooms whose JSON comes from models alone
TEXTS = {"content", "llm_synthesis", "thinking"}  # attributes that hold what a model wrote
MARKUP = re.compile(r"`{3}|<\W*/?\W*think|</think")


def sources():
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "migrations" not in path.parts]
    return [path for path in files if path.relative_to(ROOT).parts[0] != "llm"]


def faults(source: str, *, strict: bool = False) -> list[str]:
    """What in a module parses model text by itself; strictly, any JSON counts."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [f"line {node.lineno}: imports {name}" for name in names if name.split(".")[0] in LENIENT]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = f"{ast.unparse(node.func.value)}.{node.func.attr}"
            parses = name in ("json.loads", "json.JSONDecoder", "ast.literal_eval")
            if parses and (strict or _holds_model_text(node)):
                found.append(f"line {node.lineno}: {name} of model text")
            if name.startswith("re.") and any(_is_markup(argument) for argument in node.args):
                found.append(f"line {node.lineno}: looks for fences or thinking tags by itself")
    return found


def _holds_model_text(call: ast.Call) -> bool:
    nodes = [inner for argument in call.args for inner in ast.walk(argument)]
    return any(
        isinstance(node, ast.Attribute) and node.attr in TEXTS and "exchange" not in ast.unparse(node) for node in nodes
    )


def _is_markup(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and MARKUP.search(node.value) is not None


def test_no_other_parser_of_model_text():
    found = {}
    for path in sources():
        name = path.relative_to(ROOT)
        found[str(name)] = faults(path.read_text(encoding="utf-8"), strict=name.parts[0] in STRICT)
    assert len(found) > 50
    assert {path: wrong for path, wrong in found.items() if wrong} == {}, "use llm.structured"


@pytest.mark.parametrize(
    "source",
    [
        "import json_repair",
        "from json_repair import loads",
        "value = json.loads(response.content)",
        "value = json.loads(step.llm_synthesis.strip())",
        'text = re.sub(r"```json(.*)```", "", text)',
        'text = re.compile("<think>.*</think>")',
    ],
)
def test_the_rule_finds_what_it_is_for(source):
    assert faults(source)


def test_where_all_json_is_a_models_any_parser_counts():
    assert faults("said = json.loads(inside)", strict=True)


def test_the_rule_leaves_other_json_alone():
    assert faults("value = json.loads(request.body)\nre.compile('[a-z]+')") == []

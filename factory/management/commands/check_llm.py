"""Try each tier's model with short calls: does it answer, stream, call a tool, follow a schema (CAP-122)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from factory.tiers import llm_settings, model_problems
from llm.adapters import build
from llm.errors import LLMError, LLMTruncated, StructuredError
from llm.ports import BaseLLM
from llm.settings import TIERS, LLMSettings
from llm.structured import extract
from llm.types import LLMMessage, ModelRequest, TextDelta, ToolSchema

CURES = {
    "llm.connection": "is its server running? {url} sets the address",
    "llm.timeout": "is its server running? {url} sets the address",
    "llm.authentication": "it does not take the key in {key}",
    "llm.permission": "this key may not use the model; choose another in LLM_TIER_{tier}",
    "llm.model_not_found": "it has no such model; choose one that it lists in LLM_TIER_{tier}",
    "llm.quota_exhausted": "the account has no credit left",
}
TOOLS_WIDTH = 28
ROOM_TOKENS = 512  # for an answer; a model may think before it calls
CUT = f"accepted, but cut at {ROOM_TOKENS} tokens"
SAY_BACK: ToolSchema = {
    "name": "say_back",
    "description": "Say a word back to the user.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}
OK_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


class Command(BaseCommand):
    help = "Try each tier's model with short calls, and say what it can do."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--start", action="store_true", help="only ask whether the models are there; no paid call")

    def handle(self, *args: Any, start: bool = False, **options: Any) -> None:
        if wrong := model_problems():
            lines = "; ".join(f"{setting} {problem}: {hint}" for setting, problem, hint in wrong)
            raise CommandError(f"No model is configured. {lines}.", returncode=2)
        chosen = llm_settings()
        self._check_ids(chosen)
        if start:
            return
        self.stdout.write(
            f"{'tier':<10} {'provider':<10} {'model':<32} {'ms':>6}  streaming  {'tools':<{TOOLS_WIDTH}}  structured"
        )
        failed = False
        for tier in TIERS:
            try:
                self.stdout.write(_row(chosen, tier, chosen.model(tier)))
            except LLMError as exc:
                failed = True
                self.stdout.write(
                    f"{tier:<10} {chosen.provider:<10} {chosen.model(tier):<32} {exc.code}: {_cure(exc, chosen, tier)}"
                )
        if failed:
            raise CommandError("not every tier answers", returncode=1)

    def _check_ids(self, chosen: LLMSettings) -> None:
        try:
            listed = build(chosen, chosen.model("execution")).models()
        except LLMError as exc:
            raise CommandError(
                f"The model does not answer at {chosen.address} (LLM_PROVIDER={chosen.provider}, {exc.code}): "
                f"{_cure(exc, chosen, 'execution')}.",
                returncode=2,
            ) from exc
        if listed is None:
            return
        for tier in TIERS:
            model = chosen.model(tier)
            if not _listed(model, listed, chosen.provider):
                cure = f"ollama pull {model}" if chosen.provider == "ollama" else f"set LLM_TIER_{tier.upper()}"
                raise CommandError(f"The provider does not list the model {model!r}: {cure}", returncode=2)


def _listed(model: str, listed: list[str], provider: str) -> bool:
    return model in listed or (provider == "ollama" and ":" not in model and f"{model}:latest" in listed)


def _cure(exc: LLMError, chosen: LLMSettings, tier: str) -> str:
    words = CURES.get(exc.code)
    if words is None:
        return str(exc)
    return words.format(url=chosen.url_setting, key=chosen.key_setting or "its settings", tier=tier.upper())


def _row(chosen: LLMSettings, tier: Any, model: str) -> str:
    llm = build(chosen, model)
    deltas: list[str] = []
    began = time.monotonic()
    with contextlib.suppress(LLMTruncated):  # it answers; that is what was asked
        llm.call(
            ModelRequest(messages=_asked("Say ok."), max_tokens=16),
            on_event=lambda event: deltas.append(event.text) if isinstance(event, TextDelta) else None,
        )
    latency = int((time.monotonic() - began) * 1000)
    streaming, tools, structured = "yes" if deltas else "no", _can(_calls, llm), _can(_follows, llm)
    shown = f"{tier:<10} {chosen.provider:<10} {model:<32} {latency:>6}  {streaming:<9}"
    return f"{shown}  {tools:<{TOOLS_WIDTH}}  {structured}"


def _asked(text: str) -> tuple[LLMMessage]:
    return (LLMMessage(role="user", content=text),)


def _calls(llm: BaseLLM) -> str:
    """Whether the model calls a tool that it is told to call, as a turn offers one."""
    told = _asked("Call the tool say_back with the word 'ready'. Answer with the call alone.")
    answer = llm.call(ModelRequest(messages=told, tools=(SAY_BACK,), max_tokens=ROOM_TOKENS))
    if any(call["name"] == SAY_BACK["name"] for call in answer.tool_calls or ()):
        return "yes"
    return CUT if answer.stop_reason == "max_tokens" else "accepted, but did not call"


def _follows(llm: BaseLLM) -> str:
    """Whether the model's answer follows a schema."""
    told = _asked('Answer with this JSON and nothing else: {"ok": true}')
    answer = llm.call(ModelRequest(messages=told, response_schema=OK_SCHEMA, max_tokens=ROOM_TOKENS))
    try:
        extract(answer.content, OK_SCHEMA)
    except StructuredError:
        return CUT if answer.stop_reason == "max_tokens" else "accepted, but did not follow"
    return "yes"


def _can(probe: Callable[[BaseLLM], str], llm: BaseLLM) -> str:
    try:
        return probe(llm)
    except LLMTruncated:
        return CUT
    except LLMError as exc:
        return f"no ({exc.code})"

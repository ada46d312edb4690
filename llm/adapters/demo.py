"""The rule-based stand-in: shows the whole product without a key (design § 9). It is no model and says so.

It picks tools from the schemas it is offered, fills their arguments from message, snapshot and results, and answers
from what came back. It never calls a tool that is not offered, and never more than two rounds of them for one message.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llm.adapters import demo_asking as asking
from llm.adapters import demo_d1 as d1
from llm.adapters import demo_tools as tools
from llm.adapters import demo_writing as writing
from llm.adapters.base import AsyncAdapter
from llm.adapters.demo_plan import plan
from llm.adapters.demo_reading import Reading, Thing, closest, keys_in
from llm.arguments import tool_call
from llm.tokens import estimate_request, estimate_tokens
from llm.types import (
    End,
    LLMResponse,
    ModelEvent,
    ModelRequest,
    StopReason,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolSchema,
    Usage,
    UsageDelta,
)

MAX_ROUNDS = 2
_PLANNING = re.compile(
    r"\banaly[sz]|\bplan\b|\brefactor|\bmigrat|\brestructur|\bredesign|\bmoderni[sz]|\baudit|\breview|\binvestigat"
    r"|\bimprov|\bpropos|\broadmap|\banalysier|\buntersuch|\büberarbeit|\bumbau|\brefaktor|\bplane\b|\bprüf|\bverbesser"
    r"|\bvorschlag|\bentwirf",
    re.I,
)
_ASKING = re.compile(
    r"\W*(who|what|which|where|when|why|how|is|are|does|do|did|has|have|was|were"
    r"|wer|was|welche\w*|wo|wann|warum|wieso|wie|ist|sind|gibt|hat|haben)\b",
    re.I,
)
_POLITE = re.compile(r"\b(could you|can you|would you|will you|please|kannst du|könntest du|würdest du|bitte)\b", re.I)
_ORDER = r"(?:^|[.;:!?\n]\s*|\b(?:please|bitte|and|und|then|dann|call|a|eine|the|you|du)\s+)(?:{})"
_SMALL_TALK = re.compile(r"\W*(hi|hello|hey|hallo|guten tag|moin|servus|thanks?|thank you|danke)\b", re.I)


@dataclass(frozen=True, slots=True)
class Move:
    """What the stand-in does with one request."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


class DemoLLM(AsyncAdapter):
    """Answers by rule, in the shape and rhythm of a model; its usage is estimated."""

    provider = "demo"

    def make_client(self) -> None:
        return None

    @property
    def client(self) -> None:
        """There is no server behind it."""
        return None

    async def model_ids(self) -> list[str] | None:
        return ["demo"]

    async def events(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[ModelEvent, None]:
        move = decide(request)
        said: list[str] = []
        stop: StopReason = "tool_use" if move.calls else "end_turn"
        budget = max(1, request.max_tokens)
        for word in re.findall(r"\S+\s*|\s+", move.text):
            budget -= max(1, len(word) // 5)
            if budget < 0:
                stop = "max_tokens"
                break
            if stream and self.settings.demo_delay_s:
                await asyncio.sleep(self.settings.demo_delay_s)
            said.append(word)
            yield TextDelta(word)
        calls = move.calls if stop == "tool_use" else []
        for index, call in enumerate(calls):
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            yield ToolCallDelta(index, id=call["id"], name=call["name"], arguments=arguments)
        text = "".join(said)
        spent = estimate_tokens(text) + sum(estimate_tokens(json.dumps(call["arguments"])) + 5 for call in calls)
        usage = Usage(input_tokens=estimate_request(request), output_tokens=spent)
        yield UsageDelta(usage)
        yield End(LLMResponse(text, calls or None, stop, model=self.model_id, usage=usage))


def decide(request: ModelRequest) -> Move:
    """The stand-in's answer to a request: words, calls, or both.

    Args:
        request: as any adapter gets it.
    """
    reading = Reading(request)
    move = _decide(request, reading)
    ends = not move.calls or any(call["name"] == "create_plan" for call in move.calls)
    if ends and "</board>" in reading.system and not reading.is_step:
        return replace(move, text=f"{move.text}\n\n{writing.board(reading, [call['name'] for call in move.calls])}")
    return move


def _decide(request: ModelRequest, reading: Reading) -> Move:
    batch = d1.candidates(reading)
    if batch is not None:
        return Move(d1.verdicts(batch, reading))
    if request.response_schema is not None:
        return Move(json.dumps(tools.example(request.response_schema, reading), ensure_ascii=False))
    if '"satisfaction"' in reading.text:
        return Move(writing.assessment(reading))
    offered = list(request.tools) if request.tool_choice != "none" else []
    if offered and reading.rounds < MAX_ROUNDS:
        move = _with_tools(reading, offered)
        if move is not None:
            return move
    if request.tool_choice == "required":
        forced = _forced(reading, offered)
        if forced is not None:
            return forced
    return Move(writing.synthesis(reading) if reading.is_step else _answer(reading, offered))


def _answer(reading: Reading, offered: list[ToolSchema]) -> str:
    wanted = not reading.results and any(not tools.is_read(t) and _asked_for(t, reading) for t in offered)
    return writing.say("cannot", reading) if wanted else writing.answer(reading)


def _with_tools(reading: Reading, offered: list[ToolSchema]) -> Move | None:
    if reading.rounds == 0 and not reading.is_step:
        wanted_writes = [tool for tool in offered if not tools.is_read(tool) and _asked_for(tool, reading)]
        if wanted_writes and reading.target and not _PLANNING.search(reading.order.replace(reading.target.key, "")):
            return _write(reading, wanted_writes)
        planner = next((tool for tool in offered if tool["name"] == "create_plan"), None)
        if planner is not None and wants_plan(reading):
            arguments = plan(planner, reading)
            if arguments is not None:
                told = "\n\n".join(filter(None, [writing.say("plan", reading), writing.emptiness(reading)]))
                return Move(told, [tool_call("", "create_plan", arguments)])
        if not reading.text or _SMALL_TALK.match(reading.text):
            return None
        if wanted_writes:
            return _write(reading, wanted_writes)
    reads = [tool for tool in offered if tools.is_read(tool)]
    if not reading.is_step and any(tools.writes(result.tool) for result in reading.results):
        return None  # what became of it is the answer
    wanted = _step_calls(reading, reads) if reading.is_step else _chat_calls(reading, reads)
    made = [(r.tool, r.arguments) for r in reading.results]
    new = [c for c in wanted if not any(n == c["name"] and tools.same_call(a, c["arguments"]) for n, a in made)]
    return Move(writing.say("look", reading) if not reading.results else "", new[:2]) if new else None


def wants_plan(reading: Reading) -> bool:
    """Whether the message asks for work of several steps, and not for an answer."""
    if not _PLANNING.search(reading.text):
        return False
    asks = _ASKING.match(reading.text) or reading.text.rstrip().endswith("?")
    return not asks or _POLITE.search(reading.text) is not None


def _chat_calls(reading: Reading, reads: list[ToolSchema]) -> list[ToolCall]:
    """One fitting look in a conversation; a second one only when the first found nothing, or found what to look at."""
    way = asking.direction(reading)
    about = next((t for t in reads if tools.about_a_thing(t) and tools.has_direction(t)), None)
    if about is not None and way is not None and not asking.leading(reading):
        return _dependency_calls(reading, reads, about, way)
    if any(result.success and not _is_empty(result.value) for result in reading.results):
        return []
    general = sorted((t for t in reads if tools.about_everything(t)), key=lambda t: -tools.score(t, reading))
    if asking.leading(reading):
        look = general if not reading.results and not writing.leaders(reading) else []
        return _calls([(tool, "", None) for tool in look[:1]], reading)
    named = reading.named and not asking.counting(reading)
    if general and tools.score(general[0], reading) >= 3 and not reading.results and not named:
        return _calls([(general[0], "", None)], reading)
    one = [t for t in reads if tools.about_a_thing(t) and not tools.has_direction(t)]
    one.sort(key=lambda tool: -tools.score(tool, reading))
    if one and reading.named and not reading.results:
        return _calls([(one[0], "", reading.named[0])], reading)
    search = tools.search_tool(reads)
    if search is None or reading.named or (reading.plans_ended and not reading.terms):
        return []
    if reading.results and reading.results[-1].arguments.get("kind"):  # of another kind, perhaps
        last = {name: given for name, given in reading.results[-1].arguments.items() if name != "kind"}
        return [tool_call("", search["name"], last)]
    tried = len(reading.results)
    return _calls([(search, term, None) for term in reading.terms[tried : tried + 1]], reading)


def _dependency_calls(
    reading: Reading, reads: list[ToolSchema], about: ToolSchema, way: asking.Direction
) -> list[ToolCall]:
    """The dependencies of what is named; a search first when its key is not known."""
    if any(result.tool == about["name"] for result in reading.results):
        return []
    thing, search = asking.known(reading), tools.search_tool(reads)
    if thing is not None:
        calls = _calls([(about, "", thing)], reading)
        name = tools.direction_of(about)
        return [tool_call("", call["name"], {**call["arguments"], name: way}) for call in calls]
    if search is None or reading.results:
        return []
    calls = _calls([(search, asking.subject(reading), None)], reading)
    for call in calls:
        call["arguments"].pop("kind", None)  # "which classes use it" is about the users' kind
    return calls


def _step_calls(reading: Reading, reads: list[ToolSchema]) -> list[ToolCall]:
    """One or two looks for a step of a plan: first for its words, then at what was found."""
    search, found = tools.search_tool(reads), _found(reading)
    if not reading.results:
        hinted = re.search(r"The tool (\w+)(?: with (\{.*?\}))? may help", reading.text)
        for tool in reads:
            if hinted and tool["name"] == hinted[1]:
                given = _json_object(hinted[2])
                if given is not None and tools.valid(tool["input_schema"], given):
                    return [tool_call("", tool["name"], given)]
        first = [(search, term, None) for term in reading.subjects[:1]] if search else []
        general = next((t for t in reads if tools.about_everything(t)), None)
        wide = re.search(r"survey|overview|überblick|bestand", reading.task, re.I)
        if general is not None and (not first or wide):
            first.append((general, "", None))
        about = [(t, "", found[0]) for t in reads if found and tools.about_a_thing(t)]
        return _calls(first or about[:1], reading)
    about_things = [(tool, "", thing) for thing in found[:1] for tool in reads if tools.about_a_thing(tool)]
    if about_things:
        return _calls(about_things[:2], reading)
    more = reading.subjects[1:2]
    return _calls([(search, term, None) for term in more], reading) if search else []


def _found(reading: Reading) -> list[Thing]:
    """The things that the step's own results name, else those of the earlier steps; what it is about goes first."""
    if any(result.success and not _is_empty(result.value) for result in reading.results):
        found = [thing for thing in reading.things if ":" in thing.key or "." in thing.key] or reading.things
    else:
        found = [Thing(key, key, {}) for key in keys_in(reading.earlier)] or reading.named
    return closest(found, reading.subjects[0]) if reading.subjects else found


def _calls(wanted: Sequence[tuple[ToolSchema, str, Thing | None]], reading: Reading) -> list[ToolCall]:
    made = []
    for tool, term, thing in wanted:
        arguments = tools.arguments_for(tool, reading, term=term, thing=thing)
        if arguments is not None:
            made.append(tool_call("", tool["name"], arguments))
    return made


def _write(reading: Reading, wanted: list[ToolSchema]) -> Move | None:
    """A write that the message asks for in so many words, when it is about a thing that is known."""
    for tool in sorted(wanted, key=lambda t: -tools.score(t, reading)):
        arguments = tools.arguments_for(tool, reading, thing=reading.target)
        if arguments is not None:
            return Move(writing.say("write", reading), [tool_call("", tool["name"], arguments)])
    return None


def _asked_for(tool: ToolSchema, reading: Reading) -> bool:
    if tool["name"] == "create_plan" or (_ASKING.match(reading.text) and not _POLITE.search(reading.text)):
        return False
    verb = tools.words_of(tool["name"])[0]
    verbs = "|".join(re.escape(same) for same in tools.SAME.get(verb, (verb,)))
    return re.search(_ORDER.format(verbs), reading.order, re.I) is not None


def _forced(reading: Reading, offered: list[ToolSchema]) -> Move | None:
    for tool in sorted(offered, key=lambda t: -tools.score(t, reading)):
        arguments = tools.arguments_for(tool, reading, term=(reading.terms or ["*"])[0])
        if arguments is not None:
            return Move(calls=[tool_call("", tool["name"], arguments)])
    return None


def _is_empty(value: Any) -> bool:
    """Whether a result holds nothing but empty lists, and words about that."""
    if not isinstance(value, dict):
        return not value
    told = {name: one for name, one in value.items() if name not in ("empty", "key", "direction")}
    return any(isinstance(one, list) for one in told.values()) and not any(told.values())


def _json_object(text: str | None) -> dict[str, Any] | None:
    try:
        value = json.loads(text or "null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None

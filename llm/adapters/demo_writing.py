"""What the stand-in says: Markdown made of results and snapshot, in English or German."""

from __future__ import annotations

import json
import re
from typing import Any

from llm.adapters import demo_asking as asking
from llm.adapters.demo_phrases import PHRASES
from llm.adapters.demo_reading import Reading, Result, Thing, closest, keys_in
from llm.adapters.demo_rows import facts_of, label_of, line_of, markdown_of, rows_of, size_of
from llm.adapters.demo_tools import writes

_SHOWN, _SHOWN_IN_A_STEP = 20, 8
_LEADERS = 10


def say(name: str, reading: Reading, **values: object) -> str:
    """One of the stand-in's phrases, in the language of the message."""
    return PHRASES[name][1 if reading.german else 0].format(**values)


def answer(reading: Reading) -> str:
    """The final answer to a message: from the results, else from the snapshot."""
    if asking.leading(reading) and leaders(reading):
        return _leading(reading)
    if reading.results:
        return _from_results(reading)
    if not reading.text or re.fullmatch(
        r"\W*(hi|hello|hey|hallo|guten tag|moin|servus|thanks?|thank you|danke|test)\b.{0,20}",
        reading.text,
        re.I | re.S,
    ):
        return "\n\n".join(filter(None, [say("hello", reading), emptiness(reading)]))
    if reading.plans_ended and not reading.named:
        return "\n\n".join(_plan_ended(plan, reading) for plan in reading.plans_ended)
    if reading.named:
        return _about(reading)
    if reading.empty:
        return emptiness(reading)
    overview = _overview(reading.snapshot)
    if not overview:
        return say("nothing", reading)
    intro = "" if not reading.terms else say("nothing", reading) + "\n\n"
    return f"{intro}{say('holds', reading)}\n\n{overview}"


def _from_results(reading: Reading) -> str:
    """What the calls gave; of a search and a look at what it found, the look."""
    told = [result for result in reading.results if result.success and size_of(result.value)]
    if not told and emptiness(reading) and all(result.success for result in reading.results):
        return emptiness(reading)
    counts = asking.counted(reading)
    if counts:
        return "\n".join(say("count", reading, label=label, kind=kind, number=n) for label, kind, n in counts)
    last = reading.results[-1]
    shown = [last] if isinstance(last.value, dict) and last.value.get("direction") else reading.results
    parts = [_definition(reading), *(report(result, reading) for result in shown)]
    if not told and reading.named:
        parts.append(_about(reading))
    return "\n\n".join(filter(None, parts))


def _definition(reading: Reading) -> str:
    """Of a search for one name: the element of exactly that name, told in a sentence."""
    asked = re.match(r"\W*(?:what|who|where|was|wo|wer)\b|\W*(?:explain|describe|erkläre)\b", reading.text, re.I)
    best = next(iter(closest(reading.found, reading.terms[0])), None) if asked and reading.terms else None
    exact = best is not None and reading.terms[0].lower() in (best.name.lower(), best.key.lower().rpartition(":")[2])
    exact = exact and (len(reading.terms) == 1 or re.search(r"[._:/]|[a-z][A-Z]", reading.terms[0]) is not None)
    if best is None or not exact or not best.facts.get("path") or asking.direction(reading):
        return ""
    where = f"{best.facts['path']}:{best.facts['line']}" if best.facts.get("line") else best.facts["path"]
    told = say("definition", reading, key=best.key, kind=best.facts.get("kind", "element"), where=where)
    summary = str(best.facts.get("summary") or "").strip()
    return f"{told} {markdown_of(summary, 2_000)}".strip()


def emptiness(reading: Reading) -> str:
    """What to say when the data holds nothing at all; empty when it holds something."""
    return say("empty", reading, told=reading.empty) if reading.empty else ""


def leaders(reading: Reading) -> list[Thing]:
    """The packages that snapshot or results know the importers of, the most used first."""
    counted = [thing for thing in reading.things if isinstance(thing.facts.get("used_by"), int)]
    return sorted(counted, key=lambda thing: -thing.facts["used_by"])


def _leading(reading: Reading) -> str:
    wanted = reading.numbers[0] if reading.numbers else _LEADERS
    lines = []
    for number, thing in enumerate(leaders(reading)[:wanted], start=1):
        known = {"modules", "uses"} <= thing.facts.keys()
        inside = say("inside", reading, modules=thing.facts["modules"], uses=thing.facts["uses"]) if known else ""
        used_by = thing.facts["used_by"]
        lines.append(f"{number}. {say('leader', reading, key=thing.key, used_by=used_by, inside=inside)}")
    return f"{say(asking.leading(reading), reading)}\n\n" + "\n".join(lines)


def synthesis(reading: Reading) -> str:
    """What a step of a plan leaves for the next ones."""
    parts = [f"### {reading.task.rstrip('.')}"]
    if emptiness(reading) and not any(result.success and size_of(result.value) for result in reading.results):
        return "\n\n".join([*parts, emptiness(reading), say("next", reading, what=say("fill", reading))])
    parts.extend(report(result, reading) for result in reading.results)
    if not reading.results and reading.named:
        parts.append(_about(reading))
    if reading.earlier:
        heads = re.findall(r"^\[([\w-]+)\] (.+)$", reading.earlier, re.M)
        lines = "\n".join(f"- **{key}**: {action}" for key, action in heads)
        parts.append(f"{say('built_on', reading)}\n\n{lines}" if lines else say("built_on", reading))
    keys = _keys(reading)
    if re.search(r"propos|recommend|refactor|plan|improve|vorschl|empfehl|verbesser", reading.task, re.I):
        parts.append(f"**{say('proposal', reading)}**\n\n{_proposal(keys, reading)}")
    start = say("start", reading, what=", ".join(f"`{key}`" for key in keys[:3])) if keys else say("no_start", reading)
    parts.append(say("next", reading, what=start))
    return "\n\n".join(parts)


def assessment(reading: Reading) -> str:
    """The outcome that an assessment step has to leave."""
    failed = "failed" in reading.earlier.lower()
    said = "A step before this one failed; the rest was done." if failed else "The steps left what was asked for."
    next_time = "Look at the failed step first." if failed else "Connect a model to have the content assessed."
    outcome = {"assessment": said, "satisfaction": 2 if failed else 4, "suggestion": next_time}
    return json.dumps(outcome)


def board(reading: Reading, calls: list[str]) -> str:
    """The note for its own orientation that the system prompt asks for (CAP-070)."""
    subject = ", ".join(reading.terms[:3]) or reading.task[:80]
    notes = {
        "phase": "planning" if calls else "answering",
        "current_plan": reading.task[:120] if calls else "",
        "last_actions": ", ".join(calls or [result.tool for result in reading.results]),
        "next_intent": f"wait for the plan on {subject}" if calls else "answer the next question",
    }
    return f"<board>{json.dumps({name: note for name, note in notes.items() if note}, ensure_ascii=False)}</board>"


def report(result: Result, reading: Reading) -> str:
    """One call's result as Markdown."""
    call = result.tool + (f"({_short(result.arguments)})" if result.arguments else "")
    if not result.success:
        return say("failed", reading, call=call, error=markdown_of(result.error, 300) or "?")
    value = result.value
    if isinstance(value, dict) and (
        "approval" in value or value.get("status") in ("waiting_approval", "pending_approval")
    ):
        return say("waits", reading, call=call)
    rows, facts = rows_of(value), facts_of(value)
    way = value.get("direction") if isinstance(value, dict) else None
    if way in ("incoming", "outgoing") and value.get("key"):
        if not rows:
            return say(f"no_{way}", reading, key=value["key"])
        count, lines = _page(value, rows, reading)
        return f"{say(way, reading, key=value['key'], count=count)}\n\n{lines}"
    if rows:
        count, lines = _page(value, rows, reading)
        return "\n\n".join(filter(None, [say("found", reading, call=call, count=count), facts, lines]))
    if facts and writes(result.tool):
        return f"{say('done', reading, call=call)}\n\n{facts}"
    if facts:
        return f"{say('found', reading, call=call, count='')[:-2].rstrip()}:\n\n{facts}"
    empty = value in (None, "", [], {}) or (
        isinstance(value, dict) and any(isinstance(v, list) for v in value.values())
    )
    return say("none" if empty else "done", reading, call=call)


def _page(value: Any, rows: list[dict[str, Any]], reading: Reading) -> tuple[str, str]:
    """How many there are in all, and the first of them as a list."""
    shown = rows[: _SHOWN_IN_A_STEP if reading.is_step else _SHOWN]
    lines = "\n".join(line_of(row) for row in shown)
    total = value.get("total") if isinstance(value, dict) else None
    if isinstance(total, int) and total >= len(rows):
        count = str(total)
    elif isinstance(value, dict) and value.get("more") is True:
        count, total = say("at_least", reading, count=len(rows)), len(rows) + 1
    else:
        count, total = str(len(rows)), len(rows)
    return (say("head", reading, count=count, shown=len(shown)) if total > len(shown) else count), lines


def _plan_ended(plan: dict[str, Any], reading: Reading) -> str:
    head = say(
        "plan_ended", reading, number=plan.get("plan_id"), goal=str(plan.get("goal"))[:120], status=plan.get("status")
    )
    error = f"\n\n{plan['error']}" if plan.get("error") else ""
    steps = [step for step in plan.get("steps") or [] if isinstance(step, dict)]
    lines = []
    for step in steps:
        found = str(step.get("synthesis") or step.get("llm_synthesis") or step.get("error") or "").strip()
        first = next((line for line in found.splitlines() if line.strip() and not line.startswith("#")), "")
        lines.append(f"- **{step.get('key')}** ({step.get('status')})" + (f": {first[:200]}" if first else ""))
    return head + error + ("\n\n" + "\n".join(lines) if lines else "")


def _about(reading: Reading) -> str:
    things = reading.named[:3]
    head = say("about", reading, what=", ".join(f"`{thing.key}`" for thing in things))
    return "\n\n".join([head, *(facts_of(thing.facts) or f"- `{thing.key}`" for thing in things)])


def _overview(snapshot: dict[str, Any]) -> str:
    lines = []
    for name, value in _flat(snapshot):
        if isinstance(value, list):
            rows = [row for row in value if isinstance(row, dict)]
            shown = ", ".join(f"`{label}`" for label in map(label_of, rows[:5]) if label)
            lines.append(
                f"- **{name}**: {len(value)}"
                + (f", such as {shown}" if shown and len(rows) > 5 else f": {shown}" if shown else "")
            )
        elif isinstance(value, int | float | str):
            lines.append(f"- **{name}**: {str(value)[:120]}")
    return "\n".join(lines[:15])


def _flat(snapshot: dict[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in snapshot.items():
        if isinstance(value, dict):
            flat.extend((f"{name}.{inner}", one) for inner, one in list(value.items())[:12])
        else:
            flat.append((name, value))
    return flat


def _keys(reading: Reading) -> list[str]:
    """The things that results, or the earlier steps, name."""
    found = [*reading.named, *(reading.found or (reading.things if reading.results else []))]
    found += [Thing(key, key, {}) for key in keys_in(reading.earlier) if "/" not in key]
    if reading.subjects:
        found = closest(found, reading.subjects[0])
    return list(dict.fromkeys(thing.key for thing in found))[:12]


def _proposal(keys: list[str], reading: Reading) -> str:
    targets = [key for key in keys if key.startswith(("module:", "package:"))][:3] or keys[:3]
    if not targets:
        return say("no_proposal", reading)
    if reading.german:
        steps = [f"Halte das Verhalten von `{targets[0]}` mit Tests fest, bevor sich etwas ändert."]
        steps += [f"Trenne in `{key}` Zuständigkeiten und gib jeder eine schmale Schnittstelle." for key in targets]
        steps.append("Stelle die Aufrufer einzeln um und entferne zuletzt den alten Weg.")
    else:
        steps = [f"Pin the behaviour of `{targets[0]}` with tests before anything moves."]
        steps += [f"Separate the concerns inside `{key}` and give each a narrow interface." for key in targets]
        steps.append("Move the callers over one by one, and take the old path out last.")
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))


def _short(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {str(value)[:60]}" for name, value in arguments.items())

"""What the stand-in says: Markdown made of results and snapshot, in English or German."""

from __future__ import annotations

import json
import re
from typing import Any

from llm.adapters.demo_reading import Reading, Result, Thing

_SHOWN = 8
_PHRASES = {
    "hello": (
        "Hello! I am Capstan's built-in stand-in: no model is connected, so I answer by rule. Ask about the elements in"
        " this workspace, or ask for an analysis or a plan.",
        "Hallo! Ich bin Capstans eingebauter Platzhalter: Es ist kein Modell verbunden, ich antworte nach Regeln. Frag"
        " nach den Elementen dieses Arbeitsbereichs, oder bitte um eine Analyse oder einen Plan.",
    ),
    "nothing": (
        "I found nothing in this workspace that answers that. I am a rule-based stand-in, so short questions about"
        " elements, or a request for an analysis, suit me best.",
        "Dazu habe ich in diesem Arbeitsbereich nichts gefunden. Ich bin ein regelbasierter Platzhalter: Kurze"
        " Fragen zu Elementen oder die Bitte um eine Analyse liegen mir am besten.",
    ),
    "holds": ("This workspace holds:", "Dieser Arbeitsbereich enthält:"),
    "about": ("What the snapshot says about {what}:", "Was der Überblick zu {what} sagt:"),
    "found": ("`{call}` found {count}:", "`{call}` fand {count}:"),
    "none": ("`{call}` found nothing.", "`{call}` fand nichts."),
    "failed": ("`{call}` failed: {error}", "`{call}` schlug fehl: {error}"),
    "done": ("Done: `{call}`.", "Erledigt: `{call}`."),
    "waits": (
        "`{call}` waits for a person; nothing has happened yet.",
        "`{call}` wartet auf eine Person; noch ist nichts geschehen.",
    ),
    "more": ("… and {count} more", "… und {count} weitere"),
    "look": ("I'll look that up.", "Ich sehe nach."),
    "plan": ("That takes several steps, so I'll make a plan.", "Das braucht mehrere Schritte, ich mache einen Plan."),
    "write": ("I'll do that.", "Das mache ich."),
    "next": ("**For the next steps:** {what}", "**Für die nächsten Schritte:** {what}"),
    "start": ("start with {what}.", "beginne mit {what}."),
    "no_start": ("there is no single place to start; widen the search.", "kein klarer Ausgangspunkt; suche breiter."),
    "proposal": ("Proposal", "Vorschlag"),
    "built_on": ("Built on the earlier steps:", "Aufgebaut auf den früheren Schritten:"),
    "plan_ended": (
        "Plan #{number} ({goal}) ended: **{status}**.",
        "Plan #{number} ({goal}) ist beendet: **{status}**.",
    ),
    "cannot": (
        "To do that I would need to know exactly which element you mean; name it by its key, such as"
        " `module:package.name`.",
        "Dafür müsste ich genau wissen, welches Element gemeint ist; nenne seinen Schlüssel, etwa `module:paket.name`.",
    ),
}


def say(name: str, reading: Reading, **values: object) -> str:
    """One of the stand-in's phrases, in the language of the message."""
    return _PHRASES[name][1 if reading.german else 0].format(**values)


def answer(reading: Reading) -> str:
    """The final answer to a message: from the results, else from the snapshot."""
    if reading.results:
        told = "\n\n".join(report(result, reading) for result in reading.results)
        if any(result.success and _count(result.value) for result in reading.results) or not reading.named:
            return told
        return f"{told}\n\n{_about(reading)}"
    if not reading.text or re.fullmatch(
        r"\W*(hi|hello|hey|hallo|guten tag|moin|servus|thanks?|thank you|danke|test)\b.{0,20}",
        reading.text,
        re.I | re.S,
    ):
        return say("hello", reading)
    if reading.plans_ended and not reading.named:
        return "\n\n".join(_plan_ended(plan, reading) for plan in reading.plans_ended)
    if reading.named:
        return _about(reading)
    overview = _overview(reading.snapshot)
    if not overview:
        return say("nothing", reading)
    intro = "" if not reading.terms else say("nothing", reading) + "\n\n"
    return f"{intro}{say('holds', reading)}\n\n{overview}"


def synthesis(reading: Reading) -> str:
    """What a step of a plan leaves for the next ones."""
    parts = [f"### {reading.task.rstrip('.')}"]
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
        return say("failed", reading, call=call, error=result.error[:300] or "?")
    value = result.value
    if isinstance(value, dict) and (
        "approval" in value or value.get("status") in ("waiting_approval", "pending_approval")
    ):
        return say("waits", reading, call=call)
    rows, facts = _rows(value), _facts(value)
    if rows:
        lines = [_line(row) for row in rows[:_SHOWN]]
        if len(rows) > _SHOWN:
            lines.append("- " + say("more", reading, count=len(rows) - _SHOWN))
        head = say("found", reading, call=call, count=len(rows))
        return "\n\n".join(filter(None, [head, facts, "\n".join(lines)]))
    if facts:
        return f"{say('found', reading, call=call, count='')[:-2].rstrip()}:\n\n{facts}"
    empty = value in (None, "", [], {}) or (
        isinstance(value, dict) and any(isinstance(v, list) for v in value.values())
    )
    return say("none" if empty else "done", reading, call=call)


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
    return "\n\n".join([head, *(_facts(thing.facts) or f"- `{thing.key}`" for thing in things)])


def _overview(snapshot: dict[str, Any]) -> str:
    lines = []
    for name, value in _flat(snapshot):
        if isinstance(value, list):
            rows = [row for row in value if isinstance(row, dict)]
            shown = ", ".join(f"`{label}`" for label in map(_label, rows[:5]) if label)
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


def _rows(value: Any) -> list[dict[str, Any]]:
    """The list that matters most in a result."""
    if isinstance(value, list):
        return [row for row in value if isinstance(row, dict)]
    if not isinstance(value, dict):
        return []
    lists = [_rows(one) for one in value.values() if isinstance(one, list)]
    return max(lists, key=len, default=[])


def _count(value: Any) -> int:
    return len(_rows(value)) or len(_facts(value))


def _facts(value: Any) -> str:
    """The plain fields of an object."""
    if isinstance(value, str):
        return value[:600]
    if not isinstance(value, dict):
        return ""
    lines = []
    for name, one in value.items():
        if isinstance(one, bool) or one in (None, "", [], {}):
            continue
        if isinstance(one, str | int | float):
            lines.append(f"- {name}: {str(one)[:200]}")
        elif isinstance(one, dict) and all(isinstance(v, str | int | float) for v in one.values()):
            lines.append(f"- {name}: {_plain(one)}")
        elif isinstance(one, dict):
            lines.extend(f"- {name} {inner}: {_plain(fields)}" for inner, fields in list(one.items())[:8])
    return "\n".join(lines[:12])


def _plain(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)[:120]
    return ", ".join(f"{name} {one}" for name, one in list(value.items())[:8] if isinstance(one, str | int | float))


def _line(row: dict[str, Any]) -> str:
    label = _label(row)
    facts = [
        f"{k} `{v}`" if k == "path" else f"{k} {v}"
        for k, v in row.items()
        if isinstance(v, int | str) and not isinstance(v, bool) and v != "" and str(v) != label
    ]
    facts = [fact for fact in facts if not fact.startswith(("summary ", "repository ", "line ", "name "))][:3]
    summary = str(row.get("summary") or "").strip()
    return f"- `{label}`" + (f" ({', '.join(facts)})" if facts else "") + (f": {summary[:160]}" if summary else "")


def _label(row: dict[str, Any]) -> str:
    return str(next((row[name] for name in ("key", "repository", "name", "title", "path", "id") if row.get(name)), ""))[
        :120
    ]


def _keys(reading: Reading) -> list[str]:
    """The things that results, or the earlier steps, name."""
    found: list[Thing] = [thing for thing in reading.things if any(r.success for r in reading.results)]
    keys = [thing.key for thing in [*reading.named, *found]]
    keys.extend(re.findall(r"`([\w.:/-]+[.:/][\w.:/-]+)`", reading.earlier))
    return list(dict.fromkeys(keys))[:12]


def _proposal(keys: list[str], reading: Reading) -> str:
    subject = reading.terms[0] if reading.terms else (reading.goal[:60] or "this")
    targets = keys[:3] or [subject]
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

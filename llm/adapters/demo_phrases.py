"""The stand-in's sentences, each in English and in German."""

from __future__ import annotations

PHRASES = {
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
    "head": ("{count}, the first {shown}", "{count}, die ersten {shown}"),
    "at_least": ("more than {count}", "mehr als {count}"),
    "incoming": ("What depends on `{key}`, from outside it: {count}", "Was von außen von `{key}` abhängt: {count}"),
    "outgoing": ("What `{key}` depends on, outside itself: {count}", "Wovon `{key}` außerhalb abhängt: {count}"),
    "no_incoming": (
        "Nothing outside `{key}` imports it or inherits from it, as far as the scan tells.",
        "Nichts außerhalb von `{key}` importiert es oder erbt davon, soweit der Scan es zeigt.",
    ),
    "no_outgoing": (
        "`{key}` imports nothing outside itself and inherits from nothing there, as far as the scan tells.",
        "`{key}` importiert nichts von außerhalb und erbt nicht davon, soweit der Scan es zeigt.",
    ),
    "used": (
        "The packages that most modules outside them import:",
        "Die Pakete, die die meisten Module außerhalb importieren:",
    ),
    "reach": (
        "By rule I go by reach: what the most modules outside import is the hardest to change, because a change there"
        " touches all of them. Whether the code itself is easy to work on, I cannot judge.",
        "Ich gehe nach Reichweite: Was die meisten Module außerhalb importieren, ist am schwersten zu ändern, weil eine"
        " Änderung alle betrifft. Ob der Code selbst leicht zu ändern ist, kann ich nicht beurteilen.",
    ),
    "count": (
        "- `{label}` holds {number} elements of the kind `{kind}`.",
        "- `{label}` enthält {number} Elemente der Art `{kind}`.",
    ),
    "definition": ("`{key}` is a {kind} in `{where}`.", "`{key}` ({kind}) steht in `{where}`."),
    "leader": (
        "`{key}`: imported by {used_by} modules outside it{inside}",
        "`{key}`: von {used_by} Modulen außerhalb importiert{inside}",
    ),
    "inside": (
        " ({modules} modules inside, importing {uses} from outside)",
        " ({modules} Module darin, die {uses} von außerhalb importieren)",
    ),
    "empty": ("{told}", "Dieser Arbeitsbereich hat noch keine Daten. {told}"),
    "fill": ("fill the catalogue, then ask again.", "fülle den Katalog und frage noch einmal."),
    "none": ("`{call}` found nothing.", "`{call}` fand nichts."),
    "failed": ("`{call}` failed: {error}", "`{call}` schlug fehl: {error}"),
    "done": ("Done: `{call}`.", "Erledigt: `{call}`."),
    "waits": (
        "`{call}` waits for a person; nothing has happened yet.",
        "`{call}` wartet auf eine Person; noch ist nichts geschehen.",
    ),
    "look": ("I'll look that up.", "Ich sehe nach."),
    "plan": ("That takes several steps, so I'll make a plan.", "Das braucht mehrere Schritte, ich mache einen Plan."),
    "write": ("I'll do that.", "Das mache ich."),
    "next": ("**For the next steps:** {what}", "**Für die nächsten Schritte:** {what}"),
    "start": ("start with {what}.", "beginne mit {what}."),
    "no_start": ("there is no single place to start; widen the search.", "kein klarer Ausgangspunkt; suche breiter."),
    "no_proposal": (
        "Nothing was found to build a proposal on.",
        "Es wurde nichts gefunden, worauf ein Vorschlag bauen könnte.",
    ),
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

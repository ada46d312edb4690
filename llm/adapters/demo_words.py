"""The words that the stand-in knows: those that name nothing, and its own sentences for the steps of a plan."""

from __future__ import annotations

import re

_STOP_WORDS = """
a about above add after all also an and any are as ask at be been before both but by call can change check class
classes code component components could create current data describe detail details did do does down each element
elements else end everything explain far
file files find first for from function functions get give go great had has have
hello help hey hi how i if in into is it its just know like list look make many may me method methods might module
modules more most much must my named need next no not now of off on one only or other our out over package packages
part parts people please plan project propose put question read refactor repository search see shall she should show
so some something start step stop summary survey system take tell than thank thanks that the their them then there
these they thing things this those to tool try up us use used using very want was way we well were what when where
which while who why will with without work would write you your yes analyse analyze analysis examine review suggest
suggestion improve synthesis found words build results result structure repo repos lean leans aber alle alles als am
analysiere auch auf aus bei beim bitte da das dass dazu dein dem den der des die dies diese dieser dieses doch du
durch ein eine einem einen einer eines er erkläre es finde für gib gibt hallo hat hab habe haben hast ich ihr im ins
ist kann kannst klasse klassen könnte kurz liste mach mal man mehr mein mir mit modul nach nicht noch nur oder ohne
paket pakete schlage sein sich sie sind soll suche über um und uns unser unsere untersuche viele vom von vor
vorschlag vorschläge welche welcher wenn wer werden wie wieso wir wird wo zeig zeige zu zum zur zwei danke guten tag
warum können defined define located lives implemented implement called mache machen umbau others def return none
true false import self handled handling delete remove drop rename note mostly previous instructions ignore workspace
workspaces here inside contain contains arbeitsbereich drin enthält happened came finished
"""
_GERMAN_WORDS = """
der die das und ist nicht ein eine wie was welche bitte für mit von im den dem zu auf wir ich du zeig zeige gibt
viele schlage analysiere unser unsere kannst erkläre hallo danke warum wo
"""
STOP = frozenset(_STOP_WORDS.split())
GERMAN = frozenset(_GERMAN_WORDS.split())
# Words of a question about dependencies; they say what is asked, not about what.
DEPENDENCY = re.compile(
    r"(?:import|depend|inherit|subclass|break|affect|impact)\w*|extends?|us(?:es?|ed|ing)|relies|rely|relied|leans?|needs?|needed|consumers?|users?|callers?"
    r"|verwende\w*|benutz\w*|nutz\w*|hängt|hängen|abhäng\w*|ab|wovon",
    re.I,
)
# The steps of a plan, in English and in German; what is filled in is the person's.
STEP_ACTIONS = (
    (
        "Survey what belongs to {}.",
        "Examine the structure and the dependencies of {}.",
        "Draw conclusions and propose what to do: {}",
    ),
    (
        "Bestandsaufnahme: finde heraus, was zu {} gehört.",
        "Untersuche Aufbau und Abhängigkeiten von {}.",
        "Fasse zusammen und mache einen Vorschlag: {}",
    ),
)
_ACTIONS = [
    re.compile(re.escape(action).replace(r"\{\}", "(.*)"), re.S) for actions in STEP_ACTIONS for action in actions
]


def filled_in(action: str) -> str | None:
    """What a person's message put into one of the stand-in's own step texts; None for a text of somebody else."""
    return next((found[1] for pattern in _ACTIONS if (found := pattern.fullmatch(action))), None)

"""PromptBuilder: the four layers, laid out so that a provider's cache hits (CAP-020, CAP-021)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from llm.types import SystemBlock
from prompt.errors import PromptIncomplete
from prompt.foundation import FOUNDATION
from prompt.types import AgentIdentity

OPENING = "<context>"
CLOSING = "</context>"


class Recipe(Protocol):
    """What layer 3 needs of a recipe."""

    name: str
    prompt_template: str

    @property
    def steps(self) -> list[str]: ...


def canonical_json(value: Any) -> str:
    """The same text for the same value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class PromptBuilder:
    """Collects layers; each `with_…` gives a new builder.

    Layers 1 to 3 are stable and become system blocks with cache marks. Layer 4 is dynamic and goes last, into the
    newest user message (`dynamic()`), never into a cached block.
    """

    identity: AgentIdentity | None = None
    recipe: Recipe | None = None
    run: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)

    def with_identity(self, identity: AgentIdentity) -> Self:
        """Layer 2: who the agent is."""
        return replace(self, identity=identity)

    def with_workflow(self, recipe: Recipe) -> Self:
        """Layer 3: the recipe of the task at hand (CAP-022)."""
        return replace(self, recipe=recipe)

    def with_run(self, text: str) -> Self:
        """What stays the same for every call of one run, such as a plan's goal; it closes layer 3."""
        return replace(self, run=text)

    def with_context(self, **context: Any) -> Self:
        """Layer 4: plain JSON values by name, such as `snapshot` and `snapshot_version`; None leaves a name out."""
        return replace(self, context={**self.context, **{k: v for k, v in context.items() if v is not None}})

    def build(self) -> tuple[SystemBlock, ...]:
        """The stable layers, in order; blank ones are left out.

        Raises:
            PromptIncomplete: no identity was given.
        """
        if self.identity is None:
            raise PromptIncomplete
        foundation = SystemBlock(FOUNDATION.strip())
        identity = SystemBlock(self.identity.system_tone.strip())
        recipe = SystemBlock(self._recipe_text())
        blocks = [block for block in (foundation, identity, recipe) if block.text]
        # One mark behind the agent's own part, which all its runs share, and one behind the recipe's.
        marked = {1 if identity.text else 0, len(blocks) - 1}
        return tuple(replace(block, cache=True) if index in marked else block for index, block in enumerate(blocks))

    def dynamic(self) -> str:
        """Layer 4 as text: canonical JSON in a `<context>` block; empty when there is no context."""
        if not self.context:
            return ""
        return f"{OPENING}\n{canonical_json(dict(self.context))}\n{CLOSING}"

    def _recipe_text(self) -> str:
        parts = []
        if self.recipe is not None:
            parts.append(f"# Recipe: {self.recipe.name}\n\n{self.recipe.prompt_template.strip()}")
            if self.recipe.steps:
                steps = "\n".join(f"{number}. {step}" for number, step in enumerate(self.recipe.steps, start=1))
                parts.append(f"Expected steps:\n{steps}")
        if self.run.strip():
            parts.append(self.run.strip())
        return "\n\n".join(parts)

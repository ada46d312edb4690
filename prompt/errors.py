"""What `prompt` raises."""

from __future__ import annotations

from workspaces.errors import CapstanError


class PromptError(CapstanError):
    """Root of what `prompt` raises."""


class PromptIncomplete(PromptError):
    """A prompt was built without an identity; call `with_identity` first."""

    code = "prompt.incomplete"


class UnknownRecipe(PromptError):
    """No active recipe has this name, or this version of it."""

    code = "prompt.unknown_recipe"


class RecipeInvalid(PromptError):
    """The recipe asks for tools that this agent does not have; the detail `missing` names them."""

    code = "prompt.recipe_invalid"


class InputInvalid(PromptError):
    """A validator refused the input before any model was called; the detail `problems` lists what is wrong with it."""

    code = "prompt.input_invalid"

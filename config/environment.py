"""The environment, read once and typed: a bad value stops the start, named, with its cure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from workspaces.errors import ConfigurationError

YES = frozenset({"1", "true", "yes", "on"})
NO = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Environment:
    """Typed reads of environment variables; an empty value counts as unset.

    Args:
        values: the variables, by name.
    """

    values: Mapping[str, str]

    def text(self, name: str, default: str = "") -> str:
        """The value without the blanks around it."""
        return self.values.get(name, "").strip() or default

    def required(self, name: str, *, hint: str) -> str:
        """The value of a variable that has no default.

        Raises:
            ConfigurationError: it is not set; `hint` says what to do.
        """
        value = self.text(name)
        if not value:
            raise ConfigurationError(setting=name, hint=hint)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """`true` or `false`, or one of their usual spellings."""
        value = self.text(name).lower()
        if not value:
            return default
        if value not in YES | NO:
            raise ConfigurationError(setting=name, hint=f"{value!r} is neither true nor false; set one of them.")
        return value in YES

    def number(self, name: str, *, default: float, minimum: float, maximum: float) -> float:
        """A finite number between `minimum` and `maximum`, both included."""
        value = self.text(name)
        if not value:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not minimum <= number <= maximum:
            raise ConfigurationError(setting=name, hint=f"{value!r} is no number from {minimum:g} to {maximum:g}.")
        return number

    def integer(self, name: str, *, default: int, minimum: int, maximum: int) -> int:
        """A whole number between `minimum` and `maximum`, both included."""
        number = self.number(name, default=default, minimum=minimum, maximum=maximum)
        if number != int(number):
            raise ConfigurationError(setting=name, hint=f"{self.text(name)!r} is no whole number.")
        return int(number)

    def words(self, name: str, default: str = "") -> list[str]:
        """A comma-separated list, blanks and empty items dropped."""
        return [word.strip() for word in self.text(name, default).split(",") if word.strip()]

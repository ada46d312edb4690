"""What `factory` raises."""

from workspaces.errors import CapstanError


class FactoryError(CapstanError):
    """Root of what `factory` raises."""


class UnknownIdentity(FactoryError):
    """No agent has this name."""

    code = "factory.unknown_identity"


class ExtractError(FactoryError):
    """The model's answer held no usable JSON array: nothing is extracted, nothing is written (CAP-009)."""

    code = "factory.extract"

"""What `catalog` raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from catalog.types import Failure
from workspaces.errors import CapstanError


class CatalogError(CapstanError):
    """Root of what `catalog` raises."""

    code: ClassVar[str] = "catalog.error"


class SourceUnusable(CatalogError):
    """The path cannot be scanned: it does not exist, is no readable folder, or holds no Python source."""

    code = "catalog.source_unusable"


class ParseFailed(CatalogError):
    """Source files could not be read or parsed; nothing was written."""

    code = "catalog.parse_failed"

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.failures = tuple(failures)
        super().__init__(files=[str(f) for f in self.failures[:20]], count=len(self.failures))


class EmptyExtraction(CatalogError):
    """Nothing is left to ask a model about; it was not called (CAP-023)."""

    code = "catalog.empty_extraction"


class CanonicalizeError(CatalogError):
    """The model's verdicts do not fit the candidates; nothing was written."""

    code = "catalog.canonicalize"


class ChangeSetClosed(CatalogError):
    """The change set was applied or rejected already, or does not exist."""

    code = "catalog.change_set_closed"


class StaleChangeSet(CatalogError):
    """The catalogue changed after this change set was proposed; scan again."""

    code = "catalog.change_set_stale"


class UnknownElement(CatalogError):
    """No element has this key in the workspace."""

    code = "catalog.unknown_element"


class AmbiguousElement(CatalogError):
    """Several repositories of the workspace hold this key; name one with `repository`."""

    code = "catalog.ambiguous_element"


class InvalidProposal(CatalogError):
    """The proposal cannot become a change set."""

    code = "catalog.invalid_proposal"

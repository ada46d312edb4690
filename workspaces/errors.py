"""The root of every failure that Capstan foresaw."""

from typing import ClassVar


class CapstanError(Exception):
    """A failure we foresaw. Logs, metrics and clients key on `code`, retries on `retryable`.

    Args:
        details: plain values that explain this one failure; they reach logs and clients, so no secret goes in.
    """

    code: ClassVar[str] = "capstan.error"
    retryable: ClassVar[bool] = False

    def __init__(self, **details: object) -> None:
        self.details = details
        super().__init__(f"{self.code}: {(self.__doc__ or '').strip().splitlines()[0]} {details or ''}".rstrip())


class NotVisible(CapstanError):
    """No such object for this user: it does not exist, or belongs to somebody else."""

    code = "not_found"


class ConfigurationError(CapstanError):
    """The environment asks for something that cannot work; the detail `setting` names it and `hint` the cure."""

    code = "configuration"

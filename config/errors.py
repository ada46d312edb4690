"""Why a start was refused."""

from workspaces.errors import CapstanError


class StartRefused(CapstanError):
    """Capstan cannot start here."""

    code = "config.start_refused"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason=reason)

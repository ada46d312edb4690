"""What `tools` raises."""

from __future__ import annotations

from workspaces.errors import CapstanError


class ToolsError(CapstanError):
    """Root of what `tools` raises."""


class LeaseLost(ToolsError):
    """The run was reclaimed, cancelled or ended while this process was running it."""

    code = "run.lease_lost"


class RunEnded(ToolsError):
    """The run has ended, or its state no longer allows this."""

    code = "run.conflict"


class WaitingInsideTransaction(ToolsError):
    """A wait was about to begin with a transaction open; that would hold a connection, and could lose its writes."""

    code = "run.waiting_in_transaction"


class ToolRegistrationError(ToolsError):
    """A tool cannot be registered as it is written; the details name it, the reason and the cure."""

    code = "tools.registration"


class RegistryFrozen(ToolsError):
    """Code tools are fixed once the process has started."""

    code = "tools.registry_frozen"


class InvalidArguments(ToolsError):
    """The arguments of a call do not fit its tool; `problems` names fields and reasons, never the values."""

    code = "tools.invalid_arguments"

    def __init__(self, problems: str) -> None:
        self.problems = problems
        super().__init__(problems=problems)


class NotStorable(ToolsError):
    """A tool returned something that JSON cannot hold; `where` names it."""

    code = "tools.result_not_json"

    def __init__(self, where: str, problem: str) -> None:
        self.text = f"{where} {problem}"
        super().__init__(where=where, problem=problem)


class ToolTimeout(ToolsError):
    """A tool ran longer than its `timeout_s`."""

    code = "tools.timeout"


class OutcomeUnknown(ToolsError):
    """An external tool cannot tell whether its effect happened; raise it from the tool itself."""

    code = "tools.outcome_unknown"


class UnitBroken(ToolsError):
    """A write tool touched what belongs to its unit: the transaction itself, or another database."""

    code = "tools.unit_broken"


class ApprovalConflict(ToolsError):
    """The approval was decided already, or its run has ended; the detail `status` says which."""

    code = "approvals.conflict"


class ApprovalForbidden(ToolsError):
    """This user may not take this decision; the detail `reason` says why."""

    code = "approvals.forbidden"


class NoSuchResult(ToolsError):
    """There is no such result in this conversation or plan."""

    code = "tools.no_such_result"


class EgressRefused(ToolsError):
    """This address may not be connected to; MCP_PRIVATE_NETWORKS lists exceptions."""

    code = "tools.egress_refused"


class RemoteToolError(ToolsError):
    """An MCP server could not be asked, or answered with an error."""

    code = "mcp.error"


class RemoteToolChanged(ToolsError):
    """What the MCP server offers is not what a person approved; it has to be approved again in the admin."""

    code = "mcp.tool_changed"

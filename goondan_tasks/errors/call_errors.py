"""Calls and instances: what a client is told, without a result."""

from goondan_tasks.errors.goondan_error import GoondanError


class ToolCallConflictError(GoondanError):
    """The same call was submitted before with other arguments."""

    code = "E_TOOL_CALL_CONFLICT"
    suggestion = "Use a new toolCallId or turnId for a different call."


class PayloadTooLargeError(GoondanError):
    """The arguments, or another part of the call, are larger than the limit."""

    code = "E_PAYLOAD_TOO_LARGE"
    suggestion = (
        "Put large data into a file of the instance's workdir and pass its path, "
        "or raise GOONDAN_MAX_ARGS_BYTES."
    )


class CallNotFoundError(GoondanError):
    """No such call: it is unknown, or its record has expired."""

    code = "E_CALL_NOT_FOUND"
    suggestion = "Check the id; records are kept for GOONDAN_RESULT_TTL_SECONDS after the result."


class NoOutputError(GoondanError):
    """The call has no output: it has not ended, or it ended with an error."""

    code = "E_CALL_NO_OUTPUT"
    suggestion = "`goondan result ID` shows how the call stands, or its error."


class NotReplayableError(GoondanError):
    """The call cannot be replayed: it has not ended, has ended well, or was replayed before."""

    code = "E_CALL_NOT_REPLAYABLE"
    suggestion = "`goondan dead-letters list` shows what can be replayed, and what was."


class CallClosedError(GoondanError):
    """The call has its final result, which nothing changes any more."""

    code = "E_CALL_CLOSED"
    suggestion = "Read the result (`goondan result ID`); to run the tool again, submit a new call."


class CallNotPendingError(GoondanError):
    """The call does not wait for this."""

    code = "E_CALL_NOT_PENDING"
    suggestion = (
        "`goondan result ID` shows how it stands. `goondan resolve` completes a pending call; "
        "`goondan approvals` decides about one that waits for an approval."
    )


class AgentHasEntryError(GoondanError):
    """The agent's workers handle its events; nobody else may fetch them."""

    code = "E_AGENT_HAS_ENTRY"
    suggestion = "Fetch the events of agents without `spec.entry`, or remove the entry from this one."


class InstanceNotFoundError(GoondanError):
    """No such instance."""

    code = "E_INSTANCE_NOT_FOUND"
    suggestion = "`goondan instances` lists them."


class InstanceBusyError(GoondanError):
    """The instance is in use, so it was not deleted."""

    code = "E_INSTANCE_BUSY"
    suggestion = "Wait until its calls have ended, or cancel them (`goondan calls`, `goondan cancel`)."


class BrokerUnreachableError(GoondanError):
    """Redis cannot be reached."""

    code = "E_BROKER_UNREACHABLE"
    suggestion = "Start Redis, or set GOONDAN_REDIS_URL; `goondan doctor` checks the connection."


class StepLimitError(GoondanError):
    """The Turn has had as many Steps as it may have."""

    code = "E_STEP_LIMIT"
    suggestion = "End the Turn with what there is, or raise policy.maxStepsPerTurn of the Swarm."


class WaitTimeout(TimeoutError):  # noqa: N818 - the name is part of the public surface
    """The result did not arrive in time; only the waiting ended, the call goes on."""

    def __init__(self, call_id: str, seconds: float) -> None:
        super().__init__(
            f"No result for call {call_id} within {seconds:g} s; the call goes on "
            f"(`goondan result {call_id}` shows it)."
        )
        self.call_id = call_id
        self.seconds = seconds

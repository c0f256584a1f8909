"""What became of a request: the agent's answer, or the error that the asker is told."""

from goondan_tasks.errors import (
    AgentNotFoundError,
    AgentOutcomeUnknownError,
    AgentUnavailableError,
    HandoffCycleError,
    HandoffDepthError,
    HandoffError,
    HandoffTimeoutError,
)
from goondan_tasks.messages import ToolCall, ToolCallError, ToolCallResult
from goondan_tasks.new_call import identity_of
from goondan_tasks.runtime_api import RequestResult, SendResult

_ERRORS = {
    error.code: error
    for error in (
        AgentNotFoundError,
        AgentOutcomeUnknownError,
        AgentUnavailableError,
        HandoffCycleError,
        HandoffDepthError,
        HandoffTimeoutError,
    )
}


def request_result(call: ToolCall, result: ToolCallResult) -> RequestResult:
    """Return the answer to the request that ``call`` is.

    Raises:
        HandoffError: the agent failed, with its error.
    """
    if result.error is not None:
        raise handoff_error(result.error)
    return RequestResult(
        id=identity_of(call),
        event_id=f"answer-{call.tool_call_id}",
        target=call.agent_name,
        response=result.output,
        correlation_id=call.correlation_id,
    )


def accepted(call: ToolCall) -> RequestResult:
    """Return what the asker is told of a request that is answered later."""
    return RequestResult(
        id=identity_of(call),
        event_id=call.tool_call_id,
        target=call.agent_name,
        correlation_id=call.correlation_id,
        is_async=True,
    )


def sent(call: ToolCall, *, accepted: bool = True) -> SendResult:
    """Return what became of an event that nobody answers, once it stands in the mailbox, or was refused."""
    return SendResult(
        id=identity_of(call),
        event_id=call.tool_call_id,
        target=call.agent_name,
        accepted=accepted,
        correlation_id=call.correlation_id,
    )


def handoff_error(error: ToolCallError) -> HandoffError:
    """Return the exception that tells an agent's error to whoever asked it."""
    kind = _ERRORS.get(error.code, HandoffError)
    raised = kind(error.message, code=error.code, suggestion=error.suggestion)
    raised.help_url = error.help_url
    return raised


def not_answered(call: ToolCall, seconds: float) -> HandoffTimeoutError:
    """Return the error of a request whose asker has waited long enough."""
    return HandoffTimeoutError(f"{call.agent_name}@{call.instance_key} did not answer within {seconds:g} s.")

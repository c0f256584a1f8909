"""What a request to an agent ends with."""

from goondan_tasks.errors.goondan_error import GoondanError


class HandoffError(GoondanError):
    """The agent could not deal with the event."""

    code = "E_AGENT_FAILED"
    suggestion = "Read the message; `goondan trace` with the correlationId shows where it failed."


class AgentNotFoundError(HandoffError):
    """No such agent."""

    code = "E_AGENT_NOT_FOUND"
    suggestion = "`goondan agents` lists the agents; set GOONDAN_BUNDLE or start a worker for the agent."


class AgentUnavailableError(HandoffError):
    """The agent's workers crash as soon as they start."""

    code = "E_AGENT_UNAVAILABLE"
    suggestion = "`goondan agents` shows why they crash; correct that, and ask again."


class AgentOutcomeUnknownError(HandoffError):
    """The worker was lost while the agent dealt with the event; it may or may not have had its effect."""

    code = "E_AGENT_OUTCOME_UNKNOWN"
    suggestion = (
        "Check whether the effect took place before asking again; "
        "declare `idempotent: true` on the Agent if handling an event twice is harmless."
    )


class HandoffCycleError(HandoffError):
    """The agent waits already for this request, so it would wait for itself."""

    code = "E_HANDOFF_CYCLE"
    suggestion = (
        "Ask another agent or another instance, send an event instead of a request, "
        "or ask with `async: true`."
    )


class HandoffDepthError(HandoffError):
    """Too many agents wait for one another already."""

    code = "E_HANDOFF_DEPTH"
    suggestion = "Let an agent do more of the work itself, or raise GOONDAN_MAX_HANDOFF_DEPTH."


class HandoffTimeoutError(HandoffError):
    """The agent did not answer in time; it was told to stop."""

    code = "E_HANDOFF_TIMEOUT"
    suggestion = "Ask for less at once, give the request more time, or ask with `async: true`."

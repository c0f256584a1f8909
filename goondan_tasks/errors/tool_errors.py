"""What a tool call ends with: the model is shown these."""

from goondan_tasks.errors.goondan_error import GoondanError


class ToolError(GoondanError):
    """The tool failed."""

    code = "E_TOOL"
    suggestion = "Read the message, correct the arguments or the tool, and call it again."


class ToolNotInCatalogError(ToolError):
    """The tool is not available in the current Tool Catalog."""

    code = "E_TOOL_NOT_IN_CATALOG"
    suggestion = "Add the tool to spec.tools of the Agent, or register it dynamically in a step middleware."


class ToolNotFoundError(ToolError):
    """The tool is in the catalog, but this worker has no handler for it."""

    code = "E_TOOL_NOT_FOUND"
    suggestion = "Run `goondan validate` on the bundle; the entry file must export a handler for it."


class ToolInputValidationError(ToolError):
    """The arguments do not match the tool's parameters."""

    code = "E_TOOL_INVALID_ARGS"
    suggestion = "Correct the arguments named in the message and call the tool again."


class ToolTimeoutError(ToolError):
    """The tool did not finish within its time limit."""

    code = "E_TOOL_TIMEOUT"
    suggestion = "Ask for less work in one call, or raise timeoutSeconds of the call or of the export."


class ToolExpiredError(ToolError):
    """The call waited in the queue past its deadline and was not run."""

    code = "E_TOOL_EXPIRED"
    suggestion = "Start more workers for the agent (`goondan queues` shows the backlog), or submit again."


class ToolCancelledError(ToolError):
    """The call was cancelled."""

    code = "E_TOOL_CANCELLED"
    suggestion = "If it was running it may have had a part of its effect: check before submitting it again."


class ToolCrashedError(ToolError):
    """The tool's own process ended before the tool did."""

    code = "E_TOOL_CRASHED"
    suggestion = (
        "Read what the process wrote last in the worker's log; ask for less work in one call, "
        "correct the tool, or raise its memoryMb."
    )


class LimitError(ToolError):
    """The tool's limits let the call in only after its deadline; it was not run."""

    code = "E_LIMIT"
    suggestion = (
        "Submit again when the message says, with a later deadline, or raise the limit that it names."
    )


class ApprovalDeniedError(ToolError):
    """The call was not approved, and was not run."""

    code = "E_APPROVAL_DENIED"
    suggestion = "Read the reason in the message; ask for something else, or explain why it is needed."


class MiddlewareError(ToolError):
    """A middleware of an extension failed."""

    code = "E_MIDDLEWARE"
    suggestion = "Correct the extension that the message names, or take it out of the Agent's `extensions`."


class McpError(ToolError):
    """The MCP server could not carry out the call."""

    code = "E_MCP"
    suggestion = "Read the message; `goondan doctor` shows how the agent's MCP servers fare."


class ToolPoisonedError(ToolError):
    """Every attempt to run the call ended with the death of its worker."""

    code = "E_TOOL_POISONED"
    suggestion = (
        "Look at the worker logs of the attempts and correct the tool; "
        "`goondan dead-letters replay` runs the call again."
    )


class ToolOutcomeUnknownError(ToolError):
    """The worker was lost while the tool ran; it may or may not have had its effect."""

    code = "E_TOOL_OUTCOME_UNKNOWN"
    suggestion = (
        "Check whether the effect took place before submitting again; "
        "declare `idempotent: true` on the export if a second run is harmless."
    )


class ToolOutputError(ToolError):
    """The handler returned a value that is not JSON."""

    code = "E_TOOL_BAD_OUTPUT"
    suggestion = "Return only dicts with string keys, lists, strings, finite numbers, booleans and None."


class OutputNotStoredError(ToolError):
    """The tool ended well, but its output is too large for a result and could not be written to a file."""

    code = "E_OUTPUT_NOT_STORED"
    suggestion = (
        "The tool has done its work; do not repeat it unseen. Make room below GOONDAN_STATE_ROOT, "
        "or let the tool return less."
    )


class OutputGoneError(ToolError):
    """The file with the call's output is not there any more."""

    code = "E_OUTPUT_GONE"
    suggestion = "Call the tool again; outputs are kept for GOONDAN_RESULT_TTL_SECONDS, in the workdir."


class PathOutsideWorkdirError(ToolError):
    """The path leads outside the instance's workdir."""

    code = "E_PATH_OUTSIDE_WORKDIR"
    suggestion = "Use a path relative to the workdir, without `..` or links that lead outside."


class AddressForbiddenError(ToolError):
    """The address is not public."""

    code = "E_ADDRESS_FORBIDDEN"
    suggestion = "Use a public address, or have the operator add the host to GOONDAN_HTTP_ALLOW."

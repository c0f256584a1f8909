"""How ``goondan`` ends (DESIGN "Commands", frozen)."""

#: also for a call that is queued, running or pending
OK = 0
#: the tool answered with an error
FAILED = 1
#: the command line, or what it names: no such call, one that has ended, arguments too large, a conflict
USAGE = 2
#: the bundle, a setting, or an agent that neither of them knows
CONFIGURATION = 3
WAIT_TIMED_OUT = 4
BROKER_UNREACHABLE = 5
INTERRUPTED = 130
#: nobody reads our output any more; what a shell says of a program that SIGPIPE ended
BROKEN_PIPE = 141

_BY_CODE = {
    "E_BROKER_UNREACHABLE": BROKER_UNREACHABLE,
    "E_AGENT_NOT_FOUND": CONFIGURATION,
    "E_OAUTH_STORE": CONFIGURATION,
    "oauthAppNotFound": CONFIGURATION,
    "configurationError": CONFIGURATION,
    "grant_not_found": USAGE,
    "E_CALL_NOT_FOUND": USAGE,
    "E_CALL_NOT_REPLAYABLE": USAGE,
    "E_CALL_CLOSED": USAGE,
    "E_CALL_NOT_PENDING": USAGE,
    "E_INSTANCE_NOT_FOUND": USAGE,
    "E_INSTANCE_BUSY": USAGE,
    "E_PAYLOAD_TOO_LARGE": USAGE,
    "E_TOOL_CALL_CONFLICT": USAGE,
    # raised, that is: a result with this code ends a command as every error of a tool does
    "E_TOOL_INVALID_ARGS": USAGE,
    "E_WAIT_TIMEOUT": WAIT_TIMED_OUT,
    "E_HANDOFF_TIMEOUT": WAIT_TIMED_OUT,
    "E_USAGE": USAGE,
    "CHANGESET_NOT_FOUND": USAGE,
    "BUNDLE_INVALID": CONFIGURATION,
}


def exit_code_of(error_code: str) -> int:
    """Return how a command ends that failed with ``error_code``."""
    if error_code.startswith("E_CONFIG_"):
        return CONFIGURATION
    return _BY_CODE.get(error_code, FAILED)

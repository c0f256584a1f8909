"""The error tree: every failure that a caller can see, each with a code.

::

    GoondanError
    ├── ToolError                       E_TOOL                 (raised by handlers, shown to the model)
    │   ├── ToolNotInCatalogError       E_TOOL_NOT_IN_CATALOG
    │   ├── ToolNotFoundError           E_TOOL_NOT_FOUND
    │   ├── ToolInputValidationError    E_TOOL_INVALID_ARGS
    │   ├── ToolTimeoutError            E_TOOL_TIMEOUT
    │   ├── ToolExpiredError            E_TOOL_EXPIRED
    │   ├── ToolCancelledError          E_TOOL_CANCELLED
    │   ├── ToolCrashedError            E_TOOL_CRASHED
    │   ├── LimitError                  E_LIMIT
    │   ├── ApprovalDeniedError         E_APPROVAL_DENIED
    │   ├── MiddlewareError             E_MIDDLEWARE
    │   ├── McpError                    E_MCP
    │   ├── ToolPoisonedError           E_TOOL_POISONED
    │   ├── ToolOutcomeUnknownError     E_TOOL_OUTCOME_UNKNOWN
    │   ├── ToolOutputError             E_TOOL_BAD_OUTPUT
    │   ├── OutputNotStoredError        E_OUTPUT_NOT_STORED
    │   ├── OutputGoneError             E_OUTPUT_GONE
    │   ├── PathOutsideWorkdirError     E_PATH_OUTSIDE_WORKDIR
    │   └── AddressForbiddenError       E_ADDRESS_FORBIDDEN
    ├── ToolCallConflictError           E_TOOL_CALL_CONFLICT
    ├── PayloadTooLargeError            E_PAYLOAD_TOO_LARGE
    ├── CallNotFoundError               E_CALL_NOT_FOUND
    ├── NoOutputError                   E_CALL_NO_OUTPUT
    ├── NotReplayableError              E_CALL_NOT_REPLAYABLE
    ├── CallClosedError                 E_CALL_CLOSED
    ├── CallNotPendingError             E_CALL_NOT_PENDING
    ├── AgentHasEntryError              E_AGENT_HAS_ENTRY
    ├── InstanceNotFoundError           E_INSTANCE_NOT_FOUND
    ├── InstanceBusyError               E_INSTANCE_BUSY
    ├── ScheduleNotFoundError           E_SCHEDULE_NOT_FOUND
    ├── ScheduleOfBundleError           E_SCHEDULE_OF_BUNDLE
    ├── HandoffError                    E_AGENT_FAILED         (raised by requests to agents)
    │   ├── AgentNotFoundError          E_AGENT_NOT_FOUND
    │   ├── AgentUnavailableError       E_AGENT_UNAVAILABLE
    │   ├── AgentOutcomeUnknownError    E_AGENT_OUTCOME_UNKNOWN
    │   ├── HandoffCycleError           E_HANDOFF_CYCLE
    │   ├── HandoffDepthError           E_HANDOFF_DEPTH
    │   └── HandoffTimeoutError         E_HANDOFF_TIMEOUT
    ├── ModelError                      E_MODEL                (answered by a model's API)
    │   ├── ModelAuthError              E_MODEL_AUTH
    │   ├── ModelContextLengthError     E_MODEL_CONTEXT_LENGTH
    │   ├── ModelNotFoundError          E_MODEL_NOT_FOUND
    │   ├── ModelQuotaError             E_MODEL_QUOTA
    │   ├── ModelRateLimitError         E_MODEL_RATE_LIMIT
    │   ├── ModelUnavailableError       E_MODEL_UNAVAILABLE
    │   ├── ModelRefusedError           E_MODEL_REFUSED
    │   └── ModelAnswerError            E_MODEL_ANSWER
    ├── ConversationError               E_CONVERSATION
    ├── BrokerUnreachableError          E_BROKER_UNREACHABLE
    │   └── UnconfirmedError            E_NOT_CONFIRMED        (Redis has accepted the call)
    ├── ConfigError                     E_CONFIG_*             (each raise names its code)
    │   ├── ExtensionLoadError          E_EXT_LOAD
    │   └── ExtensionInitError          E_EXT_INIT
    ├── BundleRevisionUnavailableError  E_BUNDLE_REVISION_UNAVAILABLE
    ├── OAuthStoreError                 E_OAUTH_STORE
    ├── RecordDamagedError              E_RECORD_DAMAGED
    ├── StepLimitError                  E_STEP_LIMIT
    ├── ConnectorError                  E_CONNECTOR            (raised by ``ctx.emit`` of a connector)
    │   ├── WebhookRefusedError         E_WEBHOOK_REFUSED
    │   └── TooManyWaitingError         E_TOO_MANY_WAITING
    └── WaitTimeout                     E_WAIT_TIMEOUT         (only the waiting ended)

The first line of a class's docstring is its default message; ``suggestion`` says what to do next.
Sources: 001 §12.4.1, 003 §8, 004 ToolCallResultError.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, ClassVar

#: the code for a missing package, of the bundle or of Python
PACKAGE_NOT_INSTALLED = "E_CONFIG_PACKAGE_NOT_INSTALLED"


class GoondanError(Exception):
    """Something went wrong in Goondan Workers."""

    code: str = "E_GOONDAN"
    suggestion: str | None = None
    #: a tool's own page about the error; our own errors have ``HELP_URL + code``
    help_url: str | None = None
    #: whether every code of the class has a page; a ``ToolError`` may have a code of the tool
    documents_every_code: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code

    def __init__(
        self, message: str | None = None, *, code: str | None = None, suggestion: str | None = None
    ) -> None:
        self.message = message or (type(self).__doc__ or type(self).__name__).splitlines()[0]
        super().__init__(self.message)
        if code is not None:
            self.code = code
        if suggestion is not None:
            self.suggestion = suggestion

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the attributes, since the classes take different arguments."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[GoondanError], args: tuple[Any, ...], attributes: dict[str, Any]) -> GoondanError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ToolError(GoondanError, code="E_TOOL"):
    """The tool failed."""

    suggestion = "Read the message, correct the arguments or the tool, and call it again."


class ToolNotInCatalogError(ToolError, code="E_TOOL_NOT_IN_CATALOG"):
    """The tool is not available in the current Tool Catalog."""

    suggestion = "Add the tool to spec.tools of the Agent, or register it dynamically in a step middleware."


class ToolNotFoundError(ToolError, code="E_TOOL_NOT_FOUND"):
    """The tool is in the catalog, but this worker has no handler for it."""

    suggestion = "Run `goondan validate` on the bundle; the entry file must export a handler for it."


class ToolInputValidationError(ToolError, code="E_TOOL_INVALID_ARGS"):
    """The arguments do not match the tool's parameters."""

    suggestion = "Correct the arguments named in the message and call the tool again."


class ToolTimeoutError(ToolError, code="E_TOOL_TIMEOUT"):
    """The tool did not finish within its time limit."""

    suggestion = "Ask for less work in one call, or raise timeoutSeconds of the call or of the export."


class ToolExpiredError(ToolError, code="E_TOOL_EXPIRED"):
    """The call waited in the queue past its deadline and was not run."""

    suggestion = "Start more workers for the agent (`goondan queues` shows the backlog), or submit again."


class ToolCancelledError(ToolError, code="E_TOOL_CANCELLED"):
    """The call was cancelled."""

    suggestion = "If it was running, it may have had part of its effect: check before you submit it again."


class ToolCrashedError(ToolError, code="E_TOOL_CRASHED"):
    """The tool's own process ended before the tool did."""

    suggestion = (
        "Read what the process wrote last in the worker's log; ask for less work in one call, "
        "correct the tool, or raise its memoryMb."
    )


class LimitError(ToolError, code="E_LIMIT"):
    """The tool's limits let the call in only after its deadline; it was not run."""

    suggestion = (
        "Submit again when the message says, with a later deadline, or raise the limit that it names."
    )


class ApprovalDeniedError(ToolError, code="E_APPROVAL_DENIED"):
    """The call was not approved, and was not run."""

    suggestion = "Read the reason in the message; ask for something else, or explain why it is needed."


class MiddlewareError(ToolError, code="E_MIDDLEWARE"):
    """A middleware of an extension failed."""

    suggestion = "Correct the extension that the message names, or take it out of the Agent's `extensions`."


class McpError(ToolError, code="E_MCP"):
    """The MCP server could not carry out the call."""

    suggestion = "Read the message; `goondan doctor` shows the state of the agent's MCP servers."


class ToolPoisonedError(ToolError, code="E_TOOL_POISONED"):
    """Every attempt to run the call ended with the death of its worker."""

    suggestion = (
        "Look at the worker logs of the attempts and correct the tool; "
        "`goondan dead-letters replay` runs the call again."
    )


class ToolOutcomeUnknownError(ToolError, code="E_TOOL_OUTCOME_UNKNOWN"):
    """The worker was lost while the tool ran; it may or may not have had its effect."""

    suggestion = (
        "Check whether the effect took place before submitting again; "
        "declare `idempotent: true` on the export if a second run is harmless."
    )


class ToolOutputError(ToolError, code="E_TOOL_BAD_OUTPUT"):
    """The handler returned a value that is not JSON."""

    suggestion = "Return only dicts with string keys, lists, strings, finite numbers, booleans and None."


class OutputNotStoredError(ToolError, code="E_OUTPUT_NOT_STORED"):
    """The tool succeeded, but its output is too large for a result and could not be written to a file."""

    suggestion = (
        "The tool has done its work: check before you repeat it. Make room below GOONDAN_STATE_ROOT, "
        "or let the tool return less."
    )


class OutputGoneError(ToolError, code="E_OUTPUT_GONE"):
    """The file with the call's output no longer exists."""

    suggestion = "Call the tool again; outputs are kept for GOONDAN_RESULT_TTL_SECONDS, in the workdir."


class PathOutsideWorkdirError(ToolError, code="E_PATH_OUTSIDE_WORKDIR"):
    """The path leads outside the instance's workdir."""

    suggestion = "Use a path relative to the workdir, without `..` or links that lead outside."


class AddressForbiddenError(ToolError, code="E_ADDRESS_FORBIDDEN"):
    """The address is not public."""

    suggestion = "Use a public address, or have the operator add the host to GOONDAN_HTTP_ALLOW."


class ToolCallConflictError(GoondanError, code="E_TOOL_CALL_CONFLICT"):
    """The same call was submitted before with other arguments."""

    suggestion = "Use a new toolCallId or turnId for a different call."
    #: the handles of all calls that were submitted together, in order; those without a conflict are queued
    calls: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = {name: value for name, value in self.__dict__.items() if name != "calls"}
        return _restored, (type(self), self.args, attributes)  # the handles belong to their client


class PayloadTooLargeError(GoondanError, code="E_PAYLOAD_TOO_LARGE"):
    """The arguments, or another part of the call, are larger than the limit."""

    suggestion = (
        "Put large data into a file of the instance's workdir and pass its path, "
        "or raise GOONDAN_MAX_ARGS_BYTES."
    )


class CallNotFoundError(GoondanError, code="E_CALL_NOT_FOUND"):
    """No such call: it is unknown, or its record has expired."""

    suggestion = "Check the id; records are kept for GOONDAN_RESULT_TTL_SECONDS after the result."


class NoOutputError(GoondanError, code="E_CALL_NO_OUTPUT"):
    """The call has no output: it has not ended, or it ended with an error."""

    suggestion = "`goondan result ID` shows the call's state, or its error."


class NotReplayableError(GoondanError, code="E_CALL_NOT_REPLAYABLE"):
    """The call cannot be replayed: it has not ended, has succeeded, or was replayed before."""

    suggestion = "`goondan dead-letters list` shows what can be replayed, and what was."


class CallClosedError(GoondanError, code="E_CALL_CLOSED"):
    """The call already has its final result, which cannot change."""

    suggestion = "Read the result (`goondan result ID`); to run the tool again, submit a new call."


class CallNotPendingError(GoondanError, code="E_CALL_NOT_PENDING"):
    """The call is not waiting for this."""

    suggestion = (
        "`goondan result ID` shows its state. `goondan resolve` completes a pending call; "
        "`goondan approvals` decides about one that waits for an approval."
    )


class AgentHasEntryError(GoondanError, code="E_AGENT_HAS_ENTRY"):
    """The agent's workers handle its events; producers cannot receive them."""

    suggestion = "Fetch the events of agents without `spec.entry`, or remove the entry from this one."


class InstanceNotFoundError(GoondanError, code="E_INSTANCE_NOT_FOUND"):
    """No such instance."""

    suggestion = "`goondan instances` lists them."


class InstanceFileError(GoondanError, code="E_INSTANCE_FILE"):
    """The instance has no such file, or it cannot be read."""

    suggestion = "List the files of the instance; a path begins at its workdir and follows no links."


class ScheduleNotFoundError(GoondanError, code="E_SCHEDULE_NOT_FOUND"):
    """No such schedule."""

    suggestion = "`goondan schedules` lists them."


class ScheduleOfBundleError(GoondanError, code="E_SCHEDULE_OF_BUNDLE"):
    """The schedule is declared by a bundle, so it was not removed."""

    suggestion = "Remove it from the bundle's YAML, or pause it: goondan schedules pause NAME."


class InstanceBusyError(GoondanError, code="E_INSTANCE_BUSY"):
    """The instance is in use, so it was not deleted."""

    suggestion = "Wait until its calls have ended, or cancel them (`goondan calls`, `goondan cancel`)."


class BrokerUnreachableError(GoondanError, code="E_BROKER_UNREACHABLE"):
    """Redis cannot be reached."""

    suggestion = (
        "Start Redis, or set GOONDAN_REDIS_URL: for a `goondan dev`, paste the `export` line that it prints. "
        "`goondan doctor` checks the connection."
    )


class UnconfirmedError(BrokerUnreachableError, code="E_NOT_CONFIRMED"):
    """Redis has accepted this, and too few of its replicas have confirmed it in time."""

    suggestion = (
        "Bring the replicas back (`goondan doctor` counts them), then submit it again: with the same turnId "
        "and toolCallId, or eventId, it is the same call and is not run twice."
    )
    #: the handles of all calls that were submitted together, in order; see :class:`ToolCallConflictError`
    calls: tuple[Any, ...] = ()

    __reduce__ = ToolCallConflictError.__reduce__


class StepLimitError(GoondanError, code="E_STEP_LIMIT"):
    """The Turn has used all of its Steps."""

    suggestion = "End the Turn with what there is, or raise policy.maxStepsPerTurn of the Swarm."


class ConnectorError(GoondanError, code="E_CONNECTOR"):
    """The event of a connector cannot be handed over."""

    suggestion = "Read the message; `goondan connectors test` shows where an event would go."


class WebhookRefusedError(ConnectorError, code="E_WEBHOOK_REFUSED"):
    """A request to a Connection is not genuine, or not one that its connector takes."""

    suggestion = "Check the secret at the sender and in the Connection, and the clocks of both machines."

    def __init__(
        self, message: str | None = None, *, status: int = 401, suggestion: str | None = None
    ) -> None:
        """``status`` is that of the answer."""
        super().__init__(message, suggestion=suggestion)
        self.status = status


class TooManyWaitingError(ConnectorError, code="E_TOO_MANY_WAITING"):
    """So many events wait for the agent that the event of a request, or of a run that ends, is not stored."""

    suggestion = "Start more workers of the agent, or raise spec.maxWaiting of the Connection."


class WaitTimeout(GoondanError, TimeoutError, code="E_WAIT_TIMEOUT"):  # noqa: N818 - a public name
    """The result did not arrive in time; only the waiting ended, the call goes on."""

    suggestion = "Wait again, with a longer timeout, or cancel the call."

    def __init__(self, call_id: str, seconds: float) -> None:
        super().__init__(
            f"No result for call {call_id} within {seconds:g} s; the call goes on "
            f"(`goondan result {call_id}` shows it)."
        )
        self.call_id = call_id
        self.seconds = seconds


class HandoffError(GoondanError, code="E_AGENT_FAILED"):
    """The agent could not deal with the event."""

    suggestion = "Read the message; `goondan trace` with the correlationId shows where it failed."


class AgentNotFoundError(HandoffError, code="E_AGENT_NOT_FOUND"):
    """No such agent."""

    suggestion = "`goondan agents` lists the agents; set GOONDAN_BUNDLE or start a worker for the agent."


class AgentUnavailableError(HandoffError, code="E_AGENT_UNAVAILABLE"):
    """The agent's workers crash as soon as they start."""

    suggestion = "`goondan agents` shows why they crash; correct that, and ask again."


class AgentOutcomeUnknownError(HandoffError, code="E_AGENT_OUTCOME_UNKNOWN"):
    """The worker was lost while the agent dealt with the event; it may or may not have had its effect."""

    suggestion = (
        "Check whether the effect took place before asking again; "
        "declare `idempotent: true` on the Agent if handling an event twice is harmless."
    )


class HandoffCycleError(HandoffError, code="E_HANDOFF_CYCLE"):
    """The agent already waits for this request, so it would wait for itself."""

    suggestion = (
        "Ask another agent or another instance, send an event instead of a request, "
        "or ask with `async: true`."
    )


class HandoffDepthError(HandoffError, code="E_HANDOFF_DEPTH"):
    """Too many agents already wait for one another."""

    suggestion = "Let an agent do more of the work itself, or raise GOONDAN_MAX_HANDOFF_DEPTH."


class HandoffTimeoutError(HandoffError, code="E_HANDOFF_TIMEOUT"):
    """The agent did not answer in time; it was told to stop."""

    suggestion = "Ask for less at once, give the request more time, or ask with `async: true`."


class ModelError(GoondanError, code="E_MODEL"):
    """The model's API refused the request."""

    suggestion = "Read the message; it is the provider's. Correct the Model or modelConfig.params."
    #: the seconds to wait before another request, as the provider asked
    retry_after: float = 0.0


class ModelAuthError(ModelError, code="E_MODEL_AUTH"):
    """The model's API does not accept the key."""

    suggestion = "Set the variable that the Model's apiKey names, for the workers; then ask again."


class ModelContextLengthError(ModelError, code="E_MODEL_CONTEXT_LENGTH"):
    """The conversation is longer than the model's context."""

    suggestion = (
        "Shorten the input or the prompt, give the Agent fewer tools, or begin a new instance. Extension/"
        "message-compaction shortens a conversation before the model refuses it."
    )


class ModelNotFoundError(ModelError, code="E_MODEL_NOT_FOUND"):
    """The provider has no such model, or the key may not use it."""

    suggestion = "Correct the Model's `model`, or its `baseUrl`."


class ModelQuotaError(ModelError, code="E_MODEL_QUOTA"):
    """The account has used up its quota at the provider."""

    suggestion = "Raise the quota at the provider, or name another Model in modelConfig.fallbackRefs."


class ModelRateLimitError(ModelError, code="E_MODEL_RATE_LIMIT"):
    """The provider's rate limit was reached."""

    suggestion = "Set the Model's rateLimit, tokensPerMinute or maxConcurrency below the provider's limits."


class ModelUnavailableError(ModelError, code="E_MODEL_UNAVAILABLE"):
    """The model's API cannot be reached, is overloaded, or gave no valid answer in time."""

    suggestion = "Ask again later, or name another Model in modelConfig.fallbackRefs."


class ModelRefusedError(ModelError, code="E_MODEL_REFUSED"):
    """The model, or a filter of its provider, refused to answer."""

    suggestion = "Change what is asked for; the provider's policy forbids an answer."


class ModelAnswerError(ModelError, code="E_MODEL_ANSWER"):
    """The model's answer cannot be used, even after another request."""

    suggestion = "Ask again, simplify the tools or the outputSchema, or take a more capable model."


class ConversationError(GoondanError, code="E_CONVERSATION"):
    """A file of the conversation cannot be read."""

    suggestion = "Correct the line, or move the file away: the conversation then begins without it."


class ConfigError(GoondanError, code="E_CONFIG_SCHEMA_INVALID"):
    """The bundle or the configuration is not valid."""

    suggestion = "Run `goondan validate` for every finding, with file and line."


class ExtensionLoadError(ConfigError, code="E_EXT_LOAD"):
    """The file of an extension cannot be loaded."""

    suggestion = "Correct the file; `goondan validate` finds such errors before a worker does."


class ExtensionInitError(ConfigError, code="E_EXT_INIT"):
    """The `register` of an extension failed."""

    suggestion = "Correct the extension or its config, or take it out of the Agent's `extensions`."


class BundleRevisionUnavailableError(GoondanError, code="E_BUNDLE_REVISION_UNAVAILABLE"):
    """This machine does not have that revision of the bundle, and cannot get it."""

    suggestion = (
        "Push the commit to the remote that GOONDAN_BUNDLE_REMOTE names, and set it on every machine."
    )


class OAuthStoreError(GoondanError, code="E_OAUTH_STORE"):
    """A record of the OAuth store cannot be read, or its files cannot be used."""

    suggestion = "Read the message; `goondan oauth grants` and `goondan oauth sessions` list the records."

    @classmethod
    def of_record(cls, name: str, message: str) -> "OAuthStoreError":
        """Return an error about the record called ``name``; the suggestion says how to remove it."""
        afterwards = "ask for the consent again" if name.startswith("as-") else "have the user consent again"
        return cls(
            message,
            suggestion="Set GOONDAN_OAUTH_KEY to the key it was written with; if that is lost, or the "
            f"record is damaged, remove it with `goondan oauth revoke {name}` and {afterwards}.",
        )


class RecordDamagedError(GoondanError, code="E_RECORD_DAMAGED"):
    """A key in Redis holds something else than it should, so another program has written it."""

    suggestion = (
        "`redis-cli TYPE KEY` shows what it is. End the program that writes there, or give it another "
        "database; then remove the key: `redis-cli DEL KEY`."
    )


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Report a failed import in the ``with`` block as the package's extra that is missing.

    Raises:
        ConfigError: the extra is not installed, or in a version that lacks the imported name.
    """
    try:
        yield
    except ImportError as error:
        package, _, part = (error.name or name).partition(".")
        is_absent = isinstance(error, ModuleNotFoundError) and not part
        reason = "is not installed" if is_absent else "is installed in a version that does not fit"
        raise ConfigError(
            f"{package} {reason}.",
            code=PACKAGE_NOT_INSTALLED,
            suggestion=f"Install it with its extra: pip install 'goondan-workers[{name}]'",
        ) from error


def require_extra(name: str, *modules: str) -> None:
    """Check that the modules of an extra, which another process will import, are installed.

    Raises:
        ConfigError: one of them is not.
    """
    with extra(name):
        for module in modules:
            if find_spec(module) is None:
                raise ModuleNotFoundError(name=module)

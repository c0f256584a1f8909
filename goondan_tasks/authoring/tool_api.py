"""The API for authors of tools: ``handler(ctx, input)``, its :class:`ToolContext`, and ``ctx.runtime``.

A tool is a Python file with one function per export of its Tool resource: typed functions below
:func:`tool`, or ``handlers: dict[str, ToolHandler]``. A handler is a plain or an ``async`` function. Its
return value must be JSON. An exception becomes the call's error; its string attributes ``code``,
``suggestion`` and ``help_url`` are copied (003 §5, 004).

``ctx.runtime`` reaches the other agents of the swarm (004, AgentToolRuntime). In ``async`` code its methods
are coroutines. In plain code they block, and the call gives up its slot meanwhile.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from pydantic import Field

from goondan_tasks.authoring.typed_tools import mark_tool
from goondan_tasks.contract.errors import ToolError
from goondan_tasks.contract.messages import AgentEvent, JsonObject, Message, WireModel
from goondan_tasks.contract.output import Pending, emit_nowhere
from goondan_tasks.contract.wording import require_keywords

__all__ = [
    "AgentRuntime",
    "CatalogResult",
    "EmitOutput",
    "EventLike",
    "JsonObject",
    "ListResult",
    "Logger",
    "Message",
    "Pending",
    "ProcessOutcome",
    "ReportProgress",
    "RequestResult",
    "RunProcess",
    "ScheduledEvent",
    "SendResult",
    "SpawnResult",
    "SpawnedAgentInfo",
    "ToolContext",
    "ToolError",
    "ToolHandler",
    "ToolOptions",
    "tool",
]

#: how long a request waits for its answer by default
REQUEST_TIMEOUT_MS = 60_000

#: an AgentEvent, or some of its fields: ``input``, ``type``, ``instanceKey``, ``metadata``, ``id``
EventLike = AgentEvent | Mapping[str, Any]


class RequestResult(WireModel):
    """The answer to a request; with ``async: true`` only that it was accepted."""

    #: the identity of the request
    id: str
    event_id: str
    target: str
    response: Any = None
    correlation_id: str
    accepted: bool = True
    is_async: bool = Field(default=False, alias="async")


class SendResult(WireModel):
    """The result of sending an event that gets no answer."""

    #: the identity of the call that handles it
    id: str
    event_id: str
    target: str
    accepted: bool
    correlation_id: str | None = None


class ScheduledEvent(WireModel):
    """An event whose time is to come."""

    #: the identity of the call that handles it, as in :class:`SendResult`
    id: str
    target: str
    instance_key: str
    not_before: str
    input: Any = None


class SpawnResult(WireModel):
    """The prepared instance; ``spawned`` is false if it already existed."""

    target: str
    instance_key: str
    spawned: bool
    cwd: str | None = None


class SpawnedAgentInfo(WireModel):
    """An instance of an agent and its owner; ``client``, under its own key, if no agent spawned it."""

    target: str
    instance_key: str
    owner_agent: str
    owner_instance_key: str
    created_at: str
    cwd: str | None = None


class ListResult(WireModel):
    """Instances."""

    agents: tuple[SpawnedAgentInfo, ...]


class CatalogResult(WireModel):
    """The agents of the swarm."""

    swarm_name: str
    entry_agent: str
    self_agent: str
    available_agents: tuple[str, ...]
    callable_agents: tuple[str, ...]


class AgentRuntime(Protocol):
    """The methods of ``ctx.runtime``; options are a mapping in camelCase, or keywords."""

    def request(
        self,
        target: str,
        event: EventLike,
        options: Mapping[str, Any] | None = None,
        *,
        timeout_ms: float | None = None,
        is_async: bool = False,
        output_schema: JsonObject | None = None,
        delay: float | None = None,
        not_before: datetime | str | None = None,
    ) -> Any:
        """Ask an agent and wait up to ``timeoutMs`` (60,000) for its answer, a :class:`RequestResult`.

        With ``async: true`` this returns at once, and the answer arrives as an event in the asker's mailbox.
        An agent that thinks answers with JSON that fits ``outputSchema``, a JSON Schema; an entry gets it as
        ``event.output_schema``. With ``delay``, in seconds, or ``notBefore``, a datetime with a time zone or
        ISO 8601 text, the agent gets the request at that time, from which ``timeoutMs`` counts.

        Raises:
            HandoffError: the agent is unknown, failed, was too slow, or is waiting for this request.
            ToolInputValidationError: the event, an option or the schema is not valid.
        """

    def send(
        self,
        target: str,
        event: EventLike,
        options: Mapping[str, Any] | None = None,
        *,
        delay: float | None = None,
        not_before: datetime | str | None = None,
    ) -> Any:
        """Send an agent an event that it does not answer; return a :class:`SendResult`.

        With ``delay`` or ``notBefore``, as for :meth:`request`, it takes its place in the mailbox at that
        time.

        Raises:
            ToolInputValidationError: the event or an option is not valid.
            HandoffError: the agent is unknown, or too many agents wait for one another.
        """

    def scheduled(self, ids: Sequence[str]) -> Any:
        """Return those of the asker's events, by the ids of their results, whose time is to come.

        The answer is a list of :class:`ScheduledEvent`; events that another instance has sent are not in it.
        """

    def cancel(self, event_id: str) -> Any:
        """Cancel an event that the asker has sent, by the id of its result, if its time is to come.

        Return whether it is cancelled: false if its time has come, or this instance has sent no such event.
        """

    def spawn(
        self,
        target: str,
        options: Mapping[str, Any] | None = None,
        *,
        instance_key: str | None = None,
        cwd: str | None = None,
    ) -> Any:
        """Prepare an instance of an agent, or reuse it; return a :class:`SpawnResult`.

        ``cwd`` is its workdir: a path relative to the asker's, within the workspace's instances.

        Raises:
            HandoffError: the agent is unknown.
            ToolError: ``cwd`` leads outside.
        """

    def list(self, options: Mapping[str, Any] | None = None, *, include_all: bool = False) -> Any:
        """Return the asker's spawned instances, or all of the swarm's, as a :class:`ListResult`."""

    def catalog(self) -> Any:
        """Return the agents of the swarm as a :class:`CatalogResult`."""


ToolHandler = Callable[["ToolContext", JsonObject], Any | Awaitable[Any]]


class Logger(Protocol):
    """The structured logger of a call; keyword arguments become fields of the log line."""

    def debug(self, event: str, *args: Any, **fields: Any) -> Any:
        """Log for the developer."""

    def info(self, event: str, *args: Any, **fields: Any) -> Any:
        """Log what happened."""

    def warning(self, event: str, *args: Any, **fields: Any) -> Any:
        """Log what may be wrong."""

    def error(self, event: str, *args: Any, **fields: Any) -> Any:
        """Log what is wrong."""


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """The outcome of a program that a handler started."""

    stdout: str
    stderr: str
    #: -1 if a signal ended it
    exit_code: int
    #: the name of the signal, such as ``SIGKILL``
    signal: str | None
    timed_out: bool
    #: whether output beyond the limit was dropped
    truncated: bool
    duration_ms: int


class RunProcess(Protocol):
    """Run a program and wait for it. This blocks; async code uses ``asyncio.to_thread``."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        max_output_bytes: int = 1_000_000,
    ) -> ProcessOutcome:
        """Run ``argv`` in ``cwd`` (default: the workdir) and return how it ended.

        The whole process tree, ``setsid`` grandchildren included, is killed when the program ends, after
        ``timeout_seconds``, at the call's deadline, when the call is cancelled, or when the worker dies,
        whichever comes first.
        The program gets ``env``, the variables that the Tool or Agent names in its ``env``, and what every
        program needs (``PATH``, ``HOME`` and the like); nothing else of the worker's environment.

        Raises:
            ConfigError: a variable named in ``env`` of the Tool or Agent has no value.
            OSError: the program cannot be started.
            ToolError: the call was cancelled, or is past its deadline.
        """


class ReportProgress(Protocol):
    """Report the progress of the run to the caller. This never blocks and may be called often."""

    def __call__(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report that ``done`` of ``total`` (any unit; ``None``: unknown) is done, and what runs now.

        The caller sees the latest report a moment later. ``message`` has at most 1000 characters.

        Raises:
            ToolError: a number is negative, not finite or not a number; ``message`` is not text, or too long.
        """


class EmitOutput(Protocol):
    """Stream output to followers while the handler runs. This never blocks and may be called often."""

    def __call__(self, chunk: Any, /) -> None:
        """Show followers text, which they join, or a JSON value of at most 64 KiB.

        They follow the call if it was submitted with ``keep``, or the Turn that makes it if that was;
        otherwise nothing is written. Of a run, 1 MiB is shown. Its result does not depend on it.

        Raises:
            PayloadTooLargeError: the chunk is too large.
            ToolOutputError: it is neither text nor JSON.
        """


def _never() -> bool:
    return False


def _no_runtime() -> None:
    return None


def _no_callback_url() -> str:
    raise ToolError(
        "There is no address for callbacks.",
        suggestion="Set GOONDAN_PUBLIC_URL where the workers run, and start `goondan callbacks serve`.",
    )


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of a handler's call (004, ToolContext).

    It never has ``oauth`` or ``swarm_bundle`` (003 §5.3 rule 3).
    """

    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    tool_call_id: str
    #: the assistant Message that contains this call (003 §5.3 rule 4)
    message: Message
    #: the instance's existing directory; file tools start from here (003 §5.3 rules 1, 2)
    workdir: Path
    logger: Logger
    run_process: RunProcess
    #: shown by ``PendingCall.progress()`` and the progress bar of ``goondan call``
    progress: ReportProgress
    #: shown by ``client.follow()`` and ``goondan follow``; what it gets after the run is dropped
    emit: EmitOutput = emit_nowhere
    #: when the run must end (UTC); ``None``: no limit
    deadline: datetime | None = None
    _is_cancelled: Callable[[], bool] = field(default=_never, repr=False)
    _reach: Callable[[], AgentRuntime | None] = field(default=_no_runtime, repr=False)
    _callback_url: Callable[[], str] = field(default=_no_callback_url, repr=False)

    @property
    def runtime(self) -> AgentRuntime | None:
        """The other agents of the swarm; ``None`` where they cannot be reached (``isolation: process``)."""
        return self._reach()

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled or is past its limit.

        An ``async`` handler is cancelled then and need not check. A plain one cannot be interrupted, but may
        check this and return early.
        """
        return self._is_cancelled()

    @property
    def callback_url(self) -> str:
        """The URL that completes the call by ``POST`` of ``{"output": …}`` or ``{"error": {"message": …}}``.

        It contains a secret of this run. It works at once: a completion that arrives before the handler has
        returned :meth:`pending` is kept.

        Raises:
            ToolError: ``GOONDAN_PUBLIC_URL`` is not set.
        """
        return self._callback_url()

    def pending(self, handle: str, output: Any = None, *, ttl_seconds: float | None = None) -> Pending:
        """Return a value that says that the work continues elsewhere; the handler returns it (003 §8.2).

        The caller gets a result with status ``pending``, this ``handle`` and ``output``, and the call gives
        up its slot. It ends when it is completed by its id (``client.resolve``, ``client.fail``,
        ``goondan resolve``, :attr:`callback_url`), or with ``E_TOOL_EXPIRED`` after ``ttl_seconds`` (default:
        ``GOONDAN_RESULT_TTL_SECONDS``).

        Raises:
            ToolOutputError: the handle is not text, or the time is not a number above 0.
        """
        return Pending(handle, output, ttl_seconds)


def reaches_agents(ctx: ToolContext) -> bool:
    """Return whether ``ctx.runtime`` exists, without creating it."""
    return ctx._reach is not _no_runtime


class ToolOptions(TypedDict, total=False):
    """The fields of an export that :func:`tool` takes; docs/reference/yaml.md describes them."""

    name: str
    description: str
    timeout_seconds: float
    idempotent: bool
    max_attempts: int
    #: spelled as in YAML: ``{"max": 3, "backoffSeconds": 1, "codes": [...]}``
    retry: Mapping[str, Any]
    isolation: str
    #: names, or names and values spelled as in YAML: ``{"TOKEN": {"valueFrom": …}}``
    env: Sequence[str] | Mapping[str, Any]
    sandbox: bool | Literal["strict"]
    memory_mb: int
    max_concurrency: int
    rate_limit: str
    idempotency_key: Sequence[str]
    serial: bool
    requires_approval: bool


_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def tool(function: _Function, /) -> _Function: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[_Function], _Function]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a typed function a tool: ``@tool``, or ``@tool(idempotent=True)``.

    The export's name is the function's, with ``-`` for ``_``; its description is the docstring; its
    parameters come from the types. A first parameter named ``ctx``, or annotated :class:`ToolContext`, gets
    the context. Arguments are converted to the annotated types. The return value may be a pydantic model, a
    dataclass, or anything else that pydantic can write as JSON. Other code can call the function as before.

    Raises:
        ToolDefinitionError: the function cannot be called with a JSON object, or its name cannot name an
            export.
        TypeError: an option is unknown, or ``function`` is not a function.
    """
    require_keywords("tool()", options, ToolOptions.__annotations__)

    def mark(function: _Function) -> _Function:
        mark_tool(function, ToolContext, options)
        return function

    return mark if function is None else mark(function)

"""What the author of a tool sees: ``handler(ctx, input)``, its :class:`ToolContext`, and ``ctx.runtime``.

A tool is a Python file with functions, one for each export of its Tool resource: typed ones below
:func:`tool`, or ``handlers: dict[str, ToolHandler]``. A handler is a plain or an ``async`` function; what it
returns must be JSON, and what it raises becomes the call's error: string attributes ``code``, ``suggestion``
and ``help_url`` of the exception are copied (003 §5, 004).

``ctx.runtime`` reaches the other agents of the swarm (004, AgentToolRuntime). In ``async`` code its methods
are coroutines; in plain code the same names block, and the call gives up its slot meanwhile.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from pydantic import Field

from goondan_tasks.errors import ToolError
from goondan_tasks.messages import AgentEvent, JsonObject, Message, WireModel
from goondan_tasks.output import Pending
from goondan_tasks.typed_tools import mark_tool
from goondan_tasks.wording import require_keywords

__all__ = [
    "AgentRuntime",
    "CatalogResult",
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
    "SendResult",
    "SpawnResult",
    "SpawnedAgentInfo",
    "ToolContext",
    "ToolError",
    "ToolHandler",
    "ToolOptions",
    "tool",
]

#: how long a request waits for its answer, unless it says otherwise
REQUEST_TIMEOUT_MS = 60_000

#: an AgentEvent, or what is known of one: ``input``, ``type``, ``instanceKey``, ``metadata``, ``id``
EventLike = AgentEvent | Mapping[str, Any]


class RequestResult(WireModel):
    """The answer to a request; of one with ``async: true``, that it was accepted."""

    #: the identity of the request
    id: str
    event_id: str
    target: str
    response: Any = None
    correlation_id: str
    accepted: bool = True
    is_async: bool = Field(default=False, alias="async")


class SendResult(WireModel):
    """The result of sending an event, which is not answered.

    It is not ``accepted`` if the instance was given an event of the same id and another content before:
    the earlier event stays, this one is dropped.
    """

    #: the identity of its handling
    id: str
    event_id: str
    target: str
    accepted: bool
    correlation_id: str | None = None


class SpawnResult(WireModel):
    """The instance that was prepared; ``spawned`` says whether this call created it."""

    target: str
    instance_key: str
    spawned: bool
    cwd: str | None = None


class SpawnedAgentInfo(WireModel):
    """An instance of an agent, and its owner: ``client``, under its own key, if no agent spawned it."""

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
    """What ``ctx.runtime`` offers; options are a mapping in the documents' spelling, or keywords."""

    def request(
        self,
        target: str,
        event: EventLike,
        options: Mapping[str, Any] | None = None,
        *,
        timeout_ms: float | None = None,
        is_async: bool = False,
    ) -> Any:
        """Ask an agent and wait for its answer, ``timeoutMs`` (60,000) at most; a :class:`RequestResult`.

        With ``async: true`` it returns at once, and the answer arrives as an event in the asker's mailbox.

        Raises:
            HandoffError: the agent is unknown, failed, was too slow, or itself waits for this request.
        """

    def send(self, target: str, event: EventLike) -> Any:
        """Give an agent an event that it does not answer; a :class:`SendResult`.

        Raises:
            HandoffError: the agent is unknown, or too many agents wait for one another.
        """

    def spawn(
        self,
        target: str,
        options: Mapping[str, Any] | None = None,
        *,
        instance_key: str | None = None,
        cwd: str | None = None,
    ) -> Any:
        """Prepare an instance of an agent; a :class:`SpawnResult`. One that exists is used again.

        ``cwd`` is its workdir: a path relative to the asker's workdir, inside the workspace's instances.

        Raises:
            HandoffError: the agent is unknown.
            ToolError: ``cwd`` leads outside.
        """

    def list(self, options: Mapping[str, Any] | None = None, *, include_all: bool = False) -> Any:
        """Return the instances that the asker has spawned, or all of the swarm; a :class:`ListResult`."""

    def catalog(self) -> Any:
        """Return the agents of the swarm; a :class:`CatalogResult`."""


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
    """How a program that a handler started has ended."""

    stdout: str
    stderr: str
    #: the exit status; -1 if a signal ended it
    exit_code: int
    #: the name of that signal, such as ``SIGKILL``
    signal: str | None
    timed_out: bool
    #: whether output beyond the cap was dropped
    truncated: bool
    duration_ms: int


class RunProcess(Protocol):
    """Run a program and wait for it (a blocking call; from async code: ``asyncio.to_thread``)."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        max_output_bytes: int = 1_000_000,
    ) -> ProcessOutcome:
        """Start ``argv`` in ``cwd`` (default: the workdir) and return how it ended.

        The whole process tree, ``setsid`` grandchildren included, ends with the program, with
        ``timeout_seconds``, with the call's deadline, when the call is cancelled, or with the worker,
        whichever comes first.
        ``env`` is added to what any program needs (``PATH``, ``HOME`` and the like) and to the variables that
        the Tool or the Agent names in ``env``: nothing else of the worker's environment is passed on.

        Raises:
            ConfigError: a variable that ``env`` of the Tool or Agent names has no value.
            OSError: the program cannot be started.
            ToolError: the call was cancelled, or is past its deadline.
        """


class ReportProgress(Protocol):
    """Report the progress of the run to the caller; it never blocks, and may be called often."""

    def __call__(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report that ``done`` of ``total`` (any unit; ``None``: unknown) is done, and what happens now.

        The caller sees the latest report a moment later. ``message`` has at most 1000 characters.

        Raises:
            ToolError: a number is negative, not finite or not a number; ``message`` is not text, or too long.
        """


def _never() -> bool:
    return False


def _nobody() -> None:
    return None


def _nowhere() -> str:
    raise ToolError(
        "There is no address for callbacks.",
        suggestion="Set GOONDAN_PUBLIC_URL where the workers run, and start `goondan callbacks serve`.",
    )


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a handler knows of its call (004, ToolContext).

    It never carries ``oauth`` or ``swarm_bundle`` (003 §5.3 rule 3).
    """

    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    tool_call_id: str
    #: the assistant Message that holds this call (003 §5.3 rule 4)
    message: Message
    #: the instance's directory, which exists; file tools start from here (003 §5.3 rules 1, 2)
    workdir: Path
    logger: Logger
    run_process: RunProcess
    #: what ``PendingCall.progress()`` and the progress bar of ``goondan call`` show
    progress: ReportProgress
    #: the moment (UTC) the run must end; ``None`` without a limit
    deadline: datetime | None = None
    _is_cancelled: Callable[[], bool] = field(default=_never, repr=False)
    _reach: Callable[[], AgentRuntime | None] = field(default=_nobody, repr=False)
    _callback_url: Callable[[], str] = field(default=_nowhere, repr=False)

    @property
    def runtime(self) -> AgentRuntime | None:
        """The other agents of the swarm; ``None`` where they cannot be reached (``isolation: process``)."""
        return self._reach()

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled, or is past its limit.

        An ``async`` handler is cancelled then and need not check; a plain one cannot be, and may end early.
        """
        return self._is_cancelled()

    @property
    def callback_url(self) -> str:
        """Where the call can be completed by ``POST``: ``{"output": …}``, or ``{"error": {"message": …}}``.

        It carries a secret of this run, and takes effect at once: a completion that comes before the handler
        has returned :meth:`pending` is kept for it.

        Raises:
            ToolError: ``GOONDAN_PUBLIC_URL`` is not set.
        """
        return self._callback_url()

    def pending(self, handle: str, output: Any = None, *, ttl_seconds: float | None = None) -> Pending:
        """Make the return value of a handler whose work continues elsewhere (003 §8.2).

        The caller gets a result with status ``pending``, this ``handle`` and ``output``, and the call gives
        up its slot. It ends when it is completed by its id (``client.resolve``, ``client.fail``,
        ``goondan resolve``, :attr:`callback_url`), or with ``E_TOOL_EXPIRED`` after ``ttl_seconds``, by
        default ``GOONDAN_RESULT_TTL_SECONDS``.

        Raises:
            ToolOutputError: the handle is not text, or the time is not a number above 0.
        """
        return Pending(handle, output, ttl_seconds)


def reaches_agents(ctx: ToolContext) -> bool:
    """Return whether ``ctx.runtime`` is there, without making it."""
    return ctx._reach is not _nobody


class ToolOptions(TypedDict, total=False):
    """The fields of an export that :func:`tool` takes; docs/reference/yaml.md says what they mean."""

    name: str
    description: str
    timeout_seconds: float
    idempotent: bool
    max_attempts: int
    #: in the spelling of YAML: ``{"max": 3, "backoffSeconds": 1, "codes": [...]}``
    retry: Mapping[str, Any]
    isolation: str
    #: names, or what they get in the spelling of YAML: ``{"TOKEN": {"valueFrom": …}}``
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
    """Make a tool of a function with types: ``@tool``, or ``@tool(idempotent=True)``.

    The export gets its name from the function, with ``-`` for ``_``, its description from the docstring, its
    parameters from the types. A first parameter that is called ``ctx``, or is a :class:`ToolContext`, gets
    the context. Arguments arrive as the types say; what is returned may be a pydantic model, a dataclass, or
    anything that pydantic can write as JSON. The function stays as it is, to be called from other code.

    Raises:
        ToolDefinitionError: the function cannot be called with a JSON object, or its name is not a name of an
            export.
        TypeError: an option is unknown, or it is not a function.
    """
    require_keywords("tool()", options, ToolOptions.__annotations__)

    def mark(function: _Function) -> _Function:
        mark_tool(function, ToolContext, options)
        return function

    return mark if function is None else mark(function)

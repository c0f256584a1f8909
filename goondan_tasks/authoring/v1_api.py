"""The API for authors of tools and extensions of the older version (002; 000 §12).

The older version has resources with ``apiVersion: agents.example.io/v1alpha1``. A tool is a Python file
with ``handlers``, which are called with ``(ctx, input)``; an Extension's entry is a Python file with
``register(api)``. Names are those of the document, in snake_case.

::

    def post_message(ctx, input):
        token = ctx.oauth.get_access_token({"oauthAppRef": {"kind": "OAuthApp", "name": "slack-bot"}})
        if token.status == "authorization_required":
            return {"status": token.status, "authorizationUrl": token.authorization_url}
        ...

    handlers = {"slack.postMessage": post_message}
"""

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload

from goondan_tasks.authoring.extension_api import State
from goondan_tasks.authoring.tool_api import Logger, ToolContext
from goondan_tasks.bundle.resources import (
    AgentResource,
    ExtensionResource,
    SwarmResource,
    ToolExport,
    ToolResource,
)
from goondan_tasks.contract.catalog import McpSource as McpSource
from goondan_tasks.contract.catalog import ToolSource as ToolSource
from goondan_tasks.contract.messages import AgentEvent, JsonObject


@dataclass(slots=True)
class ToolCall:
    """A tool call by the model (002 §5.2)."""

    id: str
    name: str
    arguments: JsonObject


@dataclass(slots=True)
class ToolError:
    """Why a call failed (002 §6.1); ``message`` has at most ``errorMessageLimit`` characters."""

    message: str
    name: str | None = None
    code: str | None = None


@dataclass(slots=True)
class ToolResult:
    """The outcome of a call (002 §6.1)."""

    status: Literal["ok", "error", "pending"]
    output: Any = None
    #: of a pending call
    handle: str | None = None
    error: ToolError | None = None


@dataclass(frozen=True, slots=True)
class LlmResult:
    """The model's answer; its message has the form of :attr:`Turn.messages`."""

    message: JsonObject


@dataclass(frozen=True, slots=True)
class Turn:
    """An event and its handling so far (002 §4.4).

    This is a snapshot, made when its reader began, with the stored messages and results of the Turn; of a
    long Turn only the latest. For a call outside a Step, ``messages`` are those of the call itself.
    """

    id: str
    instance_id: str
    agent_name: str
    #: ``{role: system|user, content}``, ``{role: assistant, content?, toolCalls?: [{id, name, arguments}]}``
    #: and ``{role: tool, toolCallId, toolName, output}`` (002, appendix A)
    messages: Sequence[JsonObject] = ()
    #: by the id of the call
    tool_results: Mapping[str, ToolResult] = field(default_factory=dict)
    #: where the event came from: ``{connector?, channel?, threadTs?, …}``
    origin: JsonObject | None = None
    #: on whose behalf it runs: ``{actor, subjects: {global?, user?}}``
    auth: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the model and its tool calls (002 §4.4).

    A call outside a Step has a Step of its own, with the Turn's id.
    """

    id: str
    #: counted from 0
    index: int
    turn_id: str
    #: ``None`` before the model was called
    llm_result: LlmResult | None = None
    #: the calls of that message
    pending_tool_calls: Sequence[ToolCall] = ()


@dataclass(frozen=True, slots=True)
class V1CatalogItem:
    """A tool as the model sees it, and its origin (002 §10.1)."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    #: the resource and the export that declare it; ``None`` for a dynamic tool
    tool: ToolResource | None = None
    export: ToolExport | None = None
    source: ToolSource | None = None


@dataclass(frozen=True, slots=True)
class SwarmInstance:
    """The conversation or job shared by the agents of a Swarm."""

    id: str
    #: the ``instanceKey``
    key: str
    swarm_name: str
    #: registered by extensions for this agent
    dynamic_tools: Sequence[V1CatalogItem] = ()


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """The resources of a Step (002 §5.3)."""

    swarm: SwarmResource
    agent: AgentResource
    #: those of the agent with its overrides, in declared order
    tools: Sequence[ToolResource] = ()
    extensions: Sequence[ExtensionResource] = ()
    #: the bundle's ref, such as ``git:<sha>``, if the call names one
    revision: str | None = None


@dataclass(slots=True)
class ToolCallExecContext:
    """One tool call; ``toolCall.pre``, ``exec`` and ``post`` get the same object (002 §5.3)."""

    #: may be changed or replaced; the handler gets its ``arguments`` after they were checked
    tool_call: ToolCall
    turn: Turn
    step: Step
    effective_config: EffectiveConfig
    #: the catalog of the Step
    tool_catalog: Sequence[V1CatalogItem]
    #: set after the handler; after ``toolCall.post``, this is the result
    tool_result: ToolResult | None = None
    #: shared by the functions
    metadata: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class StepPipelineContext:
    """One Step, for ``step.pre``, ``step.config``, ``step.tools``, ``step.blocks`` and ``step.post``."""

    instance: SwarmInstance
    swarm: SwarmResource
    agent: AgentResource
    turn: Turn
    step: Step
    effective_config: EffectiveConfig
    #: the tools that the model sees and may call; change or replace it; items may be dicts of their fields
    tool_catalog: MutableSequence[Any]
    #: what the model reads besides its messages: ``{type, data?, items?, priority?}``
    blocks: list[JsonObject] = field(default_factory=list)
    #: by the id of the call, for ``step.post``
    tool_results: Mapping[str, ToolResult] = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class TurnPipelineContext:
    """One Turn, for ``turn.pre`` and ``turn.post``."""

    instance: SwarmInstance
    swarm: SwarmResource
    agent: AgentResource
    #: its last message is the event's; for ``turn.post`` it is complete
    turn: Turn
    effective_config: EffectiveConfig
    #: the event to handle
    event: AgentEvent
    #: the agent's answer, for ``turn.post``
    result: Any = None
    metadata: JsonObject = field(default_factory=dict)


class OAuthApi(Protocol):
    """Tokens of OAuthApps, for the subjects of the Turn (002 §8.1)."""

    def get_access_token(
        self,
        request: Mapping[str, Any] | None = None,
        *,
        oauth_app_ref: str | Mapping[str, str] | None = None,
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float | None = None,
    ) -> Any:
        """Return an OAuthTokenResult, whose ``status`` is ``ready``, ``authorization_required`` or ``error``.

        ``request`` is the document's ``{oauthAppRef, scopes?, minTtlSeconds?}``, in camelCase or
        snake_case; the keyword arguments are an alternative. A tool's ``auth`` provides the defaults, and
        limits the scopes.

        This blocks in plain code, and is a coroutine in ``async`` code.

        Raises:
            TypeError: the request has an unknown field, or repeats a keyword argument.
            BrokerUnreachableError: Redis cannot be reached.
        """


class SwarmBundle(Protocol):
    """The bundle, and the changes that the agent may make in this instance (002 §11.2; 000 §12.4).

    The methods block in plain code, and are coroutines in ``async`` code. The answers are JSON objects.
    """

    def open_changeset(
        self, request: Mapping[str, Any] | str | None = None, *, reason: str | None = None
    ) -> Any:
        """Open a changeset; return ``{changesetId, baseRef, workdir, hint}``.

        ``request`` is the document's ``{reason?}``, or the reason as text.

        Raises:
            ChangesetError: the policy forbids changesets, git failed, or there is no worker.
            TypeError: the request has an unknown field, or repeats a keyword argument.
        """

    def commit_changeset(
        self,
        request: Mapping[str, Any] | str | None = None,
        message: str | None = None,
        *,
        changeset_id: str | None = None,
    ) -> Any:
        """Commit a changeset; return ``{status, changesetId, baseRef?, newRef?, summary?, error?}``.

        ``request`` is the document's ``{changesetId, message?}``, in camelCase or snake_case, or the id as
        text. ``status`` is ``ok``, ``rejected``, ``conflict`` or ``failed``.

        Raises:
            ChangesetError, TypeError: as :meth:`open_changeset`.
        """

    def get_active_ref(self) -> Any:
        """Return the ref of the active revision."""


class EventBus(Protocol):
    """The events of this agent in this worker process.

    Listeners of ``ctx.events`` are removed at the end of the tool's run, those of ``api.events`` when the
    extension is unloaded.
    """

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        """Call all listeners, without waiting for ``async`` ones."""

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with each such event; its exceptions are logged. Return a function to stop."""

    def once(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with the next such event only."""

    def off(self, name: str, listener: Callable[[JsonObject], Any]) -> None:
        """Remove ``listener``, even if it was added several times."""


#: called with :class:`V1ToolContext` and the arguments; plain or ``async``
V1Handler = Callable[["V1ToolContext", JsonObject], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class V1ToolContext(ToolContext):
    """The context of a call for handlers of the older version (002 §4.3).

    It also has everything from the current version's context, such as ``workdir``: calls have no current
    directory of their own, so file tools start there. ``{"__async": True, "handle": …}`` means the same as
    ``pending`` (002 §6.3).
    """

    instance: SwarmInstance
    swarm: SwarmResource
    agent: AgentResource
    turn: Turn
    step: Step
    #: the catalog of the Step
    tool_catalog: Sequence[V1CatalogItem]
    swarm_bundle: SwarmBundle
    oauth: OAuthApi
    events: EventBus


class Pipelines(Protocol):
    """Registers an extension's functions for Turns, Steps and tool calls (002 §5.4)."""

    def mutate(
        self, point: str, function: Callable[[Any], Any], *, priority: int = 0, id: str | None = None
    ) -> None:
        """Pass the context of ``point`` through ``function``, which returns it, another one, or ``None``.

        Lower priorities come first, equal ones in order of registration. An exception ends the call, Step
        or Turn with ``E_MIDDLEWARE``.

        Raises:
            ValueError: there is no such point.
            TypeError: ``function`` is not a function, or ``priority`` not an integer.
        """

    def wrap(
        self, point: str, function: Callable[[Any, Any], Any], *, priority: int = 0, id: str | None = None
    ) -> None:
        """Put ``function(ctx, next)`` around ``toolCall.exec``; lower priorities are further out.

        Raises:
            ValueError, TypeError: as :meth:`mutate`.
        """


class Tools(Protocol):
    """The agent's dynamic tools (002 §9)."""

    @overload
    def register(self, item: Mapping[str, Any]) -> None: ...
    @overload
    def register(self, item: Mapping[str, Any] | V1CatalogItem, handler: V1Handler) -> None: ...
    def register(self, item: Any, handler: V1Handler | None = None) -> None:
        """Add a tool; the next Step shows it.

        ``item``: ``{name: "weather.get", description?, parameters?, handler}``; the handler may also be a
        separate argument. A second tool with the same name wins, with a warning.

        Raises:
            ValueError: the item, its name or its parameters are not valid.
            TypeError: the handler does not take ``(ctx, input)``.
        """

    def unregister(self, name: str) -> bool:
        """Remove a tool; return whether it existed."""

    def get(self, name: str) -> V1CatalogItem | None:
        """Return a tool of the agent in this worker."""

    def list(self) -> Sequence[V1CatalogItem]:
        """Return the agent's tools in this worker."""


class ExtensionInstance(Protocol):
    """What an agent's extensions share in the running instance."""

    @property
    def shared(self) -> State:
        """State that all of them use."""


class StateObject(Protocol):
    """One object per instance."""

    def get_state(self) -> Any: ...
    def set_state(self, state: JsonObject) -> Any: ...


@dataclass(frozen=True, slots=True)
class V1ExtensionApi:
    """The argument of ``register``; it may be kept and used later."""

    #: the Extension resource: ``.metadata.name``, ``.spec.config``
    extension: ExtensionResource
    agent_name: str
    pipelines: Pipelines
    tools: Tools
    events: EventBus
    #: the bundle, with the running agent's rights
    swarm_bundle: SwarmBundle
    oauth: OAuthApi
    #: the extension's state, key by key
    state: State
    #: shared by the agent's extensions
    instance: ExtensionInstance
    #: a structured logger that names the extension and the agent
    logger: Logger
    _object: StateObject = field(repr=False)

    def get_state(self) -> Any:
        """Return the object of the running instance, which is empty at first.

        This blocks in plain code, and is a coroutine in ``async`` code.

        Raises:
            RuntimeError: no instance is running.
            BrokerUnreachableError: Redis cannot be reached.
        """
        return self._object.get_state()

    def set_state(self, state: JsonObject) -> Any:
        """Set the object of the running instance; a coroutine where :meth:`get_state` is one.

        Raises:
            TypeError: ``state`` is not an object.
            ValueError: ``state`` is not JSON, or too large.
            RuntimeError, BrokerUnreachableError: as :meth:`get_state`.
        """
        return self._object.set_state(state)

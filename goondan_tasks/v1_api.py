"""What the author of a tool or an extension of the older version sees (002; 000 §12).

The older version is that of resources with ``apiVersion: agents.example.io/v1alpha1``. A tool is a Python
file with ``handlers``, whose functions are called with ``(ctx, input)``; an Extension's entry is a Python
file with ``register(api)``. Names are the document's own, in snake_case.

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

from goondan_tasks.bundle.catalog import McpSource as McpSource
from goondan_tasks.bundle.catalog import ToolSource as ToolSource
from goondan_tasks.bundle.resources import (
    AgentResource,
    ExtensionResource,
    SwarmResource,
    ToolExport,
    ToolResource,
)
from goondan_tasks.extension_api import State
from goondan_tasks.messages import AgentEvent, JsonObject
from goondan_tasks.tool_api import Logger, ToolContext


@dataclass(slots=True)
class ToolCall:
    """One call that the model asks for (002 §5.2)."""

    id: str
    name: str
    arguments: JsonObject


@dataclass(slots=True)
class ToolError:
    """Why a call failed (002 §6.1); ``message`` is as long as ``errorMessageLimit`` allows."""

    message: str
    name: str | None = None
    code: str | None = None


@dataclass(slots=True)
class ToolResult:
    """The outcome of a call (002 §6.1)."""

    status: Literal["ok", "error", "pending"]
    output: Any = None
    #: of a call that is pending
    handle: str | None = None
    error: ToolError | None = None


@dataclass(frozen=True, slots=True)
class LlmResult:
    """What the model said: its message, in the form of :attr:`Turn.messages`."""

    message: JsonObject


@dataclass(frozen=True, slots=True)
class Turn:
    """One event and what has come of it so far (002 §4.4).

    It is as it was when its reader began: the messages and results that are kept of the Turn, and of a long
    one the latest of them. A call that belongs to no Step has the messages of the call itself.
    """

    id: str
    instance_id: str
    agent_name: str
    #: ``{role: system|user, content}``, ``{role: assistant, content?, toolCalls?: [{id, name, arguments}]}``
    #: and ``{role: tool, toolCallId, toolName, output}`` (002, appendix A)
    messages: Sequence[JsonObject] = ()
    #: by the calls' ids
    tool_results: Mapping[str, ToolResult] = field(default_factory=dict)
    #: where the event came from: ``{connector?, channel?, threadTs?, …}``
    origin: JsonObject | None = None
    #: whom it acts for: ``{actor, subjects: {global?, user?}}``
    auth: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the model and its tool calls (002 §4.4).

    A call that belongs to no Step has one of its own, whose id is the Turn's.
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
    """One tool as the model sees it, and where it comes from (002 §10.1)."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    #: the resource and the export that declare it; ``None`` for a dynamic tool
    tool: ToolResource | None = None
    export: ToolExport | None = None
    source: ToolSource | None = None


@dataclass(frozen=True, slots=True)
class SwarmInstance:
    """The conversation or job that the agents of a Swarm share."""

    id: str
    #: the ``instanceKey``
    key: str
    swarm_name: str
    #: those that extensions have registered for this agent
    dynamic_tools: Sequence[V1CatalogItem] = ()


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """The resources that a Step is run with (002 §5.3)."""

    swarm: SwarmResource
    agent: AgentResource
    #: those of the agent, its overrides applied, in declared order
    tools: Sequence[ToolResource] = ()
    extensions: Sequence[ExtensionResource] = ()
    #: the bundle's ref, such as ``git:<sha>``, if the call names one
    revision: str | None = None


@dataclass(slots=True)
class ToolCallExecContext:
    """One tool call on its way: the same object for ``toolCall.pre``, ``exec`` and ``post`` (002 §5.3)."""

    #: change its ``arguments``, or replace it: the handler gets what is left, once that was checked
    tool_call: ToolCall
    turn: Turn
    step: Step
    effective_config: EffectiveConfig
    #: the catalog of the Step
    tool_catalog: Sequence[V1CatalogItem]
    #: there after the handler; what ``toolCall.post`` leaves here is the result
    tool_result: ToolResult | None = None
    #: for the functions among themselves
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
    #: what the model is shown and may call; change it or replace it; items may be dicts of their fields
    tool_catalog: MutableSequence[Any]
    #: what the model is told besides its messages: ``{type, data?, items?, priority?}``
    blocks: list[JsonObject] = field(default_factory=list)
    #: the outcomes of the Step's tool calls, by their ids, for ``step.post``
    tool_results: Mapping[str, ToolResult] = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class TurnPipelineContext:
    """One Turn, for ``turn.pre`` and ``turn.post``."""

    instance: SwarmInstance
    swarm: SwarmResource
    agent: AgentResource
    #: its last message says what the event does; for ``turn.post``, with all that has come of it
    turn: Turn
    effective_config: EffectiveConfig
    #: what the agent is to deal with
    event: AgentEvent
    #: what the agent has answered, for ``turn.post``
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

        ``request`` is the document's ``{oauthAppRef, scopes?, minTtlSeconds?}``, in camelCase or snake_case;
        the arguments say the same. A tool's ``auth`` stands in for what is left out, and limits the scopes.

        It blocks in plain code, and is a coroutine in ``async`` code.

        Raises:
            TypeError: the request has another field, or says the same as an argument.
            BrokerUnreachableError: Redis cannot be reached.
        """


class SwarmBundle(Protocol):
    """The bundle, as the agent may change it in this instance (002 §11.2; 000 §12.4).

    All of it blocks in plain code, and is a coroutine in ``async`` code. The answers are JSON objects.
    """

    def open_changeset(
        self, request: Mapping[str, Any] | str | None = None, *, reason: str | None = None
    ) -> Any:
        """Open a changeset; return ``{changesetId, baseRef, workdir, hint}``.

        ``request`` is the document's ``{reason?}``; a text is the reason.

        Raises:
            ChangesetError: the policy does not allow changesets, or git cannot; or there is no worker.
            TypeError: the request has another field, or says the same as an argument.
        """

    def commit_changeset(
        self,
        request: Mapping[str, Any] | str | None = None,
        message: str | None = None,
        *,
        changeset_id: str | None = None,
    ) -> Any:
        """Commit one; return ``{status, changesetId, baseRef?, newRef?, summary?, error?}``.

        ``request`` is the document's ``{changesetId, message?}``, in camelCase or snake_case; a text is the
        id. ``status`` is ``ok``, ``rejected``, ``conflict`` or ``failed``.

        Raises:
            ChangesetError, TypeError: as :meth:`open_changeset`.
        """

    def get_active_ref(self) -> Any:
        """Return the ref of the revision that is active now."""


class EventBus(Protocol):
    """What happens in this worker process, as far as this agent is concerned.

    Listeners of ``ctx.events`` hear nothing any more once the tool's run has ended; those of ``api.events``
    do as long as the extension is loaded.
    """

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        """Call all listeners; ``async`` ones are not waited for."""

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with each such event; what it raises is logged. Return what ends that."""

    def once(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with the next such event only."""

    def off(self, name: str, listener: Callable[[JsonObject], Any]) -> None:
        """Call ``listener`` no more, however often it was given to :meth:`on` or :meth:`once`."""


#: called with :class:`V1ToolContext` and the arguments; plain or ``async``
V1Handler = Callable[["V1ToolContext", JsonObject], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class V1ToolContext(ToolContext):
    """What a handler of the older version knows of its call, and what it may use (002 §4.3).

    It has everything that a current context has, such as ``workdir``: no worker has a current directory for
    each call, so file tools begin there. ``{"__async": True, "handle": …}`` means the same as ``pending``
    (002 §6.3).
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
    """Where the functions of an extension are put into the way of Turns, Steps and tool calls (002 §5.4)."""

    def mutate(
        self, point: str, function: Callable[[Any], Any], *, priority: int = 0, id: str | None = None
    ) -> None:
        """Pass the context of ``point`` through ``function``, which returns it, another one, or ``None``.

        Lower priorities come first, equal ones in order of registration. An exception ends the call, Step or
        Turn with ``E_MIDDLEWARE``.

        Raises:
            ValueError: there is no such point here.
            TypeError: it is not a function, or its priority no whole number.
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

        ``item``: ``{name: "weather.get", description?, parameters?, handler}``; the handler may also be
        given apart. Of two with one name the last counts, with a warning.

        Raises:
            ValueError: the item, its name or its parameters are not valid.
            TypeError: the handler is not a function of ``(ctx, input)``.
        """

    def unregister(self, name: str) -> bool:
        """Take a tool away again; return whether there was one."""

    def get(self, name: str) -> V1CatalogItem | None:
        """Return a tool that the agent has in this worker."""

    def list(self) -> Sequence[V1CatalogItem]:
        """Return the tools that the agent has in this worker."""


class ExtensionInstance(Protocol):
    """What the extensions of one agent share for the instance that is running."""

    @property
    def shared(self) -> State:
        """State that all of them see."""


class StateObject(Protocol):
    """One object for each instance."""

    def get_state(self) -> Any: ...
    def set_state(self, state: JsonObject) -> Any: ...


@dataclass(frozen=True, slots=True)
class V1ExtensionApi:
    """What ``register`` is called with; it may be kept and used later."""

    #: the Extension resource: ``.metadata.name``, ``.spec.config``
    extension: ExtensionResource
    agent_name: str
    pipelines: Pipelines
    tools: Tools
    events: EventBus
    #: the bundle, as the running agent may change it
    swarm_bundle: SwarmBundle
    oauth: OAuthApi
    #: what the extension remembers, key by key
    state: State
    #: what the agent's extensions share
    instance: ExtensionInstance
    #: a structured logger that names the extension and the agent
    logger: Logger
    _object: "StateObject" = field(repr=False)

    def get_state(self) -> Any:
        """Return the object that :meth:`set_state` has set for the running instance; it is empty at first.

        It blocks in plain code, and is a coroutine in ``async`` code.

        Raises:
            RuntimeError: no instance is running.
            BrokerUnreachableError: Redis cannot be reached.
        """
        return self._object.get_state()

    def set_state(self, state: JsonObject) -> Any:
        """Set an object for the running instance; waits as :meth:`get_state` does.

        Raises:
            TypeError: it is not an object.
            ValueError: it is not JSON, or too long.
            RuntimeError, BrokerUnreachableError: as :meth:`get_state`.
        """
        return self._object.set_state(state)

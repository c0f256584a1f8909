"""The API for authors of extensions: ``register(api)``, the contexts of the three pipelines, and Steps.

An Extension's entry is a Python file with ``register(api)`` or ``register(api, config)``, plain or ``async``.
A worker calls it once at start for each of its agents that uses the extension, in the order of the agent's
``extensions`` (002 §5.4, §9; 003 §6.4, §10).

::

    def register(api):
        async def timed(ctx):
            started = time.monotonic()
            result = await ctx.next()
            api.logger.debug("tool.called", tool=ctx.tool_name, seconds=time.monotonic() - started)
            return result

        api.pipeline.register("toolCall", timed)
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from goondan_tasks.authoring.changesets_api import SwarmBundleApi
from goondan_tasks.authoring.tool_api import Logger, ToolHandler
from goondan_tasks.contract.catalog import CatalogItem, McpSource, ToolCatalog, ToolSource
from goondan_tasks.contract.conversation import Conversation, MessageEvent
from goondan_tasks.contract.messages import AgentEvent, JsonObject, Message, ToolCallResult

__all__ = [
    "AgentEvent",
    "AgentStep",
    "CatalogItem",
    "Conversation",
    "Events",
    "ExtensionApi",
    "ExtensionInfo",
    "McpSource",
    "Message",
    "MessageEvent",
    "Middleware",
    "OAuth",
    "Pipeline",
    "Point",
    "State",
    "StepContext",
    "StepResult",
    "SwarmBundleApi",
    "ToolCallContext",
    "ToolSource",
    "Tools",
    "TurnContext",
]

#: what a middleware wraps: around a Turn, around a Step of it, around each tool call
Point = Literal["turn", "step", "toolCall"]

#: an ``async`` one sees the outcome of ``ctx.next()``; a plain one returns ``ctx.next()`` or another answer
Middleware = Callable[[Any], Any]

Result = TypeVar("Result")

#: attributes that identify the call, Step or Turn; setting them would have no effect
_READ_ONLY = frozenset(
    {
        "_ask_model",
        "agent_name",
        "auth",
        "conversation_state",
        "event",
        "instance_key",
        "message",
        "origin",
        "step_id",
        "step_index",
        "tool_call_id",
        "tool_name",
        "trace_id",
        "turn_id",
    }
)


async def _no_next() -> Any:
    raise RuntimeError("only a middleware has a next()")


class Onion(Generic[Result]):
    """The base of the contexts of one pipeline.

    Every middleware gets a context object of its own, so that its ``next()`` continues at the right place.
    All these objects and the core share one set of attributes: the next middleware sees what the previous one
    changed. Only the ``changeable`` ones may be changed; the rest is set once.
    """

    __slots__ = ("__dict__", "_next")
    _next: Callable[[], Awaitable[Result]]
    changeable: ClassVar[tuple[str, ...]] = ("metadata",)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        Raises:
            AttributeError: it is read-only and already set.
        """
        if name in _READ_ONLY and name in self.__dict__:
            changeable = ", ".join(f"ctx.{attribute}" for attribute in self.changeable)
            raise AttributeError(f"ctx.{name} is read-only; a middleware may change: {changeable}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Refuse to delete an attribute, because the other layers need it.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(f"ctx.{name} cannot be deleted: others use it after this middleware")

    def next(self) -> Awaitable[Result]:
        """Run the next middleware, or the core, and return its result; allowed once.

        Raises:
            RuntimeError: it was called before.
            Exception: an inner layer raised it.
        """
        return getattr(self, "_next", _no_next)()

    def layer(self, proceed: Callable[[], Awaitable[Result]]) -> Self:
        """Return the context of one middleware, whose ``next()`` calls ``proceed``."""
        layer = object.__new__(type(self))
        layer.__dict__ = self.__dict__
        layer._next = proceed
        return layer


@dataclass
class ToolCallContext(Onion[ToolCallResult]):
    """One tool call (003 §6.3).

    ``next()`` returns the result so far, with status ok or pending, or raises what the handler raised. A
    middleware returns that result, another one, or any other JSON, which becomes the output.
    """

    changeable = ("args", "metadata")
    tool_name: str
    tool_call_id: str
    #: checked against the tool's parameters after the innermost middleware
    args: JsonObject
    agent_name: str = ""
    instance_key: str = ""
    turn_id: str = ""
    trace_id: str = ""
    step_id: str | None = None
    #: the assistant Message that holds the call
    message: Message | None = None
    #: shared by the middlewares
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a Step: the model's tool calls, and their results in the same order."""

    tool_calls: tuple[JsonObject, ...] = ()
    tool_results: tuple[ToolCallResult, ...] = ()
    metadata: JsonObject = field(default_factory=dict)


class _WithConversation(Onion[Result]):
    """A context through which the conversation of a thinking agent can be changed."""

    #: ``base_messages``, ``events`` and ``next_messages``; ``None`` unless the Turn thinks
    conversation_state: Conversation | None

    def emit_message_event(self, event: MessageEvent | JsonObject) -> None:
        """Change the conversation: append a message, replace or remove one, or truncate them all.

        Raises:
            ValueError: the event is not valid, or there is no conversation.
        """
        if self.conversation_state is None:
            raise ValueError("Only a Turn that thinks has a conversation.")
        self.conversation_state.emit(event)


@dataclass
class StepContext(_WithConversation[StepResult]):
    """One Step: one call of the model and its tool calls (001 §12.1, 003 §1.2).

    In an agent with an entry, the core of the pipeline is the Step itself. For a producer the core only fixes
    catalog and blocks, so code after ``next()`` runs before the model is called (DESIGN §6).
    """

    changeable = ("tool_catalog", "blocks", "metadata")
    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    step_id: str
    #: counted from 0
    step_index: int
    #: the tools that the model sees and may call; change the list or replace it
    tool_catalog: list[CatalogItem]
    #: what the model reads besides its messages: ``{type, data?, items?, priority?}``
    blocks: list[JsonObject] = field(default_factory=list)
    #: what the Step begins with
    message: JsonObject | None = None
    auth: JsonObject | None = None
    origin: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)
    conversation_state: Conversation | None = None
    _ask_model: Callable[..., Awaitable[str]] | None = field(default=None, repr=False)

    async def ask_model(
        self,
        messages: Sequence[JsonObject | Message],
        *,
        instructions: str = "",
        model_ref: str | None = None,
    ) -> str:
        """Ask a model and return the text of its answer; this does not count towards the middleware's time.

        ``messages`` are Messages (004) or ``{role, content}``. ``model_ref`` is such as ``Model/small``;
        the default is the Agent's model with its fallbacks. The request is a call like the Step's own: the
        Model's limits apply, its tokens are counted, and a retry of this run gets the same answer for the
        same request.

        Raises:
            ModelError: the model cannot be reached, or does not answer.
            ConfigError: there is no such Model.
            ValueError: the Agent has no model, or its code is not ``async``.
        """
        if self._ask_model is None:
            raise ValueError("Only an Agent with a modelConfig, whose code is async if it has any, can ask.")
        return await self._ask_model(messages, instructions=instructions, model_ref=model_ref)


@dataclass
class TurnContext(_WithConversation[Any]):
    """The handling of one event; ``next()`` returns the agent's answer."""

    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    event: AgentEvent
    auth: JsonObject | None = None
    origin: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)
    conversation_state: Conversation | None = None


class Pipeline(Protocol):
    """Registers middlewares."""

    def register(self, point: Point, middleware: Middleware, priority: int = 0) -> None:
        """Put ``middleware`` around the agent's Turns, Steps or tool calls.

        A lower priority is further out; of equal ones, the first registered is the outermost.

        Raises:
            ValueError: there is no such point.
            TypeError: ``middleware`` is not a function, or ``priority`` not an integer.
        """


class Tools(Protocol):
    """The agent's dynamic tools (003 §10)."""

    def register(
        self,
        item: CatalogItem | Mapping[str, Any],
        handler: ToolHandler,
        *,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a tool; the next Step shows it. A second tool with the same name wins, with a warning.

        A tool registered during a Turn, a Step or a tool call belongs to that Turn only.

        ``item``: ``{name: "weather__get", description?, parameters?, source?}``. ``policy`` has
        fields of an export in YAML: ``timeoutSeconds``, ``idempotent``, ``maxAttempts``, ``retry``.

        Raises:
            ValueError: the item, its name, its parameters or the policy are not valid.
            TypeError: ``handler`` is not a function.
        """

    def unregister(self, name: str) -> bool:
        """Remove a tool; return whether it existed. The next Step does not show it.

        During a Turn, a Step or a tool call it is removed from that Turn only, in every worker.
        """


class Events(Protocol):
    """The events of this agent in this worker process.

    ``turn.started|completed|failed``, ``step.started|completed``, ``tool.called|completed``,
    ``worker.stopping``, ``extension.unloading``, and the extensions' own.
    """

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with each such event; its exceptions are logged. Return a function to stop."""

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        """Call all listeners, without waiting for ``async`` ones."""


class State(Protocol):
    """The state of an extension, per instance of the agent; kept in Redis for all workers.

    The methods block in plain code, and are coroutines in ``async`` code. The default instance is that of the
    running Turn, Step or tool call.
    """

    def get(self, key: str, default: Any = None, *, instance_key: str | None = None) -> Any:
        """Return the value of ``key``."""

    def set(self, key: str, value: Any, *, instance_key: str | None = None) -> Any:
        """Store JSON under ``key``; ``None`` deletes it."""

    def keys(self, prefix: str = "", *, instance_key: str | None = None) -> Any:
        """Return the existing keys that begin with ``prefix``, in alphabetical order.

        Workers that add items concurrently should give each item a key of its own.
        """


class OAuth(Protocol):
    """Tokens of OAuthApps for the user on whose behalf the Turn, Step or tool call runs (002 §8.1)."""

    def get_access_token(
        self,
        oauth_app_ref: str | Mapping[str, str],
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float = 300,
    ) -> Any:
        """Return an OAuthTokenResult: TokenReady, AuthorizationRequired or TokenError.

        This blocks in plain code, and is a coroutine in ``async`` code. ``scopes`` are some of the app's, by
        default all. A token with less than ``min_ttl_seconds`` left is refreshed. When the user consents, the
        agent gets an ``auth.granted`` event.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """


@dataclass(frozen=True, slots=True)
class ExtensionInfo:
    """The name and configuration of an extension."""

    name: str
    config: JsonObject = field(default_factory=dict)


class ExtensionApi(Protocol):
    """The argument of ``register``; it may be kept and used later."""

    @property
    def extension(self) -> ExtensionInfo:
        """The Extension resource."""

    @property
    def agent_name(self) -> str:
        """The agent that uses the extension here."""

    @property
    def pipeline(self) -> Pipeline:
        """The agent's middlewares."""

    @property
    def tools(self) -> Tools:
        """The agent's dynamic tools."""

    @property
    def events(self) -> Events:
        """The agent's events in this process."""

    @property
    def state(self) -> State:
        """The extension's state."""

    @property
    def oauth(self) -> OAuth:
        """Tokens of OAuthApps."""

    @property
    def swarm_bundle(self) -> SwarmBundleApi:
        """The bundle, with the rights of the agent whose call, Step or Turn is running."""

    @property
    def logger(self) -> Logger:
        """A structured logger that names the extension and the agent."""


class AgentStep(Protocol):
    """One Step of a Turn: one call of the model and its tool calls (003 §1.2).

    An agent's entry opens it with ``async with ctx.step() as step``, in plain code ``with``::

        async with ctx.step() as step:
            reply = await ask_the_model(messages, tools=step.catalog.to_openai(), told=step.blocks)
            messages.append(reply)
            messages += [result.message for result in await step.run(reply)]
        if not step.should_continue:
            return reply["content"]

    When the block begins, step middlewares have run up to their ``next()``; they run the rest when it ends.
    An exception in the block passes through them.
    """

    @property
    def id(self) -> str:
        """The ``stepId`` of its calls."""

    @property
    def index(self) -> int:
        """The number of earlier Steps in the Turn."""

    @property
    def catalog(self) -> ToolCatalog:
        """The tools that the model may call: ``.to_openai()``, ``.to_anthropic()``, ``.to_mcp()``."""

    @property
    def blocks(self) -> tuple[JsonObject, ...]:
        """What the model reads besides its messages, the most important first."""

    @property
    def result(self) -> StepResult | None:
        """The Step's result after its middlewares; ``None`` until the block has ended."""

    @property
    def should_continue(self) -> bool:
        """Whether another Step follows, once the block has ended.

        It does if the model has called tools, or if a middleware has set ``shouldContinue`` in the result's
        metadata.
        """

    def run(
        self,
        reply: Any,
        *,
        timeout_seconds: float | None = None,
        delay: float | None = None,
        not_before: datetime | str | None = None,
    ) -> Any:
        """Run the model's tool calls in parallel, through the agent's queue.

        ``reply`` is the model's whole message, which handlers and middlewares then see, or the list of its
        tool calls, in the format of OpenAI, Anthropic or ours. The results are in call order; each has a
        ``message``, which the model expects back. Mistakes of the model are results too.
        ``timeout_seconds`` limits each run. With ``delay``, in seconds, or ``not_before``, a datetime with a
        time zone or ISO 8601 text, the calls begin at that time.

        Raises:
            ToolInputValidationError: ``reply`` is not a model's reply, a part is not a tool call, or the time
                is not valid.
        """

"""What the author of an extension sees: ``register(api)``, the contexts of the three pipelines, and Steps.

An Extension's entry is a Python file with ``register(api)`` or ``register(api, config)``, plain or ``async``.
It is called once for each agent that uses it, when a worker of that agent starts, in the order in which the
agent declares its extensions (002 §5.4, §9; 003 §6.4, §10).

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
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from goondan_tasks.bundle.catalog import CatalogItem, McpSource, ToolCatalog, ToolSource
from goondan_tasks.changesets.api import SwarmBundleApi
from goondan_tasks.conversation import Conversation, MessageEvent
from goondan_tasks.messages import AgentEvent, JsonObject, Message, ToolCallResult
from goondan_tasks.tool_api import Logger, ToolHandler

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

#: ``async``, and sees the outcome of ``ctx.next()``; or plain, and returns ``ctx.next()`` or another answer
Middleware = Callable[[Any], Any]

Result = TypeVar("Result")

#: what says which call, Step or Turn a context is of: to set it would change nothing
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
    """What the middlewares of one pipeline share.

    Each is called with a context of its own, so that ``next()`` knows where it stands; all the attributes are
    the same for all of them, and for the core: what one changes, the next one sees. What can be changed is
    ``changeable``; the rest says what runs, and is set once.
    """

    __slots__ = ("__dict__", "_next")
    _next: Callable[[], Awaitable[Result]]
    changeable: ClassVar[tuple[str, ...]] = ("metadata",)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, a read-only one only once.

        Raises:
            AttributeError: it is read-only.
        """
        if name in _READ_ONLY and name in self.__dict__:
            changeable = ", ".join(f"ctx.{one}" for one in self.changeable)
            raise AttributeError(f"ctx.{name} is read-only; a middleware may change: {changeable}")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Refuse to delete: the next layer relies on it.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(f"ctx.{name} cannot be deleted: others use it after this middleware")

    def next(self) -> Awaitable[Result]:
        """Go on to the next middleware, or to the core, and return its result; once only.

        Raises:
            RuntimeError: it was called before.
            Exception: whatever is raised further inside.
        """
        return getattr(self, "_next", _no_next)()

    def layer(self, proceed: Callable[[], Awaitable[Result]]) -> Self:
        """Return the context of one middleware, behind which ``proceed`` goes on."""
        layer = object.__new__(type(self))
        layer.__dict__ = self.__dict__
        layer._next = proceed
        return layer


@dataclass
class ToolCallContext(Onion[ToolCallResult]):
    """One tool call on its way to its handler and back (003 §6.3).

    ``next()`` returns the call's result so far, whose status is ok or pending; what a handler raises comes
    out of it. A middleware returns that result, another one, or any other JSON, which becomes the output.
    """

    changeable = ("args", "metadata")
    tool_name: str
    tool_call_id: str
    #: checked against the tool's parameters after the last middleware
    args: JsonObject
    agent_name: str = ""
    instance_key: str = ""
    turn_id: str = ""
    trace_id: str = ""
    step_id: str | None = None
    #: the assistant Message that holds the call
    message: Message | None = None
    #: for the middlewares among themselves
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a Step: the tool calls the model asked for in it, and their results, in that order."""

    tool_calls: tuple[JsonObject, ...] = ()
    tool_results: tuple[ToolCallResult, ...] = ()
    metadata: JsonObject = field(default_factory=dict)


class _OfConversation(Onion[Result]):
    """A context in which the conversation of an agent that thinks can be changed."""

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
class StepContext(_OfConversation[StepResult]):
    """One Step: one call of the model and its tool calls (001 §12.1, 003 §1.2).

    Around an agent's entry the core of the pipeline is the Step itself. For a producer it is the moment at
    which catalog and blocks are fixed: what a middleware does after ``next()`` happens before the model is
    called (DESIGN §6).
    """

    changeable = ("tool_catalog", "blocks", "metadata")
    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    step_id: str
    #: counted from 0
    step_index: int
    #: what the model is shown and may call; change it in place or replace it
    tool_catalog: list[CatalogItem]
    #: what the model is told besides its messages: ``{type, data?, items?, priority?}``
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
        """Ask a model and return the text of its answer; the time does not count as the middleware's.

        ``messages`` are of 004, or ``{role, content}``. Without ``model_ref``, such as ``Model/small``, it is
        the Agent's model, with those behind it. The request is a call like the Step's own: it has the Model's
        limits, its tokens count, and a run that takes this one's place gets the same answer for the same
        request.

        Raises:
            ModelError: it cannot be asked, or does not answer.
            ConfigError: there is no such Model.
            ValueError: the Agent has no model, or its code is not ``async``.
        """
        if self._ask_model is None:
            raise ValueError("Only an Agent with a modelConfig, whose code is async if it has any, can ask.")
        return await self._ask_model(messages, instructions=instructions, model_ref=model_ref)


@dataclass
class TurnContext(_OfConversation[Any]):
    """One event, from its arrival to the agent's answer, which ``next()`` returns."""

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
    """Where middlewares are registered."""

    def register(self, point: Point, middleware: Middleware, priority: int = 0) -> None:
        """Put ``middleware`` around the agent's Turns, Steps or tool calls.

        A lower priority is further out; equal ones keep the order of registration, the first outermost.

        Raises:
            ValueError: there is no such point.
            TypeError: it is not a function, or its priority no whole number.
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
        """Add a tool; the next Step shows it. Of two with one name the last counts, with a warning.

        What is registered in the midst of a Turn, a Step or a tool call is that Turn's alone.

        ``item``: ``{name: "weather__get", description?, parameters?, source?}``. ``policy`` has the fields
        that an export may have in YAML: ``timeoutSeconds``, ``idempotent``, ``maxAttempts``, ``retry``.

        Raises:
            ValueError: the item, its name, its parameters or the policy are not valid.
            TypeError: ``handler`` is not a function.
        """

    def unregister(self, name: str) -> bool:
        """Take a tool away again; return whether there was one. The next Step does not show it.

        In the midst of a Turn, a Step or a tool call it is taken away from that Turn alone, in every worker.
        """


class Events(Protocol):
    """What happens in this worker process, as far as this agent is concerned.

    ``turn.started|completed|failed``, ``step.started|completed``, ``tool.called|completed``,
    ``worker.stopping``, ``extension.unloading``, and whatever extensions emit.
    """

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with each such event; what it raises is logged. Return what ends that."""

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        """Call all listeners; those that are ``async`` are not waited for."""


class State(Protocol):
    """What an extension remembers, for each instance of the agent, in Redis: any worker sees it.

    The methods block in plain code, and are coroutines in ``async`` code. The instance is the one whose Turn,
    Step or tool call is running, unless it is named.
    """

    def get(self, key: str, default: Any = None, *, instance_key: str | None = None) -> Any:
        """Return what is kept under ``key``."""

    def set(self, key: str, value: Any, *, instance_key: str | None = None) -> Any:
        """Keep JSON under ``key``; ``None`` forgets it."""

    def keys(self, prefix: str = "", *, instance_key: str | None = None) -> Any:
        """Return the keys that begin with ``prefix`` and hold something, in alphabetical order.

        What several workers add at the same time belongs under keys of its own.
        """


class OAuth(Protocol):
    """Tokens of OAuthApps, for the user that the running Turn, Step or tool call acts for (002 §8.1)."""

    def get_access_token(
        self,
        oauth_app_ref: str | Mapping[str, str],
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float = 300,
    ) -> Any:
        """Return an OAuthTokenResult: TokenReady, AuthorizationRequired or TokenError.

        It blocks in plain code, and is a coroutine in ``async`` code. ``scopes`` are some of the app's, by
        default all; a token that lives shorter than ``min_ttl_seconds`` is refreshed. Of a consent that is
        asked for here the agent gets an ``auth.granted`` event.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """


@dataclass(frozen=True, slots=True)
class ExtensionInfo:
    """Which extension this is, and what it is configured with."""

    name: str
    config: JsonObject = field(default_factory=dict)


class ExtensionApi(Protocol):
    """What ``register`` is called with; it may be kept and used later."""

    @property
    def extension(self) -> ExtensionInfo:
        """The Extension resource."""

    @property
    def agent_name(self) -> str:
        """The agent that uses it here."""

    @property
    def pipeline(self) -> Pipeline:
        """The agent's middlewares."""

    @property
    def tools(self) -> Tools:
        """The agent's dynamic tools."""

    @property
    def events(self) -> Events:
        """What happens in this process."""

    @property
    def state(self) -> State:
        """What the extension remembers."""

    @property
    def oauth(self) -> OAuth:
        """Tokens of OAuthApps."""

    @property
    def swarm_bundle(self) -> SwarmBundleApi:
        """The bundle, as the agent of the call, Step or Turn that is running may change it."""

    @property
    def logger(self) -> Logger:
        """A structured logger that names the extension and the agent."""


class AgentStep(Protocol):
    """One Step of a Turn: one call of the model, and the tool calls that it makes (003 §1.2).

    An agent's entry opens it with ``async with ctx.step() as step``, in plain code ``with``::

        async with ctx.step() as step:
            reply = await ask_the_model(messages, tools=step.catalog.to_openai(), told=step.blocks)
            messages.append(reply)
            messages += [result.message for result in await step.run(reply)]
        if not step.should_continue:
            return reply["content"]

    Step middlewares have run up to their ``next()`` when the block begins, and run the rest when it ends.
    An exception of the block passes through them.
    """

    @property
    def id(self) -> str:
        """The ``stepId`` of its calls."""

    @property
    def index(self) -> int:
        """How many Steps the Turn has had before."""

    @property
    def catalog(self) -> ToolCatalog:
        """What the model may call: ``.to_openai()``, ``.to_anthropic()``, ``.to_mcp()``."""

    @property
    def blocks(self) -> tuple[JsonObject, ...]:
        """What the model is told besides its messages, the most important first."""

    @property
    def result(self) -> StepResult | None:
        """What the middlewares have made of the Step, once its block has ended."""

    @property
    def should_continue(self) -> bool:
        """Whether the Turn goes on, once the block has ended: the model has called tools, whose results it is
        to see, or a middleware put ``shouldContinue`` into the result's metadata."""

    def run(self, reply: Any, *, timeout_seconds: float | None = None) -> Any:
        """Run the tool calls of the model side by side, through the agent's queue.

        ``reply`` is the model's whole message, which handlers and middlewares are shown, or the list of its
        tool calls; as OpenAI, Anthropic or we write them. The results come in call order, each with
        a ``message``: what the model expects back for it. A mistake of the model is a result too.
        ``timeout_seconds`` limits each run.

        Raises:
            ToolInputValidationError: it is not a reply of a model, or a part of it is not a tool call.
        """

"""The Steps of this worker's agents: those opened here, and those of calls whose Step was opened elsewhere.

A producer opens a Step with the system tool ``goondan__step``; the core of its pipeline is the moment at
which catalog and blocks are fixed. An agent's entry opens its own Steps; their core is the code in the Step
(DESIGN §6).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import structlog
from pydantic import ValidationError
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.scripts import ScriptCall
from goondan_tasks.authoring.extension_api import StepContext, StepResult
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.catalog import CatalogItem, ToolCatalog
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    MiddlewareError,
    RecordDamagedError,
    StepLimitError,
    ToolNotInCatalogError,
    ToolTimeoutError,
)
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.on_error import OnError
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.contract.table_rows import naming
from goondan_tasks.history import (
    KeptStep,
    LeftTools,
    StepInput,
    StepRecord,
    StepStore,
    StepTool,
    TurnHistory,
    digest_of_catalog,
)
from workers.cancellation import Watch
from workers.concurrency.event_loop import EventLoopThread
from workers.extensions.events import STEP_COMPLETED, STEP_STARTED, EventListeners, tell_of_step
from workers.extensions.pipelines import AgentPipelines
from workers.tools.dynamic_tools import TurnTools, turn_of
from workers.tools.registered_tool import RegisteredTool
from workers.tools.registry import Registry
from workers.tools.system_tools import system_tool
from workers.turns.pipeline import (
    MOST_SECONDS,
    AroundStep,
    CoreOutcome,
    HeldOnion,
    Layer,
    blocking,
    compose,
)
from workers.turns.turn_state import AskModel, OpenedStep

logger = structlog.get_logger(__name__)

T = TypeVar("T")

#: how many Steps a worker remembers
MOST_KNOWN = 512

#: the most blocks of a Step, in bytes of JSON, that its producer is told with the result
MOST_TOLD = 8_192

#: how much of an id an error shows
LONGEST_SHOWN = 100

#: how long a call waits for Redis, and between two attempts
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.1

#: how long the middlewares of a call's Step may take in another worker, on both sides of ``next()``
RUN_HERE_SECONDS = 2 * MOST_SECONDS


class OpenStep:
    """A Step that is entered once and then left once, in plain or in ``async`` code."""

    def __init__(
        self,
        context: StepContext,
        tools: TurnTools,
        *,
        layers: Sequence[Layer],
        onion: HeldOnion,
        around: AroundStep | None = None,
        last: ToolCatalog | None = None,
    ) -> None:
        """``last`` is a catalog to use again if it has the same tools, so that its JSON is made once."""
        #: the catalog that the middlewares begin with
        self._offered = tuple(tools.items())
        context.tool_catalog = list(self._offered)
        self.context = context
        self.tools = tools
        #: what the model may call
        self.catalog = ToolCatalog(())
        self._last = last
        #: the model's other input, highest priority first
        self.blocks: tuple[JsonObject, ...] = ()
        #: whether its middlewares may still run
        self.is_open = True
        self._onion = onion
        #: whether nothing around it blocks, or needs a task of its own
        self._runs_at_once = around is None and all(layer.awaits_next_alone for layer in layers)
        self._layers, self._around = layers, around

    async def _core(self, context: StepContext) -> Any:
        if not isinstance(context.tool_catalog, Iterable):
            raise MiddlewareError(f"The catalog of the Step is a list, not {context.tool_catalog!r:.200}.")
        known = {id(item) for item in self._offered}
        items = tuple(item if id(item) in known else _item(item) for item in context.tool_catalog)
        last = self._last
        self.catalog = last if last is not None and last.items == items else ToolCatalog(items)
        self.blocks = _blocks(context.blocks)
        return await self._onion.pause()

    async def enter(self, *, is_async: bool) -> None:
        """Run the middlewares up to the core; in plain code this blocks.

        Raises:
            MiddlewareError: one failed, took too long, did not call ``next()``, or left a bad catalog.
            GoondanError: one raised it.
        """
        with OnError(lambda _: setattr(self, "is_open", False)):
            await self._onion.enter(self._run(), is_async=is_async and not self._runs_at_once)

    async def leave(self, outcome: CoreOutcome, *, is_async: bool) -> Any:
        """Run the rest of the middlewares with the core's outcome, and return their answer.

        Raises as :meth:`enter`, and the core's error unless a middleware catches it.
        """
        try:
            return await self._onion.leave(outcome, is_async=is_async)
        finally:
            self.is_open = False

    def pass_through(self) -> None:
        """Enter and leave at once; this blocks, and raises as :meth:`enter`."""
        outcome = CoreOutcome(StepResult())
        self._onion.expect(outcome)
        blocking(self.enter(is_async=False))
        blocking(self.leave(outcome, is_async=False))

    def break_off(self) -> None:
        """End the Step without an outcome."""
        self.is_open = False
        self._onion.break_off()

    async def _run(self) -> Any:
        chain = compose(self._layers, self._core)  # kept, it would be a cycle that only a collection frees
        return await (self._around(chain) if self._around else chain)(self.context)

    def record(self, bundle_ref: str | None = None) -> StepRecord:
        """Return the Step's record; ``bundle_ref`` is its revision of the bundle."""
        context = self.context
        return StepRecord(
            id=context.step_id,
            agent_name=context.agent_name,
            instance_key=context.instance_key,
            turn_id=context.turn_id,
            trace_id=context.trace_id,
            index=context.step_index,
            catalog=digest_of_catalog(self.catalog.json),
            blocks=self.blocks,
            origins=self.tools.origins(),
            bundle_ref=bundle_ref,
        )


def _item(item: Any) -> CatalogItem:
    """Return an item that a middleware added to the catalog, without secrets."""
    try:
        wire = item.to_wire() if isinstance(item, CatalogItem) else item
        return CatalogItem.model_validate(KNOWN_SECRETS.hidden_in_answer(wire))
    except ValidationError as error:
        raise MiddlewareError(f"The catalog of the Step holds what is not a tool: {item!r:.200}.") from error


def _blocks(blocks: Any) -> tuple[JsonObject, ...]:
    if not isinstance(blocks, list | tuple):
        raise MiddlewareError(f"The blocks of the Step are a list, not {blocks!r:.200}.")
    try:
        serializer.encode(blocks, serializer.DEEPEST)
    except serializer.NotJsonError as error:
        raise MiddlewareError(f"The blocks of the Step are not valid JSON: {error}.") from error
    wrong = [block for block in blocks if not isinstance(block, Mapping)]
    if wrong:
        raise MiddlewareError(f"A block of the Step is an object, not {wrong[0]!r:.200}.")
    return tuple(sorted(KNOWN_SECRETS.hidden_in_answer(blocks), key=_priority, reverse=True))


def _priority(block: Mapping[str, Any]) -> float:
    priority = block.get("priority")
    return priority if isinstance(priority, int | float) else 0


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A Step to be opened."""

    id: str
    #: the call that requests it, or the event whose Turn it belongs to
    call: ToolCall
    index: int
    message: JsonObject | None = None
    previous_step_id: str | None = None
    #: the answer to :meth:`StepStore.asking_left` for the previous Step, if that was asked already
    left: Any = None
    #: set if the agent thinks
    conversation: Conversation | None = None
    ask_model: AskModel | None = None


@dataclass(frozen=True, slots=True)
class StepTerms:
    """The settings and the Swarm's policy for Steps and their calls."""

    most_steps: int
    max_args_bytes: int
    help_url: str


@dataclass(slots=True)
class _KnownStep:
    """A Step of calls, and whether its middlewares have run in this worker for one of them."""

    step: KeptStep
    #: the value of :attr:`DynamicTools.forgotten` when they last ran here
    ran_at: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False)
class Steps:
    """Opens Steps in one worker process, and remembers the Steps of its calls."""

    store: StepStore
    registry: Registry
    pipelines: AgentPipelines
    events: EventListeners
    event_loop: EventLoopThread
    terms: StepTerms
    #: returns the blocks that a Step of a call begins with; ``None`` if there are none
    first_blocks: Callable[[ToolCall], list[JsonObject]] | None = None
    bundle_ref: str | None = None
    _known: OrderedDict[str, _KnownStep] = field(default_factory=OrderedDict)
    #: the catalog of each agent's latest Step
    _catalogs: dict[str, ToolCatalog] = field(default_factory=dict)
    #: all Steps that are still referenced, open or not
    _held: WeakSet[OpenStep] = field(default_factory=WeakSet)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def are_closed(self) -> bool:
        """Whether no Step is open."""
        with self._lock:
            return not any(step.is_open for step in self._held)

    def open(self, job: "Opening") -> OpenedStep:
        """Open a Step for a producer; this blocks. It is not kept yet, and admits no calls.

        Raises:
            StepLimitError: the Turn has reached its limit of Steps.
            MiddlewareError: a step middleware failed, or did not let the Step open.
            ToolTimeoutError: Redis was away for too long.
        """
        call, left = job.original, job.read_ahead
        given, left = StepInput.from_wire(call.args), None if isinstance(left, RedisError) else left
        step = self.prepare(
            StepRequest(identity_of(call), call, given.index, given.message, given.previous_step_id, left)
        )
        step.pass_through()
        opened = self.opened(step)
        self.tell_started(opened.record)
        self.tell_completed(opened.record)
        return opened

    def reads(self, job: "Opening") -> ScriptCall[Any] | None:
        """Return what :meth:`prepare` asks of Redis for a Step of a producer."""
        call = job.original
        previous = call.args.get("previousStepId")
        is_asked = previous is not None and self.registry.is_extended(call.agent_name)
        return self.store.asking_left(previous) if is_asked else None

    def asks_redis(self, agent: str) -> bool:
        """Whether :meth:`prepare` reads Redis for Steps of an agent, and blocks."""
        return self.first_blocks is not None or self.registry.is_extended(agent)

    def prepare(self, request: StepRequest) -> OpenStep:
        """Return a Step that is not entered yet; this blocks if :meth:`asks_redis`.

        Raises:
            StepLimitError: the Turn has reached its limit of Steps.
            ToolTimeoutError: Redis was away for too long.
        """
        call, most, previous = request.call, self.terms.most_steps, request.previous_step_id
        if request.index >= most:
            turn_id = call.turn_id[:LONGEST_SHOWN]
            raise StepLimitError(f"Turn {turn_id!r} has reached its limit of {most} Steps.")
        if previous is None or not self.registry.is_extended(call.agent_name):
            return self._step(request)
        if request.left is None:
            left = patiently(partial(self.store.left_by, previous, call, bundle_ref=self.bundle_ref))
        else:
            left = self.store.left(request.left, call, bundle_ref=self.bundle_ref)
        names = [tool.item.name for tool in left.registered]
        dynamic, turn = self.registry.dynamic, turn_of(call)
        dynamic.begin_step(call.agent_name, turn, registered=names, gone=left.unregistered)
        gone = dynamic.gone(call.agent_name, turn)
        return self._step(request, [tool for tool in left.registered if tool.item.name not in gone])

    def opened(self, step: OpenStep) -> OpenedStep:
        """Return a Step that was entered, to be kept; once it is, its calls are admitted.

        Tools that were registered or unregistered meanwhile appear in or disappear from the Turn's next Step,
        in whichever worker that is opened (003 §10.3).
        """
        record = step.record(self.bundle_ref)
        kept = KeptStep(record, step.catalog, monotonic() + self.store.ttl_seconds)
        agent, turn = record.agent_name, (record.instance_key, record.turn_id)
        tools, gone = self.registry.dynamic.of(agent, turn), self.registry.dynamic.gone(agent, turn)
        left = LeftTools(registered=step.tools.passed_on(record.id, tools, gone), unregistered=sorted(gone))
        keeping = self.store.keeping(record, step.catalog.json, message=step.context.message, left=left)
        return OpenedStep(record, keeping, partial(self._note_kept, kept, left.unregistered))

    def _note_kept(self, step: KeptStep, unregistered: Collection[str]) -> None:
        agent, turn = step.record.agent_name, (step.record.instance_key, step.record.turn_id)
        self._catalogs[agent] = step.catalog
        self._remember(step)
        self.registry.dynamic.told(agent, turn, unregistered)

    def opened_before(self, record: StepRecord) -> StepRecord:
        """Return a Step as another run of its call has opened it; this blocks.

        Raises:
            ToolNotInCatalogError: it has expired.
            ToolTimeoutError: Redis was away for too long.
        """
        known = self._read(record.id)
        if known is None:
            raise unknown_step(record.id)
        return known.step.record

    def tell_started(self, record: StepRecord) -> None:
        tell_of_step(self.events, STEP_STARTED, record)

    def tell_completed(self, record: StepRecord) -> None:
        tell_of_step(self.events, STEP_COMPLETED, record)

    def note_unregistered(self, call: ToolCall, names: Collection[str]) -> None:
        """Record which tools a call unregistered, for the next Step; blocks, raises as :func:`patiently`."""
        if call.step_id is not None:
            patiently(partial(self.store.note_unregistered, call.step_id, names))
            self.registry.dynamic.told(call.agent_name, turn_of(call), names)

    def require(self, call: ToolCall) -> KeptStep:
        """Return the Step that a call belongs to; the first call of a Step reads Redis, which blocks.

        Raises:
            ToolNotInCatalogError: the call's Turn has no such Step, or it has expired.
            ToolTimeoutError: Redis was away for too long.
        """
        return self._require(call).step

    def known(self, call: JsonObject) -> KeptStep | None:
        """Return the Step of a wire record if it is known here; this asks nobody."""
        known = self._recall(call["stepId"])
        return known.step if known is not None and known.step.record.is_of_wire(call) else None

    def learn(self, step_ids: Collection[str]) -> None:
        """Read those Steps that are not known here, in one trip; this blocks.

        Steps that cannot be read now, or not at all, stay unknown: :meth:`require` says why.
        """
        unknown = [step_id for step_id in step_ids if self._recall(step_id) is None]
        if not unknown:
            return
        with suppress(RedisError, BrokerUnreachableError):
            for step in self.store.read_all(unknown):
                if isinstance(step, KeptStep):
                    self._remember(step)

    def history(self, call: ToolCall) -> TurnHistory:
        """Return the history of a call's Turn, empty if it is damaged; this blocks.

        Raises:
            ToolTimeoutError: Redis was away for too long.
        """
        try:
            return patiently(lambda: self.store.history(call))
        except (ValueError, RecordDamagedError) as error:
            logger.error("turn.unreadable", turn_id=call.turn_id, reason=str(error))
            return TurnHistory()

    def run_here(self, call: ToolCall, watch: Watch) -> None:
        """Run the middlewares of a call's Step in this worker, because one may register the call's tool.

        If none does, the middlewares of the earlier Step that registered the tool elsewhere run, too. They
        run once for each Step, and again after tools of Turns were dropped. This blocks.

        Raises:
            MiddlewareError: a middleware failed.
            ToolNotInCatalogError: the earlier Step has expired.
            ToolTimeoutError: Redis was away for too long, or they still ran for another call.
        """
        known = self._require(call)
        self._run_once(known, call, watch)
        origin = known.step.record.origins.get(call.tool_name)
        registered = self.registry.dynamic.of(call.agent_name, turn_of(call))
        if origin is not None and call.tool_name not in registered:
            self._run_once(self._require(call.model_copy(update={"step_id": origin})), call, watch)

    def _run_once(self, known: _KnownStep, call: ToolCall, watch: Watch) -> None:
        with ExitStack() as afterwards:
            afterwards.callback(watch(RUN_HERE_SECONDS))
            if not known.lock.acquire(timeout=RUN_HERE_SECONDS):
                raise ToolTimeoutError(
                    f"The step middlewares still ran for another call after {RUN_HERE_SECONDS:g} s."
                )
            afterwards.callback(known.lock.release)
            forgotten = self.registry.dynamic.forgotten
            if known.ran_at != forgotten:
                self._run_again(known.step.record, call)
                known.ran_at = forgotten

    def _run_again(self, record: StepRecord, call: ToolCall) -> None:
        message = patiently(lambda: self.store.message(record.id))
        step = self._step(StepRequest(record.id, call, record.index, message))
        step.pass_through()
        logger.info("step.run_here", step_id=record.id, agent=record.agent_name, tool=call.tool_name)

    def _step(self, request: StepRequest, carried: Sequence[StepTool] = ()) -> OpenStep:
        call, turn = request.call, turn_of(request.call)
        gone, ask = self.registry.dynamic.gone(call.agent_name, turn), request.ask_model
        onion = HeldOnion(self.event_loop)
        context = StepContext(
            call.agent_name,
            call.instance_key,
            call.turn_id,
            call.trace_id,
            request.id,
            request.index,
            [],
            [] if self.first_blocks is None else patiently(partial(self.first_blocks, call)),
            message=request.message,
            auth=call.auth,
            origin=call.origin,
            conversation_state=request.conversation,
            _ask_model=ask and partial(onion.untimed, partial(ask, request.index)),
        )
        tools = TurnTools(
            [item for item in self.registry.items(call.agent_name) if item.name not in gone],
            self.registry.dynamic.of(call.agent_name, turn),
            carried,
        )
        layers = self.pipelines.layers(call.agent_name, "step")
        step = OpenStep(
            context,
            tools,
            layers=layers,
            onion=onion,
            around=self.pipelines.v1.around_step(call, context),
            last=None if layers else self._catalogs.get(call.agent_name),  # these may change what it holds
        )
        with self._lock:
            self._held.add(step)
        return step

    def _require(self, call: ToolCall) -> _KnownStep:
        step_id = call.step_id or ""
        known = self._recall(step_id) or self._read(step_id)
        if known is None or not known.step.record.is_of(call):
            raise unknown_step(step_id)
        return known

    def _recall(self, step_id: str) -> _KnownStep | None:
        """Return a Step that was opened or read here, and has not expired."""
        with self._lock:
            known = self._known.get(step_id)
            if known is not None:
                self._known.move_to_end(step_id)
        return known if known is not None and known.step.until > monotonic() else None

    def _read(self, step_id: str) -> _KnownStep | None:
        try:
            step = patiently(lambda: self.store.read(step_id))
        except ValueError as error:
            logger.error("step.unreadable", step_id=step_id, reason=str(error))
            return None
        return None if step is None else self._remember(step)

    def _remember(self, step: KeptStep) -> _KnownStep:
        with self._lock:
            known = self._known.setdefault(step.record.id, _KnownStep(step))
            known.step = step
            self._known.move_to_end(step.record.id)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return known


def unknown_step(step_id: str) -> ToolNotInCatalogError:
    return ToolNotInCatalogError(f"Step {step_id[:LONGEST_SHOWN]!r} is unknown or has expired.")


def patiently(ask: Callable[[], T]) -> T:
    """Call a function of Redis, and retry it while Redis is away; this blocks.

    Raises:
        ToolTimeoutError: Redis stayed away for PATIENCE_SECONDS.
        RecordDamagedError: the contents of a key are those of another program.
    """
    end = monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with naming():
                return ask()
        except (RedisError, BrokerUnreachableError) as error:
            if monotonic() > end:
                raise ToolTimeoutError(
                    f"Redis could not be asked for {PATIENCE_SECONDS:g} s: {error}"
                ) from error
            logger.warning("redis.not_asked", reason=str(error))
        sleep(PAUSE_SECONDS)


class Opening(Protocol):
    """The :class:`workers.job.Job` of a call that opens a Step."""

    opened: OpenedStep | None
    #: the answer to :meth:`Steps.reads`
    read_ahead: Any

    @property
    def original(self) -> ToolCall:
        """The call."""


def step_tool(
    open_step: Callable[[Opening], OpenedStep],
    reads: Callable[[Opening], ScriptCall[Any] | None] | None = None,
) -> RegisteredTool:
    """Return ``goondan__step``, with which a producer opens a Step through the agent's queue."""

    def step(job: Opening, _: JsonObject) -> JsonObject:
        job.opened = open_step(job)
        record = job.opened.record
        opened = {"stepId": record.id, "index": record.index}
        size = len(serializer.encode([record.blocks, record.origins]))
        # the producer reads the catalog from Redis, and a large record, too
        return opened | {"step": record.to_wire()} if size <= MOST_TOLD else opened

    properties = {
        "v": {"const": 1},
        "index": {"type": "integer", "minimum": 0, "maximum": 2**31},
        "message": {"type": "object"},
        "previousStepId": {"type": "string"},
    }
    return system_tool(
        "step",
        step,
        description="Open a Step of a Turn that a producer drives.",
        properties=properties,
        required=["index"],
        timeout_seconds=3 * MOST_SECONDS,
        reads=reads,
    )

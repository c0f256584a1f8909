"""The Steps of the agents that this worker serves: opened here, or known from elsewhere.

A Step of a producer is opened by the system's tool ``goondan__step``: its core is the moment at which catalog
and blocks are fixed. An agent's entry opens its own, whose core is what it does in it (DESIGN §6).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from typing import TypeVar
from weakref import WeakSet

import structlog
from redis.exceptions import RedisError

from goondan_tasks.calls import identity_of
from goondan_tasks.errors import StepLimitError, ToolNotInCatalogError, ToolTimeoutError
from goondan_tasks.extension_api import StepContext, StepResult
from goondan_tasks.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.steps import KeptStep, LeftTools, StepInput, StepRecord, StepStore, StepTool, TurnHistory
from workers.cancellation import Watch
from workers.concurrency.event_loop import EventLoopThread
from workers.extensions.events import Events
from workers.extensions.pipelines import Pipelines
from workers.extensions.running import running
from workers.extensions.turn_news import STEP_COMPLETED, STEP_STARTED, tell_of_step
from workers.tools.dynamic_tools import turn_of
from workers.tools.registry import Registry
from workers.tools.turn_tools import TurnTools
from workers.turns.held_onion import MOST_SECONDS, CoreOutcome, HeldOnion
from workers.turns.open_step import OpenStep

logger = structlog.get_logger(__name__)

T = TypeVar("T")

#: how many Steps a worker keeps in mind
MOST_KNOWN = 512

#: so much of a Step's id is repeated in an error
LONGEST_SHOWN = 100

#: how long a call waits for Redis to say what its Step admits, and between two questions
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.1

#: how long the middlewares of a call's Step may take in another worker, on both sides of ``next()``
RUN_HERE_SECONDS = 2 * MOST_SECONDS


@dataclass(frozen=True, slots=True)
class StepRequest:
    """Who wants a Step to open, and what it begins with."""

    id: str
    #: the call that asks for it, or the event whose Turn it belongs to
    call: ToolCall
    index: int
    message: JsonObject | None = None
    previous_step_id: str | None = None


@dataclass(frozen=True, slots=True)
class StepTerms:
    """What the settings and the Swarm's policy say about Steps and their calls."""

    most_steps: int
    max_args_bytes: int
    help_url: str


@dataclass(slots=True)
class _Known:
    """A Step, and whether its middlewares have run in this worker because of a call."""

    step: KeptStep
    #: of how many Turns the tools were forgotten here when they ran last
    ran_at: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Steps:
    """Opens Steps in one worker process, and remembers those of its calls."""

    def __init__(
        self,
        store: StepStore,
        registry: Registry,
        pipelines: Pipelines,
        *,
        events: Events,
        event_loop: EventLoopThread,
        terms: StepTerms,
        first_blocks: Callable[[ToolCall], list[JsonObject]] = lambda _: [],
        bundle_ref: str | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._pipelines = pipelines
        self._events = events
        self._event_loop = event_loop
        self.terms = terms
        self._first_blocks = first_blocks
        self._bundle_ref = bundle_ref
        self._known: OrderedDict[str, _Known] = OrderedDict()
        #: those that somebody still has, open or not
        self._held: WeakSet[OpenStep] = WeakSet()
        self._lock = threading.Lock()

    @property
    def are_closed(self) -> bool:
        """Whether none of these Steps is open any more."""
        with self._lock:
            return not any(step.is_open for step in self._held)

    def open(self, call: ToolCall) -> StepRecord:
        """Open a Step for a producer; this blocks.

        Raises:
            StepLimitError: the Turn has had as many as it may have.
            MiddlewareError: a step middleware failed, or has not let it open.
            ToolTimeoutError: Redis was away for too long.
        """
        asked = StepInput.from_wire(call.args)
        request = StepRequest(identity_of(call), call, asked.index, asked.message, asked.previous_step_id)
        step = self.prepare(request)
        step.enter()
        step.leave(CoreOutcome(StepResult()))
        record = self.keep(step)
        self.tell_completed(record)
        return record

    def prepare(self, request: StepRequest) -> OpenStep:
        """Return a Step that is still to be entered; this blocks.

        Raises:
            StepLimitError: the Turn has had as many as it may have.
            ToolTimeoutError: Redis was away for too long.
        """
        call, most, previous = request.call, self.terms.most_steps, request.previous_step_id
        if request.index >= most:
            turn_id = call.turn_id[:LONGEST_SHOWN]
            raise StepLimitError(f"Turn {turn_id!r} has had {most} Steps: as many as it may have.")
        if previous is None:
            return self._step(request)
        left = _patiently(partial(self._store.left_by, previous, call, bundle_ref=self._bundle_ref))
        names = [tool.item.name for tool in left.registered]
        dynamic, turn = self._registry.dynamic, turn_of(call)
        dynamic.begin_step(call.agent_name, turn, registered=names, gone=left.unregistered)
        gone = dynamic.gone(call.agent_name, turn)
        return self._step(request, [tool for tool in left.registered if tool.item.name not in gone])

    def keep(self, step: OpenStep) -> StepRecord:
        """Keep a Step that has been entered; from now on its calls are admitted. This blocks.

        What was registered meanwhile shows from the next Step on, and what was unregistered is gone from it,
        wherever that is opened (003 §10.3).

        Raises:
            ToolTimeoutError: Redis was away for too long.
        """
        record = step.record(self._bundle_ref)
        agent, turn = record.agent_name, (record.instance_key, record.turn_id)
        now, gone = self._registry.dynamic.of(agent, turn), self._registry.dynamic.gone(agent, turn)
        left = LeftTools(registered=step.tools.passed_on(record.id, now, gone), unregistered=sorted(gone))
        keep = partial(self._store.keep, record, step.catalog_json, left=left)
        _patiently(lambda: keep(message=step.context.message))
        self._registry.dynamic.told(agent, turn, gone)
        tell_of_step(self._events, STEP_STARTED, record)
        return record

    def tell_completed(self, record: StepRecord) -> None:
        """Tell extensions that a Step has ended well."""
        tell_of_step(self._events, STEP_COMPLETED, record)

    def note_calls(self, record: StepRecord, results: Sequence[ToolCallResult]) -> None:
        """Put the calls of a Step into the record of its Turn; this blocks, and raises as :meth:`keep`."""
        if results:
            _patiently(lambda: self._store.note_calls(record, [result.meta.id for result in results]))

    def note_unregistered(self, call: ToolCall, names: Collection[str]) -> None:
        """Tell the next Step which tools were unregistered in a call of this one.

        This blocks, and raises as :meth:`keep`.
        """
        if call.step_id is not None:
            _patiently(partial(self._store.note_unregistered, call.step_id, names))
            self._registry.dynamic.told(call.agent_name, turn_of(call), names)

    def require(self, call: ToolCall) -> KeptStep:
        """Return the Step that a call belongs to. Redis is asked once for each Step; this blocks.

        Raises:
            ToolNotInCatalogError: the call's Turn has no such Step, or it has expired.
            ToolTimeoutError: Redis was away for too long.
        """
        return self._require(call).step

    def history(self, call: ToolCall) -> TurnHistory:
        """Return what has come of the Turn that a call belongs to, nothing if it cannot be read; this blocks.

        Raises:
            ToolTimeoutError: Redis was away for too long.
        """
        try:
            return _patiently(lambda: self._store.history(call))
        except ValueError as error:
            logger.error("turn.unreadable", turn_id=call.turn_id, reason=str(error))
            return TurnHistory()

    def run_here(self, call: ToolCall, watch: Watch) -> None:
        """Run the middlewares of a call's Step in this worker too: one may register the tool it is for.

        If none does, those of the earlier Step of the Turn that has registered it elsewhere are run. That is
        done once for each Step, however many calls want it, or once more when tools of Turns were forgotten;
        this blocks.

        Raises:
            MiddlewareError: one of them failed.
            ToolNotInCatalogError: the earlier Step has expired.
            ToolTimeoutError: Redis was away for too long, or they still run for another call.
        """
        known = self._require(call)
        self._run_once(known, call, watch)
        origin = known.step.record.origins.get(call.tool_name)
        here = self._registry.dynamic.of(call.agent_name, turn_of(call))
        if origin is not None and call.tool_name not in here:
            self._run_once(self._require(call.model_copy(update={"step_id": origin})), call, watch)

    def _run_once(self, known: _Known, call: ToolCall, watch: Watch) -> None:
        with ExitStack() as afterwards:
            afterwards.callback(watch(RUN_HERE_SECONDS))
            if not known.lock.acquire(timeout=RUN_HERE_SECONDS):
                raise ToolTimeoutError(
                    f"The step middlewares still ran for another call after {RUN_HERE_SECONDS:g} s."
                )
            afterwards.callback(known.lock.release)
            forgotten = self._registry.dynamic.forgotten
            if known.ran_at != forgotten:
                self._run_again(known.step.record, call)
                known.ran_at = forgotten

    def _run_again(self, record: StepRecord, call: ToolCall) -> None:
        running.set(call)
        message = _patiently(lambda: self._store.message(record.id))
        step = self._step(StepRequest(record.id, call, record.index, message))
        step.enter()
        step.leave(CoreOutcome(StepResult()))
        logger.info("step.run_here", step_id=record.id, agent=record.agent_name, tool=call.tool_name)

    def _step(self, request: StepRequest, carried: Sequence[StepTool] = ()) -> OpenStep:
        call, turn = request.call, turn_of(request.call)
        gone = self._registry.dynamic.gone(call.agent_name, turn)
        context = StepContext(
            call.agent_name,
            call.instance_key,
            call.turn_id,
            call.trace_id,
            request.id,
            request.index,
            [],
            _patiently(lambda: self._first_blocks(call)),
            message=request.message,
            auth=call.auth,
            origin=call.origin,
        )
        tools = TurnTools(
            [item for item in self._registry.items(call.agent_name) if item.name not in gone],
            self._registry.dynamic.of(call.agent_name, turn),
            carried,
        )
        step = OpenStep(
            context,
            tools,
            layers=self._pipelines.layers(call.agent_name, "step"),
            onion=HeldOnion(self._event_loop),
            v1_way=self._pipelines.v1.step_way(call, context),
        )
        with self._lock:
            self._held.add(step)
        return step

    def _require(self, call: ToolCall) -> _Known:
        step_id = call.step_id or ""
        with self._lock:
            known = self._known.get(step_id)
            if known is not None:
                self._known.move_to_end(step_id)
        if known is None or known.step.until <= monotonic():
            known = self._read(step_id)
        if known is None or not known.step.record.is_of(call):
            raise unknown_step(step_id)
        return known

    def _read(self, step_id: str) -> _Known | None:
        step = self._ask(step_id)
        if step is None:
            return None
        with self._lock:
            known = self._known.setdefault(step_id, _Known(step))
            known.step = step
            self._known.move_to_end(step_id)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return known

    def _ask(self, step_id: str) -> KeptStep | None:
        try:
            return _patiently(lambda: self._store.read(step_id))
        except ValueError as error:
            logger.error("step.unreadable", step_id=step_id, reason=str(error))
            return None


def unknown_step(step_id: str) -> ToolNotInCatalogError:
    """Return the refusal of a call whose Step nobody knows."""
    return ToolNotInCatalogError(f"Step {step_id[:LONGEST_SHOWN]!r} is unknown or has expired.")


def _patiently(ask: Callable[[], T]) -> T:
    """Ask Redis, and ask again while it is away.

    Raises:
        ToolTimeoutError: it stays away.
    """
    end = monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except RedisError as error:
            if monotonic() > end:
                raise ToolTimeoutError(
                    f"Redis could not be asked about a Step for {PATIENCE_SECONDS:g} s: {error}"
                ) from error
            logger.warning("step.not_asked", reason=str(error))
        sleep(PAUSE_SECONDS)

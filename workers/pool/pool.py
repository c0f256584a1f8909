"""Our Celery pool: sync handlers on daemon threads, async handlers on one event loop.

The pool bounds the calls in progress, whatever their colour. A call takes a thread while it talks to
Redis or runs a sync handler, and none while its async handler waits. It is chosen by ``worker_pool``;
Celery's own ``-P threads`` and ``-P processes`` keep every promise but speed.
"""

import contextlib
import gc
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import structlog
from celery.concurrency.base import BasePool, apply_target
from celery.worker import state
from redis.exceptions import RedisError

from goondan_tasks.errors import BrokerUnreachableError, GoondanError, ToolCancelledError, ToolError
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.messages import ToolCall, ToolCallResult
from workers.concurrency.event_loop import drive
from workers.concurrency.first_only import FirstOnly
from workers.concurrency.function_outcome import FunctionOutcome, outcome_of
from workers.concurrency.lasting_tools import LastingTools, Stopwatch
from workers.concurrency.places import Absence, Entrant, Places
from workers.concurrency.threads import SHORT_SECONDS, DaemonThreads, Job
from workers.delivery.call_request import CallRequest
from workers.pool.memory import share_arenas
from workers.pool.refusals import runtime_or_refusal

logger = structlog.get_logger(__name__)

#: so many new objects are made, a hundred calls' worth, before the garbage is collected
YOUNG_OBJECTS = 20_000

#: while so many calls wait here for a place, Celery is not woken to fetch more
ENOUGH = 32

#: so many places a worker may have
MOST_PLACES = 10_000

#: so many places at most are taken to share what they carry out; each call lasts longer then
MOST_SHARING = 4


class Pace:
    """How many calls have ended, and how long they held one of so many places."""

    def __init__(self, places: int) -> None:
        self.ended = 0
        self._sharing = min(places, MOST_SHARING)
        self._seconds = 0.0

    def count(self, seconds: float) -> None:
        """Count one that took ``seconds``."""
        self.ended += 1
        self._seconds += seconds

    @property
    def is_quick(self) -> bool:
        """Whether they were short, on the average: many at once take longer, and wait for each other."""
        return self._seconds <= self.ended * SHORT_SECONDS * self._sharing


class CallPool(BasePool):
    """The pool; ``limit`` is ``--concurrency``."""

    limit: int

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hub: Any = None
        self._places = Places(lambda: self.limit, self._begin_entrant)
        #: what Celery is still to be told, and the messages it is still to acknowledge
        self._ended: deque[tuple[CallRequest, ToolCallResult | None]] = deque()
        self._unacknowledged: deque[CallRequest] = deque()
        #: says whether acknowledgements may wait until the main thread has something else to do
        self.may_wait: Callable[[], bool] = lambda: False
        self._pace = Pace(self.limit)
        self._is_turning_away = False
        self._lasting = LastingTools()

    def on_start(self) -> None:
        """Build the process's runtime before the first call needs it."""
        share_arenas()
        self._runtime = runtime_or_refusal()
        gc.freeze()  # what there is now lives as long as the process: no use in looking through it
        gc.set_threshold(YOUNG_OBJECTS)
        self._threads = DaemonThreads(self._flush)
        self._threads.start()
        self._places.most_absent = self._runtime.settings.max_waiting

    def register_with_event_loop(self, hub: Any) -> None:
        """Remember the event loop of the main thread, which alone may acknowledge."""
        self._hub = hub

    def grow(self, n: int = 1) -> None:
        """Have more places, or fewer: those that are taken go when their calls end.

        Raises:
            ValueError: there would be too many, or none.
        """
        limit = self.limit + n
        if not 1 <= limit <= MOST_PLACES:
            raise ValueError(f"A worker has 1 to {MOST_PLACES:,} places, not {limit:,}.")
        self.limit = limit
        self._places.fill()

    def shrink(self, n: int = 1) -> None:
        """Have fewer places; raises as :meth:`grow` does."""
        self.grow(-n)

    def take(self, request: CallRequest) -> None:
        """Carry out a call, as soon as there is a place for it."""
        request.reserve()
        if self._is_turning_away:
            self._return(request)
            return
        self._places.enter(Entrant(partial(self._begin, request), request))

    def turn_away(self) -> None:
        """Let every call that still comes go back: nobody waits for it to end."""
        self._is_turning_away = True

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **_: Any,
    ) -> None:
        """Run any other task as Celery does; ``args`` begin with the task's name and id."""
        request = state.requests.get(args[1])
        job = partial(self._trace, request, target, args, kwargs, callback, accept_callback)
        self._places.enter(Entrant(job, request, lasts=True))

    def return_backlog(self) -> None:
        """Put the messages of the tasks that have not begun back to where they are taken from next.

        Each on its own: two may be of one task, and Celery knows only one of them by its id.
        """
        for entrant in reversed(self._places.take_waiting()):
            if entrant.request in state.reserved_requests:
                self._return(entrant.request)
            else:
                self._requeue(entrant.request)

    def _requeue(self, request: Any) -> None:
        """Give a claim back whose message went with its connection: Celery has forgotten it."""
        reserved = getattr(request, "reserved", None)
        if reserved is None or not reserved.verdict.is_granted:
            return
        try:
            delivery = self._runtime.delivery
            delivery.requeue(delivery.claimed(request.incoming(), request.worker, reserved))
        except (GoondanError, RedisError) as error:
            logger.warning("call.not_returned", call_id=request.id, reason=str(error))  # a sweep will

    def _return(self, request: Any) -> None:
        reserved = getattr(request, "reserved", None)
        if reserved is None or not reserved.verdict.is_granted:
            _reject(request)
            return
        incoming = request.incoming()
        try:
            claim = self._runtime.delivery.claimed(incoming, request.worker, reserved)
        except GoondanError:  # whoever begins it will say so
            _reject(request)
            return

        def on_release(has_no_other_message: bool) -> None:
            back = partial(_reject, request, requeue=has_no_other_message)
            self._on_main_thread(back)

        self._runtime.delivery.give_back(incoming, claim, on_release)
        self._runtime.delivery.flush()

    def take_pace(self) -> Pace:
        """Return how calls went since this was last asked."""
        pace, self._pace = self._pace, Pace(self.limit)
        return pace

    def _begin_entrant(self, entrant: Entrant) -> None:
        self._threads.run(entrant.job, lasts=entrant.lasts)

    def _step_out(self, request: CallRequest) -> Absence:
        """Lend a call's place while it waits for another agent; its prefetch credit goes back as well."""
        request.absence = self._places.step_out()
        self._unacknowledged.append(request)  # the ledger has the call; its message is not needed any more
        self._flush()
        self._threads.step_aside()
        return request.absence

    def _trace(self, request: Any, *args: Any) -> None:
        error = outcome_of(lambda: apply_target(*args)).error
        self._places.leave(None)
        if error is not None:  # Celery's own: it may trip over what a message says of callbacks
            logger.error("task.fault", task_id=getattr(request, "id", None), exc_info=error)
            self._on_main_thread(partial(_give_up, request))

    def _begin(self, request: CallRequest) -> None:
        self._without_fault(request, partial(self._begin_call, request))

    def _without_fault(self, request: CallRequest, job: Job) -> None:
        """Do a part of a call; a fault of ours costs neither its place nor this thread."""
        outcome = FunctionOutcome[None]()
        with outcome:
            job()
        if outcome.error is not None:
            logger.error("call.fault", call_id=request.id, exc_info=outcome.error)
            fault = ToolError(f"The worker could not begin the call: {outcome.error!r:.200}")
            with FunctionOutcome[None]():  # if it cannot be told either, a sweep settles the call
                self._runtime.delivery.refuse(request.incoming(), request.worker, fault, request.reserved)
            self._end(request, None)

    def _begin_call(self, request: CallRequest) -> None:
        request.accept()
        incoming, delivery, reserved = request.incoming(), self._runtime.delivery, request.reserved
        try:
            if request.id in state.revoked:  # since its message came
                raise ToolCancelledError("The call was revoked.")
            if reserved is None or reserved.verdict is Verdict.ABSENT:
                delivery.claim(incoming, request.worker, partial(self._claimed, request))
                return
            claim = delivery.claimed(incoming, request.worker, reserved)
        except GoondanError as error:
            if self._runtime.stand_by.leaves(incoming.placeholder(), error):
                self._on_main_thread(partial(self._put_back, request))
                return
            delivery.refuse(incoming, request.worker, error, reserved)
            self._end(request, None)
            return
        if self._lasting.has(claim.run.call):
            self._claimed(request, claim)
        else:  # this thread may as well
            self._carry_out(request, claim)

    def _put_back(self, request: CallRequest) -> None:
        _reject(request)
        self._places.leave(None)

    def _claimed(self, request: CallRequest, claim: Claim) -> None:
        lasts = self._lasting.has(claim.run.call)
        job = partial(self._carry_out, request, claim)
        self._threads.run(partial(self._without_fault, request, job), lasts=lasts)

    def _carry_out(self, request: CallRequest, claim: Claim) -> None:
        if claim.verdict is not Verdict.RUN:
            self._settle(claim)
            self._end(request, None)
            return
        begun, stopwatch = monotonic(), Stopwatch()
        delivery = self._runtime.delivery
        finish = FirstOnly(
            partial(self._finish, request, claim, begun), partial(delivery.endings.end_late, claim)
        )
        coroutine = delivery.carry_out(
            claim,
            partial(self._finish_early, finish),
            partial(self._step_out, request),
            on_thread=partial(self._run_beside_loop, claim.run.call, stopwatch),
            stopwatch=stopwatch,
        )
        ended = drive(coroutine)
        if ended is None:
            self._runtime.event_loop.carry_on(
                coroutine, lambda result: self._threads.run(partial(finish, result))
            )
            return
        finish(ended[0])
        self._lasting.learn(claim.run.call, stopwatch)

    def _run_beside_loop(self, call: ToolCall, stopwatch: Stopwatch, job: Job, then: Job) -> None:
        def timed() -> None:
            job()
            self._runtime.event_loop.put_off(then)
            self._lasting.learn(call, stopwatch)

        self._threads.run(timed, lasts=self._lasting.has(call))

    def _settle(self, claim: Claim) -> None:
        try:
            self._runtime.delivery.settle(claim)
        except (RedisError, BrokerUnreachableError) as error:
            logger.warning("call.not_settled", call_id=claim.run.id, reason=str(error))  # a sweep will

    def _finish_early(self, finish: FirstOnly, result: ToolCallResult) -> bool:
        # the thread of the handler, which would tell Celery that a place is free, is kept by it
        is_first = finish.answer(result)
        self._flush()
        return is_first

    def _finish(
        self,
        request: CallRequest,
        claim: Claim,
        begun: float,
        result: ToolCallResult,
        *,
        still_runs: bool = False,
    ) -> None:
        self._runtime.delivery.endings.finish(claim, result, still_runs=still_runs)
        self._pace.count(monotonic() - begun)
        self._end(request, result)

    def _end(self, request: CallRequest, result: ToolCallResult | None) -> None:
        if request.has_ended:
            return
        request.has_ended = True
        self._ended.append((request, result))
        self._places.leave(request.absence)

    def _flush(self) -> None:
        """Hand over what waits for company, and tell Celery what has ended, so that it asks for more."""
        self._runtime.event_loop.flush()
        self._runtime.delivery.flush()
        while self._ended and self._places.backlog < ENOUGH:
            with contextlib.suppress(IndexError):  # another thread was quicker
                request, result = self._ended.popleft()
                request.end(result)
                self._unacknowledged.append(request)
        if self._unacknowledged and not self.may_wait():
            self._on_main_thread(self.acknowledge)

    def _on_main_thread(self, callback: Callable[[], object]) -> None:
        if self._hub is None:
            callback()
        else:
            self._hub.call_soon(callback)

    def acknowledge(self) -> None:
        """Acknowledge the messages of what has ended; on the main thread, if it has a loop."""
        while True:
            try:
                request = self._unacknowledged.popleft()
            except IndexError:  # without a main loop threads do this side by side
                return
            request.acknowledge()

    def _get_info(self) -> dict[str, Any]:
        info = super()._get_info()  # type: ignore[misc]  # celery-types does not know it
        return {**info, "threads": self._threads.count, "in-progress": self._places.taken}


def _reject(request: Any, *, requeue: bool = True) -> None:
    request.reject(requeue=requeue)
    state.task_ready(request)  # a request of Celery's own stays reserved otherwise


def _give_up(request: Any) -> None:
    if request is not None:
        request.acknowledge()
        state.task_ready(request)

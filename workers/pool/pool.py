"""Our Celery pool: sync handlers on daemon threads, async handlers on one event loop.

The pool bounds the calls in progress, whatever their colour. A call takes a thread while it talks to
Redis or runs a sync handler, and none while its async handler waits. It is chosen by ``worker_pool``;
Celery's own ``-P threads`` and ``-P processes`` keep every promise but speed.
"""

import contextlib
import gc
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

import structlog
from celery.concurrency.base import BasePool, apply_target
from celery.worker import state
from redis.exceptions import RedisError

from broker_config.connections import connect
from broker_config.queue_reader import Batch, QueueReader, Receiver
from broker_config.queues import TOOL_CALL_TASK
from broker_config.scripts import Errand
from goondan_tasks.errors import BrokerUnreachableError, GoondanError, ToolCancelledError, ToolError
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.messages import ToolCall, ToolCallResult
from goondan_tasks.tool_api import ToolContext
from workers.concurrency.event_loop import drive
from workers.concurrency.first_only import FirstOnly
from workers.concurrency.function_outcome import FunctionOutcome, outcome_of
from workers.concurrency.lasting_tools import LastingTools, Stopwatch
from workers.concurrency.places import Absence, Entrant, Places
from workers.concurrency.threads import DaemonThreads
from workers.concurrency.threads import Job as Work
from workers.contexts import Surroundings
from workers.delivery.call_request import CallRequest, count
from workers.job import Job
from workers.pool.lead import Ended, Lead
from workers.pool.memory import share_arenas
from workers.pool.refusals import runtime_or_refusal
from workers.pool.task_events import PlainEvents

logger = structlog.get_logger(__name__)

#: so many new objects are made, a hundred calls' worth, before the garbage is collected
YOUNG_OBJECTS = 20_000

#: while so many calls wait here for a place, Celery is not woken to fetch more
ENOUGH = 32

#: so many places a worker may have
MOST_PLACES = 10_000


class CallPool(BasePool):
    """The pool; ``limit`` is ``--concurrency``."""

    limit: int

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hub: Any = None
        self._places = Places(lambda: self.limit, self._begin_entrant, self._on_free)
        #: what Celery is still to be told, and the messages it is still to acknowledge
        self._ended: deque[tuple[CallRequest, ToolCallResult | None]] = deque()
        self._unacknowledged: deque[CallRequest] = deque()
        #: whether calls that have not begun go back: the worker drains
        self.is_turning_away = False
        self._lasting = LastingTools()
        self.events = PlainEvents()
        #: Celery's consumer and its channel, while there is a connection
        self.consumer: Any = None
        self.channel: Any = None
        #: takes calls off the queues; ``None`` where another broker carries them
        self.lead: Lead | None = None
        #: messages that were reserved, and are to be delivered on the main thread
        self._undelivered: deque[Batch] = deque()

    def on_start(self) -> None:
        """Build the process's runtime before the first call needs it."""
        share_arenas()
        self._runtime = runtime_or_refusal()
        gc.freeze()  # what there is now lives as long as the process: no use in looking through it
        gc.set_threshold(YOUNG_OBJECTS)
        self._threads = DaemonThreads(self._flush)
        self._threads.start()
        self._places.most_absent = self._runtime.settings.max_waiting
        settings = self._runtime.settings
        if settings.effective_broker_url == settings.redis_url:
            redis = connect(settings.redis_url, name="goondan-lead")
            reader = QueueReader(redis, self._runtime.delivery.errands.unawaited_scripts)
            self.lead = Lead(reader, self._runtime, self._threads, self._places, self)
            self._runtime.delivery.leases.renew_also(self.lead.claims)
            self.lead.start()

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
        if self.is_turning_away:
            self._return(request)
            return
        self._places.enter(Entrant(partial(self._begin, request), request))

    def begin_nothing_more(self) -> None:
        """Let every call go back that has not begun; takes no lock, so a signal handler may ask for it."""
        self.is_turning_away = True
        if self.lead is not None:
            self.lead.is_closed = True

    def turn_away(self) -> None:
        """Begin nothing more, and take nothing off the queues any more."""
        self.begin_nothing_more()
        if self.lead is not None:
            self.lead.detach()

    @property
    def is_busy(self) -> bool:
        """Whether calls are here, or results that Redis has not confirmed yet."""
        return bool(state.reserved_requests) or not (self.lead is None or self.lead.is_idle)

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
            self._return(entrant.request)

    def _return(self, request: Any) -> None:
        job = getattr(request, "job", None)
        if job is None:
            _reject(request)
        else:
            request.end(None)
            self._runtime.delivery.give_back(job)

    # What the thread that leads asks for.

    def release(self, job: Job) -> tuple[Errand, Receiver] | None:
        """Return what queues a call again that has not begun, and what gets the answer or the error."""
        return self._runtime.delivery.release(job)

    def deliver(self, batch: Batch) -> None:
        """Take the messages that were not claimed, on the main thread."""
        self._undelivered.append(batch)
        self._on_main_thread(self._deliver)

    def context(self, job: Job) -> ToolContext:
        """Make the whole context of a plain call."""
        claim, plan = job.claim, job.plan
        assert plan is not None  # noqa: S101 - a plain call
        assert self.lead is not None  # noqa: S101 - it runs the call
        cancellation = self.lead.cancellation_of(job)
        job.reporter = self._runtime.delivery.reporter(claim)
        services = Surroundings(
            cancellation, job.reporter, partial(self._step_out_of, job), claim_token=job.token
        )
        limit = max(0.001, plan.limit_seconds - (monotonic() - job.begun_at))
        context: ToolContext = self._runtime.revisions.active.executor.context(
            claim.run, plan.tool, services, limit_seconds=limit
        )
        return context

    def _step_out_of(self, job: Job) -> Absence:
        """Lend the slot of a plain call that waits for another agent: it lasts."""
        assert self.lead is not None  # noqa: S101 - it runs the call
        self.lead.detach_now(job)
        return self._step_out(job.request)

    def detach(self, job: Job) -> None:
        """See from now on to the lease, the cancelling and the limit of a plain call that lasts."""
        claim, plan = job.claim, job.plan
        assert plan is not None  # noqa: S101 - a plain call
        request = CallRequest.of_job(job, self.consumer)
        request.reserve()
        request.accept()
        delivery = self._runtime.delivery
        finish = FirstOnly(partial(self._finish, request, claim), partial(delivery.endings.end_late, claim))
        job.cancellation, watch = delivery.hold(
            claim, partial(self._finish_early, finish), lambda: job.started_at, job.cancellation
        )
        call_off = watch(plan.limit_seconds, patience=job.begun_at - monotonic())

        def end(result: ToolCallResult) -> None:
            call_off()
            finish(result)
            self._flush()

        job.request, job.end_detached = request, end

    def finish(self, job: Job, result: ToolCallResult) -> None:
        """End a plain call with what is no plain result: one that is pending, or may be tried again."""
        claim, delivery = job.claim, self._runtime.delivery
        delivery.hold(claim, lambda _: False, lambda: job.started_at, job.cancellation)
        delivery.endings.finish(claim, result)
        delivery.flush()

    def lasts(self, job: Job) -> bool:
        """Say whether a call that is no plain one is likely to keep short ones waiting."""
        return self._lasting.has_tool(job.agent, job.tool_name)

    def carry_out_claimed(self, job: Job) -> None:
        """Carry out a claimed call that is no plain one, on this thread; its slot is taken already."""
        request = CallRequest.of_job(job, self.consumer)
        request.reserve()
        request.accept()
        self._without_fault(request, partial(self._carry_out_job, request, job))

    def _carry_out_job(self, request: CallRequest, job: Job) -> None:
        delivery = self._runtime.delivery
        try:
            request.incoming.call(self._runtime.settings.max_args_bytes)
        except GoondanError as error:
            delivery.refuse(request.incoming, request.worker, error, job.token)
            self._end(request, None)
            return
        self._carry_out(request, job.claim)

    def note_ended(self, ended: Sequence[Ended]) -> None:
        """Let the log, Celery's books and its monitors know of results that were stored."""
        log = self._runtime.delivery.endings.log
        log.write_ok([one.log_fields for one in ended if one.failure is None])
        for one in ended:
            if one.failure is not None:
                log(one.failure, True)
            # nobody could see it in Celery's books while it ran: job_info shows those that do
            count(one.job.tool_name, TOOL_CALL_TASK)
        self.events.add(self.consumer.event_dispatcher, [(one.job, one.failure) for one in ended])

    def flush(self) -> None:
        """Send what the general way has put off."""
        self._flush()

    def _on_free(self) -> None:
        if self.lead is not None:
            self.lead.wake()

    def _deliver(self) -> None:
        while self._undelivered:
            for tag, queue, message in self._undelivered.popleft().messages:
                self.channel.deliver(tag, queue, message)

    def _begin_entrant(self, entrant: Entrant) -> None:
        self._threads.run(entrant.job, lasts=entrant.lasts)

    def _step_out(self, request: CallRequest) -> Absence:
        """Lend a call's place while it waits for another agent; its prefetch credit goes back as well."""
        request.absence = self._places.step_out()
        self._unacknowledged.append(request)  # the ledger has the call; its message is not needed any more
        self._flush()
        self._threads.step_aside()
        if self.lead is not None:
            self.lead.step_aside()
        return request.absence

    def _trace(self, request: Any, *args: Any) -> None:
        error = outcome_of(lambda: apply_target(*args)).error
        self._places.leave(None)
        if error is not None:  # Celery's own: it may trip over what a message says of callbacks
            logger.error("task.fault", task_id=getattr(request, "id", None), exc_info=error)
            self._on_main_thread(partial(_give_up, request))

    def _begin(self, request: CallRequest) -> None:
        self._without_fault(request, partial(self._begin_call, request))

    def _without_fault(self, request: CallRequest, job: Work) -> None:
        """Do a part of a call; a fault of ours costs neither its place nor this thread."""
        outcome = FunctionOutcome[None]()
        with outcome:
            job()
        if outcome.error is not None:
            logger.error("call.fault", call_id=request.id, exc_info=outcome.error)
            fault = ToolError(f"The worker could not begin the call: {outcome.error!r:.200}")
            with FunctionOutcome[None]():  # if it cannot be told either, a sweep settles the call
                token = None if request.job is None else request.job.token
                self._runtime.delivery.refuse(request.incoming, request.worker, fault, token)
            self._end(request, None)

    def _begin_call(self, request: CallRequest) -> None:
        request.accept()
        incoming, delivery = request.incoming, self._runtime.delivery
        try:
            if request.id in state.revoked:  # since its message came
                raise ToolCancelledError("The call was revoked.")
            delivery.claim(incoming, request.worker, partial(self._claimed, request))
        except GoondanError as error:
            if self._runtime.stand_by.leaves(incoming.placeholder(), error):
                self._on_main_thread(partial(self._put_back, request))
                return
            delivery.refuse(incoming, request.worker, error)
            self._end(request, None)

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
        stopwatch = Stopwatch()
        delivery = self._runtime.delivery
        finish = FirstOnly(partial(self._finish, request, claim), partial(delivery.endings.end_late, claim))
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

    def _run_beside_loop(self, call: ToolCall, stopwatch: Stopwatch, job: Work, then: Work) -> None:
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
        result: ToolCallResult,
        *,
        still_runs: bool = False,
    ) -> None:
        self._runtime.delivery.endings.finish(claim, result, still_runs=still_runs)
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
                if not request.acknowledged:
                    self._unacknowledged.append(request)
        if self._unacknowledged:
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

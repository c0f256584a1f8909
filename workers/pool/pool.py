"""Our Celery pool: blocking handlers on daemon threads, async handlers on one event loop.

The pool bounds the calls in progress, blocking and async together. A call takes a thread while it talks to
Redis or runs a blocking handler, and none while its async handler waits. The setting ``worker_pool`` chooses
it; Celery's own ``-P threads`` and ``-P processes`` keep every promise but speed.
"""

import contextlib
import ctypes
import errno
import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import structlog
from celery.concurrency.base import BasePool, apply_target
from celery.worker import state

from broker_config.connections import connect
from broker_config.queue_reader import Batch, QueueReader
from broker_config.queues import TOOL_CALL_TASK, is_events_queue
from broker_config.settings import Settings
from goondan_tasks.authoring.tool_api import Logger, ToolContext
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    ConfigError,
    GoondanError,
    OAuthStoreError,
    ToolCancelledError,
    ToolError,
)
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.fleet.call_counts import CountedCall
from goondan_tasks.fleet.monitors import task_name
from goondan_tasks.ledger.record import Claim, Verdict
from workers.cancellation import way_timed_out
from workers.concurrency.event_loop import drive
from workers.concurrency.slots import KeptSlot, QueuedJob, ReleasedSlot, Slots, Wait
from workers.concurrency.threads import DaemonThreads, InOrder, Work
from workers.concurrency.watchdog import CallOff
from workers.contexts import RunServices
from workers.executor import PATIENCE_SECONDS
from workers.extensions.events import running
from workers.job import Ended, Job
from workers.kept_lines import logger_of_job
from workers.outcome import outcome_of
from workers.pool.lead import Lead
from workers.pool.monitoring import CallRequest, PlainEvents, count, sends_events
from workers.progress_reporter import ProgressReporter
from workers.runtime import WorkerRuntime, process_runtime

logger = structlog.get_logger(__name__)

#: the number of the parameter in glibc's malloc.h
_M_ARENA_MAX = -8

#: how many malloc arenas all threads share: only one thread holds the interpreter at a time anyway
MOST_ARENAS = 2

EXIT_CONFIGURATION = 3
EXIT_BROKER_UNREACHABLE = 5

#: the garbage is collected after this many new objects, which is about a hundred calls
YOUNG_OBJECTS = 20_000

#: while this many calls wait for a slot, Celery is not told to fetch more
ENOUGH = 32

#: how many slots a worker may have
MOST_SLOTS = 10_000


def share_arenas() -> bool:
    """Let threads share malloc arenas; return whether the C library can.

    glibc gives nearly every thread its own arena, and memory freed in one is of no use to the others. Sharing
    them cut the growth of a worker's resident size over 25,000 calls from 6 MiB to less than one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_ARENA_MAX, MOST_ARENAS) == 1


def runtime_or_exit() -> WorkerRuntime:
    """Return this process's runtime.

    Raises:
        SystemExit: the bundle is not valid or Redis cannot be reached, although the command line has just
            checked both; or the OAuth store cannot be used.
    """
    try:
        with broker_errors(Settings.load().redis_url):
            return process_runtime()
    except (ConfigError, BrokerUnreachableError, OAuthStoreError) as error:
        refuse(error)


def refuse(error: GoondanError) -> NoReturn:
    """Log why this worker must not run, and raise SystemExit."""
    logger.critical("worker.refused", code=error.code, reason=error.message, what_to_do=error.suggestion)
    is_away = isinstance(error, BrokerUnreachableError)
    raise SystemExit(EXIT_BROKER_UNREACHABLE if is_away else EXIT_CONFIGURATION) from error


@contextlib.contextmanager
def refusing_without_threads() -> Iterator[None]:
    """Let the worker end at its start if the system has no thread or process left for one that it needs.

    Raises:
        SystemExit: it has none left.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        if not _is_shortage(error):
            raise
        refuse(
            ConfigError(
                f"The worker cannot start one of its threads or processes: {error}.",
                suggestion="Raise the limit of processes: `ulimit -u`, the container's pids limit, or "
                "TasksMax of its unit. A worker needs about 20, and one for each slot.",
            )
        )


def _is_shortage(error: RuntimeError | OSError) -> bool:
    if isinstance(error, OSError):  # of fork(2)
        return error.errno in {errno.EAGAIN, errno.ENOMEM}
    return "start new thread" in str(error)  # Python has no class for it


class CallPool(BasePool):
    """The pool; ``limit`` is ``--concurrency``."""

    limit: int

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hub: Any = None
        self._slots = Slots(lambda: self.limit, lambda queued: self._threads.run(queued.job), self._on_free)
        #: ended calls that Celery has not been told of, and those whose messages are not acknowledged
        self._ended: deque[CallRequest] = deque()
        self._unacknowledged: deque[CallRequest] = deque()
        #: whether the worker drains: no call begins, and those that have not begun go back. The handler of
        #: SIGTERM sets it, which may not take a lock
        self.is_draining = False
        self.events = PlainEvents()
        #: the turn of the latest message: limits are asked in the order of messages
        self._latest: InOrder | None = None
        #: Celery's consumer and its channel, while there is a connection
        self.consumer: Any = None
        self.channel: Any = None
        #: takes calls off the queues; ``None`` before the pool has started
        self.lead: Lead | None = None
        #: reserved messages that the main thread has to deliver
        self._undelivered: deque[Batch] = deque()

    def on_start(self) -> None:
        """Build the process's runtime before the first call needs it."""
        share_arenas()
        with refusing_without_threads():
            self._start()

    def _start(self) -> None:
        self._runtime = runtime_or_exit()
        gc.freeze()  # the objects made so far live as long as the process: collecting need not look at them
        gc.set_threshold(YOUNG_OBJECTS)
        self._threads = DaemonThreads(self.flush)
        self._threads.start()
        settings = self._runtime.settings
        self._slots.most_released = settings.max_waiting
        redis = connect(settings.redis_url, name="goondan-lead")
        reader = QueueReader(redis, self._runtime.delivery.ledger.unawaited_scripts)
        self.lead = Lead(reader, self._runtime, self._threads, self._slots, self)
        self._runtime.delivery.leases.renew_also(self.lead.claims)
        self.lead.start()

    def register_with_event_loop(self, hub: Any) -> None:
        """Remember the event loop of the main thread, the only one that may acknowledge messages."""
        self._hub = hub

    def grow(self, n: int = 1) -> None:
        """Add slots, or remove some with a negative number; a slot in use goes when its call ends.

        Raises:
            ValueError: there would be too many slots, or none.
        """
        limit = self.limit + n
        if not 1 <= limit <= MOST_SLOTS:
            raise ValueError(f"A worker has 1 to {MOST_SLOTS:,} slots, not {limit:,}.")
        self.limit = limit
        self._slots.fill()

    def shrink(self, n: int = 1) -> None:
        """Remove slots; raises as :meth:`grow` does."""
        self.grow(-n)

    def take(self, request: CallRequest) -> None:
        """Carry out a call as soon as there is a slot for it."""
        request.reserve()
        if self.is_draining:
            self._return(request)
            return
        turn = self._latest = InOrder(self._latest)
        self._slots.enter(QueuedJob(partial(self._begin, request, turn), request, turn))

    def drain(self) -> None:
        """Begin no more calls, and take none off the queues."""
        self.is_draining = True
        if self.lead is not None:
            self.lead.detach()

    @property
    def is_busy(self) -> bool:
        """Whether calls are here, or results that Redis has not confirmed."""
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
        """Run any task other than a call as Celery does; ``args`` begin with the task's name and id."""
        request = state.requests.get(args[1])
        job = partial(self._trace, request, target, args, kwargs, callback, accept_callback)
        self._slots.enter(QueuedJob(job, request))

    def return_backlog(self) -> None:
        """Put the messages of the tasks that have not begun back to the front of their queues.

        Each is returned by itself: two may belong to one task, and Celery knows only one of them by its id.
        """
        for queued in reversed(self._slots.take_waiting()):
            if queued.turn is not None:
                queued.turn.end()  # the next message must not wait for it
            self._return(queued.request)

    def _return(self, request: Any) -> None:
        job = getattr(request, "job", None)
        if job is None:
            _reject(request)
        else:
            request.end()
            self._runtime.delivery.give_back(job)

    # For the fast path: see :class:`workers.pool.loop_calls.Pool`.

    def deliver(self, batch: Batch) -> None:
        """Deliver the messages that were not claimed, on the main thread."""
        self._slots.expect(_events(batch))
        self._undelivered.append(batch)
        self.deliver_waiting()

    def deliver_waiting(self) -> None:
        """Deliver the waiting messages; also after a reconnection, since Celery's hub may lose callbacks."""
        self._on_main_thread(self._deliver)

    def workdir(self, job: Job) -> Path:
        """Return the workdir of a plain call, and make it on first use."""
        return self._runtime.revisions.active.executor.plans.workdir(job)

    def logger(self, job: Job) -> Logger:
        """Return the logger of a plain call."""
        return logger_of_job(job)

    def progress(self, job: Job) -> ProgressReporter:
        """Return what reports the progress of a plain call: with its result, unless the call takes long."""
        if job.reporter is None:
            job.reporter = self._runtime.delivery.reporter(job.id, job.token, waits=True)
            if job.end_detached is not None:
                job.reporter.begin()
        return job.reporter

    def context(self, job: Job) -> ToolContext:
        """Make the whole context of a plain call."""
        claim, plan = job.claim, job.plan
        assert plan is not None  # noqa: S101 - a plain call
        services = RunServices(
            job.ensure_cancellation(),
            self.progress(job),
            partial(self._release_slot_of, job),
            claim_token=job.token,
        )
        contexts = self._runtime.revisions.active.executor.contexts
        context: ToolContext = contexts.make(claim.run, plan.tool, services, limit_seconds=job.seconds_left)
        return context

    def _release_slot_of(self, job: Job, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        """Release the slot of a plain call that waits, and detach it: a wait may be long."""
        assert self.lead is not None  # noqa: S101 - it runs the call
        self.lead.detach_now(job)
        if job.request is None or job.request.has_ended:
            return KeptSlot()  # the call has ended, and something that it left behind waits
        return self._release_slot(job.request, wait)

    def detach(self, job: Job, expire: Callable[[], None] | None = None) -> None:
        """Take over the lease, cancellation, time limit and end of a plain call that takes long.

        ``expire`` interrupts its handler at the time limit, if it can be interrupted.
        """
        claim, plan = job.claim, job.plan
        assert plan is not None  # noqa: S101 - a plain call
        request = CallRequest.of_job(job, self.consumer)
        request.reserve()
        request.accept()
        request.tell_claim(self._runtime.monitors)
        request.tell_start(self._runtime.monitors, job.begun_at)
        answer = partial(self._answer, request, claim)
        cancellation = job.ensure_cancellation()
        _, watch = self._runtime.delivery.hold(claim, answer, lambda: job.started_at, cancellation)

        def limit_handler(seconds: float) -> CallOff:
            self._runtime.limiter.begin(claim)
            if plan.is_isolated:
                return lambda: None
            if expire is None:
                return watch(plan.limit_seconds, patience=-seconds)
            no_interrupt = self._runtime.delivery.watchdog.watch(plan.limit_seconds - seconds, expire)
            no_answer = watch(plan.limit_seconds, patience=PATIENCE_SECONDS - seconds)

            def call_off() -> None:
                no_interrupt()
                no_answer()

            return call_off

        job.limit_handler(limit_handler)
        end_limit: CallOff = job.end_handler
        if plan.is_wrapped:  # what is around it may take as long again as the handler
            end_limit = watch(2 * plan.limit_seconds, way_timed_out, patience=job.begun_at - monotonic())

        def end(result: ToolCallResult) -> None:
            end_limit()
            self._finish(request, claim, result)
            self.flush()

        job.request, job.end_detached = request, end
        if job.reporter is not None:
            job.reporter.begin()

    def finish(self, job: Job, result: ToolCallResult) -> None:
        """End a plain call with a result that is not plain, such as a pending one, or one to be retried."""
        claim, delivery = job.claim, self._runtime.delivery
        request = CallRequest.of_job(job, self.consumer)
        request.tell_claim(self._runtime.monitors)
        if job.begun_at:
            request.tell_start(self._runtime.monitors, job.begun_at)
        delivery.hold(claim, lambda _: False, lambda: job.started_at, job.cancellation)
        delivery.result_writer.finish(claim, result)
        delivery.flush()

    def leave_damaged(self, job: Job) -> None:
        """Release what a call holds whose record is damaged: the script that ends its run could not."""
        self._runtime.limiter.leave_damaged(job.claim)
        self._runtime.delivery.flush()

    def mark_again(self, job: Job) -> None:
        """Mark a call as started again, since its mark is old: the process may have been frozen.

        Raises:
            GoondanError: it must not go on.
        """
        delivery, cancellation = self._runtime.delivery, job.ensure_cancellation()
        job.fresh_until = delivery.start(job.claim, cancellation, has_begun=bool(job.begun_at))

    def end_cancelled(self, job: Job) -> None:
        """End a plain call that is cancelled, as Redis says."""
        self.finish(job, self._runtime.reaper.cancelled(job.claim.run.ok(None, job.started_at)))

    def carry_out_claimed(self, job: Job) -> None:
        """Carry out a claimed call that is not plain, on this thread; its slot is taken already."""
        request = CallRequest.of_job(job, self.consumer)
        request.reserve()
        request.accept()
        self._without_fault(request, partial(self._carry_out_job, request, job))

    def _carry_out_job(self, request: CallRequest, job: Job) -> None:
        delivery = self._runtime.delivery
        try:
            delivery.call_of(request.incoming)
        except GoondanError as error:
            delivery.refuse(request.incoming, request.worker, error, job.token)
            self._end(request)
            return
        self._carry_out(request, delivery.limiter.admit_claimed(job.claim))

    def note_ended(self, ended: Sequence[Ended]) -> None:
        """Log stored results, count them, and tell Celery's monitors."""
        writer = self._runtime.delivery.result_writer
        log, counts = writer.log, writer.counts
        counts.add(one.job.counted if one.failure is None else CountedCall.of(one.failure) for one in ended)
        log.write([one.logged for one in ended])
        for one in ended:
            if one.failure is not None:
                writer.keep_failure(one.job.claim.run, one.failure)
            # such a call has no request among Celery's: job_info shows it while it runs
            count(task_name(one.job.agent, one.job.tool_name), TOOL_CALL_TASK)
        self._runtime.delivery.flush()
        self.events.add(self.consumer.event_dispatcher, [(one.job, one.failure) for one in ended])

    def flush_events(self, dispatcher: Any) -> None:
        """Send the events for monitors; on the main thread."""
        self.events.send(dispatcher)
        if sends_events(dispatcher):
            self._runtime.monitors.flush()
        else:
            self._runtime.monitors.drop()

    def _on_free(self) -> None:
        if self.lead is not None:
            self.lead.wake()

    def _deliver(self) -> None:
        while self._undelivered:
            batch = self._undelivered.popleft()
            try:
                for tag, queue, message in batch.messages:
                    self.channel.deliver(tag, queue, message)
            finally:
                self._slots.expect(-_events(batch))
        self._on_free()

    def _release_slot(self, request: CallRequest, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        """Release the slot of a call while it waits, and with it the prefetch credit of its message."""
        request.released_slot = self._slots.release_slot(wait)
        if not request.acknowledged:
            self._unacknowledged.append(request)  # the ledger has the call, and its message is not needed
        self.flush()
        if self.lead is not None:
            self.lead.step_aside()
        return request.released_slot

    def _trace(self, request: Any, *args: Any) -> None:
        error = outcome_of(lambda: apply_target(*args)).error
        self._slots.leave(None)
        if error is not None:  # Celery's own code may fail on a message's callbacks
            logger.error("task.fault", task_id=getattr(request, "id", None), exc_info=error)
            self._on_main_thread(partial(_give_up, request))

    def _begin(self, request: CallRequest, turn: InOrder) -> None:
        try:
            self._without_fault(request, partial(self._run_message, request, turn))
        finally:
            turn.end()  # also if the message was refused

    def _without_fault(self, request: CallRequest, work: Work) -> None:
        """Do part of a call; a fault of ours costs neither its slot nor this thread."""
        error = outcome_of(work).error
        if error is not None:
            logger.error("call.fault", **request.log_fields, exc_info=error)
            fault = ToolError(f"The worker could not begin the call: {error!r:.200}")
            token = None if request.job is None else request.job.token
            try:
                self._runtime.delivery.refuse(request.incoming, request.worker, fault, token)
            finally:  # if the refusal cannot be sent, a sweep settles the call
                self._end(request)

    def _run_message(self, request: CallRequest, turn: InOrder) -> None:
        request.accept()
        incoming, delivery = request.incoming, self._runtime.delivery
        try:
            if request.id in state.revoked:  # since its message came
                raise ToolCancelledError("The call was revoked.")
            claim = delivery.claim(incoming, request.worker, turn)
        except GoondanError as error:
            if self._runtime.standby.leaves(incoming.placeholder(), error):
                self._on_main_thread(partial(self._put_back, request))
                return
            delivery.refuse(incoming, request.worker, error)
            self._end(request)
        else:
            turn.end()
            self._carry_out(request, claim)

    def _put_back(self, request: CallRequest) -> None:
        _reject(request)
        self._slots.leave(None)

    def _carry_out(self, request: CallRequest, claim: Claim) -> None:
        delivery, event_loop = self._runtime.delivery, self._runtime.event_loop
        if claim.verdict is not Verdict.RUN:
            if claim.verdict is Verdict.WAITING:
                delivery.result_writer.counts.add_limit_wait(
                    claim.run.call.agent_name, claim.run.call.tool_name
                )
            delivery.settle(claim)
            self._end(request)
            return
        monitors = self._runtime.monitors
        request.tell_claim(monitors)
        coroutine = delivery.carry_out(
            claim,
            partial(self._answer, request, claim),
            partial(self._release_slot, request),
            on_thread=self._run_beside_loop,
            on_start=partial(request.tell_start, monitors),
        )
        finish, ended = partial(self._finish, request, claim), drive(coroutine)
        if ended is None:
            event_loop.carry_on(coroutine, partial(self._finish_soon, finish))
        else:
            finish(ended[0])
        running.set(None)  # this thread does other things now

    def _finish_soon(self, finish: Callable[[ToolCallResult], None], result: ToolCallResult) -> None:
        """Finish a call that ended on the event loop; on a thread of its own if that may block."""
        may_block = result.error is not None or self._runtime.delivery.has_spans
        (self._threads.run if may_block else self._threads.run_short)(partial(finish, result))

    def _run_beside_loop(self, work: Work, then: Work) -> None:
        def both() -> None:
            work()
            self._runtime.event_loop.put_off(then)

        self._threads.run(both)

    def _answer(self, request: CallRequest, claim: Claim, result: ToolCallResult) -> bool:
        """End a call whose handler still runs on its thread; return whether the call had no result yet."""
        is_first = self._runtime.delivery.result_writer.answer(claim, result)
        if is_first:
            self._end(request)
        self.flush()
        return is_first

    def _finish(self, request: CallRequest, claim: Claim, result: ToolCallResult) -> None:
        if self._runtime.delivery.result_writer.finish(claim, result):
            self._end(request)

    def _end(self, request: CallRequest) -> None:
        if request.has_ended:
            return
        request.has_ended = True
        self._ended.append(request)
        self._slots.leave(request.released_slot)

    def flush(self) -> None:
        """Send what calls have put off, and report ended calls to Celery, so that it fetches more."""
        self._runtime.event_loop.flush()
        self._runtime.delivery.flush()
        while self._ended and self._slots.backlog < ENOUGH:
            with contextlib.suppress(IndexError):  # another thread was faster
                request = self._ended.popleft()
                request.end()
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
        """Acknowledge the messages of ended calls; on the main thread, if that has an event loop."""
        while True:
            try:
                request = self._unacknowledged.popleft()
            except IndexError:  # without a main loop, several threads do this at a time
                return
            request.acknowledge()

    def _get_info(self) -> dict[str, Any]:
        info = super()._get_info()  # type: ignore[misc]  # celery-types does not know it
        return {**info, "threads": self._threads.count, "in-progress": self._slots.taken}


def _events(batch: Batch) -> int:
    return sum(is_events_queue(queue) for _, queue, _ in batch.messages)


def _reject(request: Any, *, requeue: bool = True) -> None:
    request.reject(requeue=requeue)
    state.task_ready(request)  # otherwise a request of Celery's own stays reserved


def _give_up(request: Any) -> None:
    if request is not None:
        request.acknowledge()
        state.task_ready(request)

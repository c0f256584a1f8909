"""Our Celery pool: blocking handlers on daemon threads, async handlers on one event loop.

The pool bounds the calls in progress, blocking and async together. A call takes a thread while it talks to
Redis or runs a blocking handler, and none while its async handler waits. The setting ``worker_pool`` chooses
it.
"""

import ctypes
import gc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import structlog
from celery.concurrency.base import BasePool
from celery.worker import state

from broker_config.connections import connect
from broker_config.queue_reader import Batch, QueueReader
from broker_config.queues import TOOL_CALL_TASK, is_events_queue
from broker_config.scripts import ClaimOnReserve
from goondan_tasks.authoring.tool_api import EmitOutput, Logger, ReportProgress
from goondan_tasks.contract.call_fields import followed_by
from goondan_tasks.contract.errors import (
    GoondanError,
    ToolError,
)
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from goondan_tasks.contract.output import emit_nowhere
from goondan_tasks.fleet.monitors import task_name
from goondan_tasks.ledger.record import Claim, Verdict
from workers.cancellation import Watch, way_timed_out
from workers.concurrency.slots import KeptSlot, QueuedJob, ReleasedSlot, Slots, Wait
from workers.concurrency.threads import DaemonThreads, InOrder, Work
from workers.concurrency.watchdog import CallOff
from workers.delivery.incoming import Incoming
from workers.extensions.events import running
from workers.job import Job, JobState
from workers.kept_lines import logger_of
from workers.outcome import outcome_of
from workers.plain_context import PlainContext
from workers.plan import Plan
from workers.pool.intake import Intake, ReservedMessage
from workers.pool.lead import Lead
from workers.pool.loop_calls import end_detached
from workers.pool.monitoring import ShortEvents, count, sends_events, task_of_job, tell_claim, tell_start
from workers.pool.parts import WorkerParts
from workers.pool.refusal import refusing_without_threads
from workers.pool.waking import start_waking

logger = structlog.get_logger(__name__)

#: the number of the parameter in glibc's malloc.h
_M_ARENA_MAX = -8

#: how many malloc arenas all threads share: only one thread holds the interpreter at a time anyway
MOST_ARENAS = 2

#: the garbage is collected after this many new objects, which is about a hundred calls
YOUNG_OBJECTS = 20_000

#: how long an async handler that is cancelled at its limit may take to end before the call ends without it
PATIENCE_SECONDS = 1.0

#: how many slots a worker may have
MOST_SLOTS = 10_000


def share_arenas() -> bool:
    """Let threads share malloc arenas; return whether the C library can.

    glibc gives nearly every thread its own arena, and memory freed in one is of no use to the others. Sharing
    them cut the growth of a worker's resident size over 25,000 calls from 6 MiB to less than one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_ARENA_MAX, MOST_ARENAS) == 1


class CallPool(BasePool):
    """The pool; ``limit`` is ``--concurrency``."""

    limit: int

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._slots = Slots(lambda: self.limit, lambda queued: self._threads.run(queued.job), self._on_free)
        #: the calls that are carried out here, by the tokens of their claims; the lead has the others
        self.jobs: dict[str, Job] = {}
        #: whether the worker drains: no call begins, and those that have not begun go back. The handler of
        #: SIGTERM sets it, which may not take a lock
        self.is_draining = False
        self.events = ShortEvents()
        #: the turn of the latest message: limits are asked in the order of messages
        self._latest: InOrder | None = None
        #: Celery's consumer
        self.consumer: Any = None
        #: takes calls off the queues; ``None`` before the pool has started
        self.lead: Lead | None = None

    def on_start(self) -> None:
        """Build the process's runtime before the first call needs it."""
        share_arenas()
        with refusing_without_threads():
            self._start()

    def start_process(self) -> WorkerParts:
        """Return the parts of this process, which are made now: the pool that Celery is given knows them."""
        raise NotImplementedError

    def _start(self) -> None:
        self._runtime = self.start_process()
        gc.freeze()  # the objects made so far live as long as the process: collecting need not look at them
        gc.set_threshold(YOUNG_OBJECTS)
        self._threads = DaemonThreads(self.flush)
        self._threads.start()
        settings = self._runtime.settings
        self._slots.most_released = settings.max_waiting
        redis = connect(settings.redis_url, name="goondan-lead")
        reader = QueueReader(redis, self._runtime.delivery.ledger.unawaited_scripts)
        self.intake = Intake(self._runtime, self.app)
        self.lead = Lead(reader, self._runtime, self._threads, self._slots, self)
        self._runtime.delivery.leases.renew_also(self.lead.claims)
        self._runtime.delivery.result_writer.tell_of_short(self._tell_short)
        self.lead.start()
        start_waking(self._runtime.reaper.wake, self._runtime.delivery.ledger.keys.due)

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

    def attach(
        self,
        consumer: Any,
        queues: Callable[[], Sequence[str]],
        terms: Callable[[], ClaimOnReserve | None],
    ) -> None:
        """Take calls from these queues while there is a connection; see :meth:`Lead.attach`."""
        assert self.lead is not None  # noqa: S101 - the pool has started
        self.consumer = consumer
        self.lead.attach(consumer.hostname, queues, terms)

    def take(self, message: ReservedMessage) -> None:
        """Carry out the call of a message as soon as there is a slot for it."""
        if self.is_draining:
            self.intake.give_back([message])
            return
        turn = self._latest = InOrder(self._latest)
        self._slots.expect(is_events_queue(message.queue))
        self._slots.enter(QueuedJob(partial(self._begin, message, turn), message, turn))

    def drain(self) -> None:
        """Begin no more calls, and take none off the queues."""
        self.is_draining = True
        if self.lead is not None:
            self.lead.detach()

    @property
    def running(self) -> list[Job]:
        """The calls that run."""
        own = self.jobs.copy()
        led = [] if self.lead is None else self.lead.jobs
        return [*own.values(), *(job for job in led if job.is_running and job.token not in own)]

    @property
    def reserved(self) -> list[Job]:
        """The calls that are claimed and have not begun."""
        return [] if self.lead is None else [job for job in self.lead.jobs if job.waits]

    @property
    def is_busy(self) -> bool:
        """Whether calls are here, or results that Redis has not confirmed.

        The places are looked at in the order in which calls go through them: none is missed on its way.
        """
        has_led = self.lead is not None and not (self.intake.is_idle and self.lead.is_idle)
        return has_led or bool(self.jobs)

    def return_backlog(self) -> None:
        """Put the messages of the calls that have not begun back to the front of their queues."""
        waiting = self._slots.take_waiting()
        for queued in waiting:
            queued.turn.end()  # the next message must not wait for it
            self._slots.expect(-is_events_queue(queued.message.queue))
        self.intake.give_back([queued.message for queued in waiting])

    # For the lead: see :class:`workers.pool.loop_calls.Pool`.

    def deliver(self, batch: Batch) -> None:
        """Take the messages that were not claimed."""
        for message in self.intake.hold(batch):
            self.take(message)

    def workdir(self, job: Job) -> Path:
        """Return the workdir of a call, and make it on first use."""
        return job.planned.runner.workdir(job)

    def logger(self, job: Job) -> Logger:
        """Return the logger of a call."""
        return logger_of(job)

    def progress(self, job: Job) -> ReportProgress:
        """Return what reports the progress of a call: with its result, unless the call takes long."""
        if job.reporter is None:
            job.reporter = self._runtime.delivery.reporter(job)
            if job.end_detached is not None:
                job.reporter.begin()
        return job.reporter

    def emit(self, job: Job) -> EmitOutput:
        """Return what emits the output of a call, as its progress; nothing is kept if nobody follows it."""
        stream = followed_by(job.read(), job.id)
        if stream is None:
            return emit_nowhere
        if job.emitter is None:
            job.emitter = self._runtime.delivery.emitter(job, stream)
            if job.end_detached is not None:
                job.emitter.begin()
        return job.emitter

    def context(self, job: Job) -> Any:
        """Make the whole context of a call."""
        return job.planned.runner.context(job, self)

    def release_slot(self, job: Job, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        """Release the slot of a call that waits, and detach it: a wait may be long."""
        assert self.lead is not None  # noqa: S101 - it runs the call
        self.lead.detach_now(job)
        if job.token not in self.jobs:
            return KeptSlot()  # the call has ended, and something that it left behind waits
        job.released_slot = self._slots.release_slot(wait)
        self.flush()
        self.lead.step_aside()
        return job.released_slot

    def detach(self, job: Job, expire: Callable[[], None] | None = None) -> None:
        """Take over the lease, cancellation, time limit and end of a call that takes long.

        ``expire`` interrupts its handler at the time limit, if it can be interrupted.
        """
        claim, plan = job.claim, job.planned
        if job.watch is None:
            self._accept(job)
            self._tell_claim(job)
        watch = job.watch or self._hold(job)

        def limit_handler(seconds: float) -> CallOff:
            self._tell_start(job, monotonic() - seconds)
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

        if not job.limit_handler(limit_handler):  # what comes after the handler takes long
            self._tell_start(job, job.begun_at)
        end_limit: CallOff = job.end_handler
        if plan.has_layers:  # what is around it may take as long again as the handler
            end_limit = watch(2 * plan.limit_seconds, way_timed_out, patience=job.begun_at - monotonic())

        def end(result: ToolCallResult) -> None:
            end_limit()
            self._finish(job, result)
            self.flush()

        job.end_detached = end
        for reporter in job.reporters:
            reporter.begin()

    def _hold(self, job: Job) -> Watch:
        """Look after the lease and the cancellation of a call from now on."""
        return self._runtime.delivery.hold(job, partial(self._answer, job))

    def finish(self, job: Job, result: ToolCallResult) -> None:
        """End a call with a result that is not plain, such as a pending one, or one to be retried."""
        delivery = self._runtime.delivery
        self._tell_claim(job)
        if job.started_at is not None:
            self._tell_start(job, job.begun_at)
        delivery.hold(job, lambda _: False)
        delivery.result_writer.finish(job, result)
        delivery.flush()

    def mark_again(self, job: Job) -> None:
        """Mark a call as started again, since its mark is old: the process may have been frozen.

        Raises:
            GoondanError: it must not go on.
        """
        delivery, cancellation = self._runtime.delivery, job.ensure_cancellation()
        job.fresh_until = delivery.start(job.claim, cancellation, has_begun=bool(job.begun_at))

    def prepare_and_run(self, job: Job) -> None:
        """Prepare a claimed call on this thread, and run it; its slot is taken already."""
        self._accept(job)
        self._without_fault(job, partial(self._admit, job))

    def _admit(self, job: Job) -> None:
        delivery, incoming = self._runtime.delivery, _incoming_of(job)
        try:
            delivery.call_of(incoming)
        except GoondanError as error:
            delivery.refuse(incoming, job.worker, error, job.token)
            self._end(job)
            return
        self._carry_out(job, delivery.limiter.admit_claimed(job.claim))

    def run_detached(self, job: Job, plan: Plan) -> None:
        """Run a detached call on this thread."""
        result = plan.runner.run(job, plan, PlainContext(job, self), self.mark_again)
        job.state = JobState.ENDED
        end_detached(job, result)

    def _tell_short(self, jobs: Sequence[Job]) -> None:
        """Count calls that have ended for Celery, and tell its monitors of them."""
        for job in jobs:
            count(task_name(job.agent, job.tool_name), TOOL_CALL_TASK)
        self.events.add(self.consumer.event_dispatcher, jobs)

    def flush_events(self, dispatcher: Any) -> None:
        """Send the events for monitors; on the main thread."""
        self.events.send(self._runtime.monitors.publish)
        if sends_events(dispatcher):
            self._runtime.monitors.flush()
        else:
            self._runtime.monitors.drop()

    def _on_free(self) -> None:
        if self.lead is not None:
            self.lead.wake()

    def _accept(self, job: Job) -> None:
        """Note that a call is carried out here from now on, also for the number in Celery's heartbeat."""
        job.begun_at = job.begun_at or monotonic()
        self.jobs[job.token] = job
        state.active_requests.add(job)
        count(task_name(job.agent, job.tool_name), task_of_job(job))

    def _tell_claim(self, job: Job) -> None:
        job.is_told = True
        tell_claim(job, self.consumer.event_dispatcher, self._runtime.monitors)

    def _tell_start(self, job: Job, begun_at: float | None = None) -> None:
        tell_start(job, self.consumer.event_dispatcher, self._runtime.monitors, begun_at)

    def _begin(self, message: ReservedMessage, turn: InOrder) -> None:
        """Carry out the call of a message, on this thread; its slot is taken already."""
        job = None
        try:
            job = self._claimed(message, turn)
        finally:
            turn.end()  # also if the message was refused
            self._slots.expect(-is_events_queue(message.queue))
            if job is None:
                self._slots.leave(None)
        self.flush()
        if job is not None:
            self._accept(job)
            self._without_fault(job, partial(self._carry_out, job, job.claim))

    def _claimed(self, message: ReservedMessage, turn: InOrder) -> Job | None:
        """Claim the call of a message, which is not needed then; ``None`` if nothing is to be run."""
        delivery, worker = self._runtime.delivery, self.consumer.hostname
        incoming = self.intake.read(message, worker)
        if incoming is None:
            return None
        claimed = outcome_of(lambda: delivery.claim(incoming, worker, turn))
        error = claimed.error
        if error is not None:
            if isinstance(error, GoondanError) and self._runtime.standby.leaves(
                incoming.placeholder(), error
            ):
                self.intake.give_back([message])
                return None
            delivery.refuse(incoming, worker, self._told(error, incoming.log_fields(worker)))
            self.intake.acknowledge(message, incoming.id)
            return None
        claim = claimed.get()
        self.intake.acknowledge(message, incoming.id if claim.verdict.is_recorded else "")
        if claim.verdict is Verdict.RUN:
            return Job.of_claim(claim, message.queue)
        self._settle(claim)
        return None

    def _told(self, error: BaseException, log_fields: JsonObject) -> GoondanError:
        """Return what a call is refused with that cannot begin; a fault of ours is logged."""
        if isinstance(error, GoondanError):
            return error
        logger.error("call.fault", **log_fields, exc_info=error)
        return ToolError(f"The worker could not begin the call: {error!r:.200}")

    def _without_fault(self, job: Job, work: Work) -> None:
        """Do part of a call; a fault of ours costs neither its slot nor this thread."""
        error = outcome_of(work).error
        if error is not None:
            fault = self._told(error, job.log_fields.known())
            try:
                self._runtime.delivery.refuse(_incoming_of(job), job.worker, fault, job.token)
            finally:  # if the refusal cannot be sent, a sweep settles the call
                self._end(job)

    def _settle(self, claim: Claim) -> None:
        """Act on a claim whose verdict is not to run the call."""
        if claim.verdict is Verdict.WAITING:
            call = claim.run.call
            self._runtime.delivery.result_writer.counts.add_limit_wait(call.agent_name, call.tool_name)
        self._runtime.delivery.settle(claim)

    def _carry_out(self, job: Job, claim: Claim) -> None:
        if claim.verdict is not Verdict.RUN:
            self._settle(claim)
            self._end(job)
            return
        self._tell_claim(job)
        self._runtime.delivery.spans.around(claim, partial(self._run, job))
        running.set(None)  # this thread does other things now

    def _run(self, job: Job) -> None:
        """Prepare a call, which may block, and run it by its plan, on this thread or on the event loop."""
        watch = self._hold(job)
        prepared = outcome_of(partial(self._prepared, job, watch))
        if prepared.error is not None:
            fault = self._told(prepared.error, job.log_fields.known())
            self._finish(job, self._runtime.reaper.failure(job.claim, fault))
            return
        early = prepared.get()
        if early is not None:
            self._finish(job, early)
            return
        assert self.lead is not None  # noqa: S101 - the pool has started
        plan = job.planned
        if plan.on_loop:
            self.lead.on_loop.begin_detached(job, plan)
        else:
            job.begin(is_wrapped=plan.is_wrapped)
            self.detach(job)
            self.run_detached(job, plan)

    def _prepared(self, job: Job, watch: Watch) -> ToolCallResult | None:
        executor = self._runtime.revisions.opened(job).executor
        return executor.prepare(job, watch, self._mark)

    def _mark(self, job: Job) -> None:
        """Mark a call as started."""
        job.fresh_until = self._runtime.delivery.start(job.claim, job.ensure_cancellation())
        job.state = JobState.STARTED

    def _answer(self, job: Job, result: ToolCallResult) -> bool:
        """End a call whose handler still runs on its thread; return whether the call had no result yet."""
        is_first = self._runtime.delivery.result_writer.answer(job, result)
        if is_first:
            self._end(job)
        self.flush()
        return is_first

    def _finish(self, job: Job, result: ToolCallResult) -> None:
        if self._runtime.delivery.result_writer.finish(job, result):
            self._end(job)

    def _end(self, job: Job) -> None:
        if self.jobs.pop(job.token, None) is not None:
            state.active_requests.discard(job)
            self._slots.leave(job.released_slot)

    def flush(self) -> None:
        """Send what calls have put off."""
        self._runtime.event_loop.flush()
        self._runtime.delivery.flush()

    def _get_info(self) -> dict[str, Any]:
        info = super()._get_info()  # type: ignore[misc]  # celery-types does not know it
        return {**info, "threads": self._threads.count, "in-progress": self._slots.taken}


def _incoming_of(job: Job) -> Incoming:
    return Incoming(job.id, job.queue, job.read(), task_of_job(job), claimed=job.original)

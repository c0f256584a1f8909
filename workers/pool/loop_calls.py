"""Plain calls with an async handler or middleware: each holds a slot, and all run on the event loop.

The leading thread marks them as started and hands them over. Blocking handlers within async middlewares run
beside the loop, short ones one after another on one thread. The results of those that end in one round of the
loop are stored together, in the next packet of the writer. A call that takes long is detached as any other:
the pool then looks after its lease, its cancellation and its time limits.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Protocol

import structlog

from broker_config.queue_reader import Batch
from broker_config.scripts import ScriptCall
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.events import handling_agent
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from workers.cancellation import timed_out
from workers.concurrency.event_loop import beside_loop
from workers.concurrency.shared_thread import SharedThread
from workers.concurrency.slots import Slots
from workers.concurrency.threads import DaemonThreads, Work
from workers.job import Job, JobState
from workers.outcome import FunctionOutcome, awaited_outcome, outcome_of
from workers.plain_context import ContextServices, PlainContext
from workers.plan import Plan
from workers.pool.parts import WorkerParts

logger = structlog.get_logger(__name__)

#: how long a call may run before it is detached. It blocks nothing meanwhile, and may be one of hundreds,
#: each of which would cost more detached
LASTING_SECONDS = 0.1


#: how many results are stored by one script at most
MOST_STORED = 500

#: the most bytes of results that the event loop sends itself: waking another thread costs as much
#: as sending them
MOST_SENT_BYTES = 65_536


class Pool(ContextServices, Protocol):
    """What the lead needs of :class:`workers.pool.pool.CallPool`.

    The pool prepares the calls that need something first, and looks after those that take long.
    """

    #: whether calls that have not begun go back: the worker drains
    is_draining: bool

    def prepare_and_run(self, job: Job) -> None:
        """Prepare a claimed call on this thread, and run it; its slot is taken, and freed at its end."""

    def run_detached(self, job: Job, plan: Plan) -> None:
        """Run a detached call on this thread."""

    def detach(self, job: Job, expire: Callable[[], None] | None = None) -> None:
        """Take over the lease, cancellation, time limit and end of a call that takes long.

        ``expire`` interrupts its handler at the time limit, if it can be interrupted.
        """

    def finish(self, job: Job, result: ToolCallResult) -> None:
        """End a call with any result that is not a plain one."""

    def deliver(self, batch: Batch) -> None:
        """Take the messages that were not claimed."""

    def mark_again(self, job: Job) -> None:
        """Mark a call as started again, since its mark is old; this blocks.

        Raises:
            GoondanError: it must not go on.
        """

    def flush(self) -> None:
        """Send what calls have put off."""


@dataclass(eq=False, slots=True)
class LoopCall:
    """One call on the event loop."""

    job: Job
    plan: Plan
    #: ``None`` until the event loop has begun it
    task: asyncio.Task[None] | None = None
    #: whether the task has begun; one that is cancelled before its first step never runs, and ends no call
    has_begun: bool = False
    #: whether its blocking handler runs on a thread, which must not be abandoned
    is_beside: bool = False
    #: whether the handler was cancelled for its time limit
    is_past_limit: bool = False

    def interrupt(self) -> None:
        """Cancel the call's code, on the event loop; only once, since it may be cleaning up."""
        if self.task is not None and self.has_begun and not (self.is_beside or self.task.cancelling()):
            self.task.cancel()

    def expire(self) -> None:
        """Cancel the handler for its time limit, on the event loop, unless it has just ended."""
        if self.job.handler_at:
            self.is_past_limit = True
            self.interrupt()

    async def handle(self, context: ToolContext, arguments: JsonObject) -> Any:
        """Await the handler.

        Raises:
            ToolTimeoutError: it was cancelled for its time limit.
        """
        if self.is_past_limit:  # before its task began
            raise self._timed_out()
        try:
            return await self.plan.handler(context, arguments)
        except asyncio.CancelledError:
            if not self.is_past_limit or self.task is None:
                raise
            self.task.uncancel()
            raise self._timed_out() from None

    def _timed_out(self) -> GoondanError:
        agent = handling_agent(self.job.original) if self.plan.is_turn else None
        return timed_out(self.plan.limit_seconds, agent=agent)


class LoopCalls:
    """The calls of one worker process."""

    def __init__(
        self,
        runtime: WorkerParts,
        threads: DaemonThreads,
        slots: Slots,
        pool: Pool,
        on_busy: Callable[[], object],
        send_along: Callable[[Sequence[Job]], bool],
    ) -> None:
        """``on_busy`` is called when blocking handlers begin to run: then :meth:`look` must be called.

        ``send_along`` takes ended calls whose results the lead's next trip can carry; it returns false if
        there is none soon.
        """
        self._runtime = runtime
        self._event_loop = runtime.event_loop
        self._threads = threads
        #: for blocking handlers
        self._shared = SharedThread(threads, on_busy)
        self._slots = slots
        self._pool = pool
        self._send_along = send_along
        #: a call may end on the event loop while another thread detaches it
        self._lock = threading.Lock()
        #: the calls that run, by token: those that the lead has begun, and those that are detached
        self._short: dict[str, LoopCall] = {}
        self._lasting: dict[str, LoopCall] = {}
        #: the calls that the loop is about to begin
        self._begun: list[LoopCall] = []
        #: the calls that have ended in this round
        self._ended: list[Job] = []
        self._results = runtime.delivery.result_writer

    @property
    def jobs(self) -> list[Job]:
        """The calls that run and are not detached."""
        return [call.job for call in self._short.copy().values()]

    @property
    def is_idle(self) -> bool:
        """Whether all calls are detached, or have ended."""
        return not self._short

    @property
    def must_look(self) -> bool:
        """Whether calls are here that may have to be detached, or handlers that may keep others waiting."""
        return bool(self._short) or self._shared.is_busy

    def begin(self, job: Job, plan: Plan) -> None:
        """Let the loop run a call that is marked as started, after the next flush; its slot goes with it."""
        call = LoopCall(job, plan)
        job.begin(is_wrapped=plan.is_wrapped)
        self._short[job.token] = call
        with self._lock:
            self._begun.append(call)
            is_first = len(self._begun) == 1
        if is_first:
            self._event_loop.put_off(self._start_all)

    def begin_detached(self, job: Job, plan: Plan) -> None:
        """Let the loop run a call that the pool looks after, after the next flush."""
        call = LoopCall(job, plan)
        job.begin(is_wrapped=plan.is_wrapped)
        self._hand_over(call)
        self._event_loop.put_off(partial(self._start, call))

    def look(self) -> None:
        """Detach the calls that take long, and let no blocking handler keep others waiting."""
        self._shared.look()
        self._event_loop.flush()  # else those that have ended would wait for a handler behind them
        now = monotonic()
        for call in list(self._short.values()):
            if now - call.job.begun_at > min(LASTING_SECONDS, call.plan.limit_seconds / 2):
                self.detach(call.job)

    def detach(self, job: Job) -> None:
        """Let the pool look after a call that takes long."""
        with self._lock:
            call = self._short.get(job.token)
            if call is None:
                return
            self._hand_over(call)
            del self._short[job.token]  # not before: a drain must find the call in one of the two places

    def _hand_over(self, call: LoopCall) -> None:
        self._lasting[call.job.token] = call
        self._pool.detach(call.job, partial(self._on_loop, call.expire) if call.plan.is_awaited else None)
        call.job.ensure_cancellation().on_cancel(partial(self._on_loop, call.interrupt))

    # On the event loop.

    def _start_all(self) -> None:
        with self._lock:
            begun, self._begun = self._begun, []
        for call in begun:
            self._start(call)

    def _start(self, call: LoopCall) -> None:
        if call.job.is_fresh:
            call.task = asyncio.get_running_loop().create_task(self._run(call))
        else:  # the process was frozen, and another worker may hold the claim by now
            self._threads.run(partial(self._mark_again, call))

    async def _run(self, call: LoopCall) -> None:
        call.has_begun, cancellation = True, call.job.cancellation
        if cancellation is not None and cancellation.error is not None:
            outcome: FunctionOutcome[Any] = FunctionOutcome(error=cancellation.error)
        else:
            outcome = await awaited_outcome(self._called(call))
        fault = outcome_of(partial(self._end, call, outcome)).error
        if fault is not None:  # it must not cost the slot
            logger.error("call.fault", **call.job.log_fields.known(), exc_info=fault)
            self._threads.run(partial(self._end_general, call, FunctionOutcome(error=fault)))

    def _called(self, call: LoopCall) -> Coroutine[Any, Any, Any]:
        job, plan = call.job, call.plan
        wire = partial(plan.runner.wire, job, limit_seconds=plan.limit_seconds)
        context = PlainContext(job, self._pool, wire)
        handle = partial(call.handle if plan.is_awaited else partial(self._handle_beside, call), context)
        return plan.runner.run_on_loop(job, plan, handle, self._run_beside, self._pool.mark_again)

    async def _handle_beside(self, call: LoopCall, context: ToolContext, arguments: JsonObject) -> Any:
        """Run a blocking handler on a thread; a slow one gets one of its own."""
        plan = call.plan
        handle = partial(plan.detector.timed, partial(plan.handler, context, arguments))
        call.is_beside = True
        try:
            waits = plan.is_isolated or plan.detector.is_slow
            return await beside_loop(handle, self._run_apart if waits else self._run_beside)
        finally:
            call.is_beside = False

    def _run_beside(self, work: Work, then: Work) -> None:
        self._shared.run(partial(self._work, work, then))

    def _run_apart(self, work: Work, then: Work) -> None:
        self._threads.run(partial(self._work, work, then))

    def _work(self, work: Work, then: Work) -> None:
        """Do a piece of work; the loop is woken for what follows of several once their thread rests."""
        work()
        self._event_loop.put_off(then)

    def _end(self, call: LoopCall, outcome: FunctionOutcome[Any]) -> None:
        """Keep a plain result for the next packet, or end the call on another thread."""
        job = call.job
        with self._lock:
            is_short = job.token in self._short
            job.state = JobState.ENDED
            if is_short:  # a drain must find it in one of the two places
                self._results.unconfirmed[job.token] = job
                del self._short[job.token]
        result = call.plan.runner.plain_result(job, call.plan, outcome) if is_short else None
        if result is None:
            self._threads.run_short(partial(self._end_general, call, outcome))
            return
        self._report(job.let_go())
        job.end_with(result)
        self._ended.append(job)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._hand_on)

    def _hand_on(self) -> None:
        """Store the results of a round: with the lead's next trip or here; large ones on another thread.

        What calls have reported of themselves must be stored before their results, over the same connection.
        """
        ended, self._ended = self._ended, []
        if sum(len(one.wire) for one in ended) > MOST_SENT_BYTES:
            self._threads.run_short(partial(self._store, ended))
        elif any(one.reporters for one in ended) or not self._send_along(ended):
            self._store(ended)
            self._pool.flush()

    # On other threads.

    def _mark_again(self, call: LoopCall) -> None:
        outcome = outcome_of(partial(self._pool.mark_again, call.job))
        go_on = partial(self._start, call) if outcome.error is None else partial(self._end, call, outcome)
        self._on_loop(go_on)

    def _on_loop(self, callback: Work) -> None:
        self._event_loop.put_off(callback)
        self._event_loop.flush()

    def _end_general(self, call: LoopCall, outcome: FunctionOutcome[Any]) -> None:
        """End a call that is detached, or whose result is not a plain one; this may block."""
        job, plan = call.job, call.plan
        result = plan.runner.general_result(job, plan, outcome)
        self._report(job.last_reports())
        if job.end_detached is not None:
            self._lasting.pop(job.token, None)
            job.end_detached(result)
        elif not job.ends_alone(plan, result):
            if job.cancellation is not None:
                job.cancellation.end()
            job.end_with(result)
            self._store([job])
        else:
            self._pool.finish(job, result)
            self._slots.leave(None)

    def _store(self, jobs: Sequence[Job]) -> None:
        """Put results into the writer's next packet, and free the slots of their calls."""
        for begin in range(0, len(jobs), MOST_STORED):
            self._results.store_many(jobs[begin : begin + MOST_STORED])
        self._slots.leave_all(len(jobs))

    def _report(self, reports: Sequence[ScriptCall[Any]]) -> None:
        """Put the last reports of a call into the packet of its result."""
        for report in reports:
            self._runtime.delivery.writer.put_off(report, lambda _: None)


def end_detached(job: Job, result: bytes | ToolCallResult) -> None:
    """End a detached call whose handler has ended on this thread."""
    assert job.end_detached is not None  # noqa: S101 - detached
    for reporter in job.reporters:
        reporter.flush()
    if isinstance(result, bytes):
        result = ToolCallResult.from_json(result).model_copy(update={"error": job.error})
    job.end_detached(result)

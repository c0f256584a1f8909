"""The road of calls in a worker: reserve and claim in one trip, mark as started, run, send the result.

One thread *leads*. It takes calls off the queues over its own connection, runs the short ones one after
another, and sends their results along with the next reservation: handing a call to another thread would cost
more than a short call does. When a handler takes long, the watch thread elects another leader, which takes
over the connection, the claimed calls and the unsent results. There are never more handlers than slots;
claimed calls without a slot return to their queue. Calls that need something first are prepared by the pool.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Any

import structlog
from redis.exceptions import RedisError

from broker_config.queue_reader import Batch, QueueReader, Receiver
from broker_config.queues import is_events_queue
from broker_config.refusals import is_script_fault
from broker_config.scripts import ClaimOnReserve, ScriptCall
from broker_config.vital_thread import vital_thread
from goondan_tasks.contract.messages import ToolCallResult, redis_clock
from goondan_tasks.ledger.record import Verdict
from workers.concurrency.slots import Slots
from workers.concurrency.threads import SHORT_SECONDS, DaemonThreads
from workers.job import STATES, Job, JobState
from workers.plain_context import PlainContext
from workers.plan import Plan
from workers.pool.limits import note_verdict
from workers.pool.loop_calls import LoopCalls, Pool, end_detached
from workers.pool.outage import Outage
from workers.pool.parts import WorkerParts

logger = structlog.get_logger(__name__)

#: how many calls are marked as started together, and come with a wake-up while all calls are short; those
#: that have not begun when the worker dies have an unknown outcome
GROUP = 8

#: how many results go out without waiting for more
MOST_RESULTS = 16

#: how many seconds a result waits for others at most, while calls run
RESULT_SECONDS = 0.002

#: while all calls are short, as many as run in this many seconds are claimed beyond the free slots, and no
#: more than EXTRA
AHEAD_SECONDS = 0.01
EXTRA = 64

#: how many calls are claimed in one trip at most: Lua's ``unpack`` takes 8,000 values, two for each call
MOST_CLAIMED = 1_000


class Lead:
    """Leads on one of the pool's threads; any thread may :meth:`wake` it."""

    def __init__(
        self, reader: QueueReader, runtime: WorkerParts, threads: DaemonThreads, slots: Slots, pool: Pool
    ) -> None:
        self._reader = reader
        self._runtime = runtime
        self._delivery = runtime.delivery
        self._ledger = runtime.delivery.ledger
        self._three_quarters_of_lease = runtime.settings.lease_seconds * 3 / 4
        self._threads = threads
        self._slots = slots
        self._pool = pool
        self._worker = ""
        #: returns the queues to take calls from; ``None`` while the worker is not connected, or drains
        self._queues: Callable[[], Sequence[str]] | None = None
        #: returns the terms on which calls are claimed, if they have changed
        self._terms: Callable[[], ClaimOnReserve | None] = lambda: None
        #: reentrant: detaching a call that is cancelled frees its slot, which wakes the lead
        self._lock = threading.RLock()
        #: the calls whose handlers or middlewares are async
        self.on_loop = LoopCalls(runtime, threads, slots, pool, self._watch_on, self._send_along)
        #: the number of the current leader, which changes with every takeover
        self._leader = 0
        self._is_led = False
        self._is_woken = False
        self._thread: threading.Thread | None = None
        #: whether the leader holds a slot
        self._has_slot = False
        self._ready: deque[Job] = deque()
        #: the call that the leader has taken from the claimed ones and is not done with
        self._in_hand: Job | None = None
        #: the call that the leader runs now, and how many it has begun
        self._running: Job | None = None
        self._begun = 0
        #: plain results that are not sent yet, and since when the first one waits
        self._results: list[Job] = []
        self._oldest = 0.0
        #: the calls whose marks, results or releases Redis has not confirmed, by token
        self._unconfirmed: dict[str, Job] = {}
        self._outage = Outage()
        #: whether more calls came than the one of a wake-up: they are claimed first, and marked with it
        self._has_more = False
        #: how many calls in a row were short
        self._short = 0
        #: when the latest calls were claimed, and how many
        self._taken_at = 0.0
        self._taken = 0
        self._is_busy = threading.Event()

    def start(self) -> None:
        """Start the watch thread."""
        vital_thread("goondan-lead-watch", self._watch).start()

    def attach(
        self,
        worker: str,
        queues: Callable[[], Sequence[str]],
        terms: Callable[[], ClaimOnReserve | None] = lambda: None,
    ) -> None:
        """Take calls from these queues until :meth:`detach`.

        Both functions are called before each reservation; ``terms`` returns the terms of claims if they have
        changed.
        """
        self._worker = worker
        self._terms = terms
        self._queues = queues
        self.look_again()

    def detach(self) -> None:
        """Take no more calls; those that have not begun return to their queues."""
        self._queues = None
        self.look_again()

    def look_again(self) -> None:
        """Read the queues again: they have changed."""
        self._reader.wake()
        self.wake()

    def wake(self) -> None:
        """Let a thread lead, if none does: a slot is free, or there are queues to look at."""
        if self._is_led:
            self._is_woken = True
        with self._lock:
            if not self._is_led:
                self._elect()

    @property
    def jobs(self) -> list[Job]:
        """The calls that are here and not with the pool."""
        running = self._running
        return [
            *([] if running is None else [running]),
            *self._ready.copy(),
            *self._results,
            *self.on_loop.jobs,
        ]

    @property
    def is_idle(self) -> bool:
        """Whether no call is here and Redis has confirmed all results."""
        has_own = self._ready or self._in_hand or self._running or self._results or self._unconfirmed
        return not has_own and self.on_loop.is_idle

    def claims(self) -> list[tuple[str, str]]:
        """Return the id and token of each call whose lease the lead keeps renewed."""
        stored = self._delivery.result_writer.unconfirmed
        unconfirmed = (*self._unconfirmed.copy().values(), *stored.copy().values())
        return [(job.id, job.token) for job in (*self.jobs, *unconfirmed)]

    def detach_now(self, job: Job) -> None:
        """Let a call that is about to wait go on alone, and another thread lead.

        Work that outlives its call may still use the call's context: then there is nothing to detach.
        """
        with self._lock:
            if job.end_detached is None and self._running is job:
                self._take_over(job)
                return
        self.on_loop.detach(job)

    def step_aside(self) -> None:
        """Let another thread lead, if this one does: the call that it carries out is about to wait."""
        with self._lock:
            if self._is_led and self._thread is threading.current_thread() and self._running is not None:
                self._take_over(self._running)

    # The leader's own methods.

    def _lead(self, number: int) -> None:
        self._thread = threading.current_thread()
        has_resigned = False
        try:
            while number == self._leader and not has_resigned:
                if self._ready and not self._has_more:
                    self._run_next(number)
                else:
                    has_resigned = not self._fetch()
        finally:
            if not has_resigned:  # a fault of ours must not leave the worker without a leader
                self._replace(number)

    def _fetch(self) -> bool:
        """Send results and reserve calls; return whether this thread still leads."""
        if self._has_slot:
            self._has_slot = False
            self._slots.leave(None)
        self._pool.flush()
        self._outage.pause()
        self._is_woken = False
        attached = self._queues
        queues = () if attached is None or self._pool.is_draining else attached()
        credit = min(self._slots.free - len(self._ready), MOST_CLAIMED)
        self._has_more = False
        if not self._slots.takes_events:
            queues = [queue for queue in queues if not is_events_queue(queue)]
        try:
            self._send_results()
            must_not_wait = self._ready and not self._reader.is_hot(queues)
            if not queues or credit < 1 or must_not_wait:
                self._reader.settle()
                return bool(self._ready) or not self._resign()
            if (terms := self._terms()) is not None:
                self._reader.claim_with(terms)
            ahead = min(credit, GROUP) if self._short >= GROUP else 1
            batch = self._reader.reserve(queues, credit, self._extra(), ahead=ahead)
            self._has_more = batch.is_full and 0 < len(batch.claims) < credit and self._short >= GROUP
            self._taken_at = monotonic()
            self._taken = len(batch.claims) + len(self._ready)
        except RedisError as error:
            self._outage.note_error(error)
            return True
        if batch.claims:
            self._take(batch)
        if batch.messages:
            self._pool.deliver(batch)
        return True

    def _extra(self) -> int:
        """Return how many calls to claim beyond the free slots, by how long the latest ones took."""
        if self._short < GROUP or not self._taken:
            return 0
        seconds = (monotonic() - self._taken_at) / self._taken
        return min(EXTRA, int(AHEAD_SECONDS / seconds)) if seconds else EXTRA

    def _take(self, batch: Batch) -> None:
        clock = None
        for queue, token, answer in batch.claims:
            clock = clock or redis_clock(answer[3])
            job = Job(queue, token, answer, asked_at=batch.asked_at, clock=clock, worker=self._worker)
            if not note_verdict(self._delivery, job):
                continue
            if job.classify():
                self._ready.append(job)
            else:  # when its lease is over, a sweep gives it to a process that can read it
                logger.error("call.not_readable", **job.log_fields.known())
        self._runtime.revisions.active.executor.plans.learn_steps(self._ready)

    def _run_next(self, number: int) -> None:
        self._has_slot = self._has_slot or self._slots.take()
        # a batch may hold more events than Turns may begin
        is_welcome = self._slots.takes_events or not is_events_queue(self._ready[0].queue)
        if not (self._has_slot and is_welcome) or self._is_stopping:
            self._give_back(len(self._ready))
            return
        job = self._in_hand = self._ready[0]
        self._ready.popleft()
        try:
            self._run_job(job, number)
        finally:
            if self._in_hand is job:  # else another thread leads by now
                self._in_hand = None

    def _run_job(self, job: Job, number: int) -> None:
        plan = self._plan(job)
        if plan is None:
            self._prepare(job, number)
            return
        if job.early is not None:
            self._end(job, plan, job.early)
            return
        if not plan.needs_mark:
            job.start_unmarked()
        job.ask_ahead(self._reader.post)
        self._mark(job)
        if job.state is JobState.CLAIMED:  # it returns to its queue with the others
            self._ready.appendleft(job)
            return
        if self._ready and self._ready[0].state is JobState.CLAIMED and self._short >= GROUP:
            self._mark_ahead()
        if job.state is JobState.KEYED:
            job.plan = None
            self._prepare(job, number)
        elif job.state is not JobState.STARTED:
            self._end_unstarted(job)
        elif plan.on_loop:
            self._has_slot = False  # it goes with the call
            self._taken = 0  # calls that are claimed beyond the slots would only be given back
            self._short += 1
            self.on_loop.begin(job, plan)
            self._watch_on()
        elif plan.detector.is_slow:
            self._run_apart(job, plan)
        else:
            self._run(job, plan, number)

    @property
    def _is_stopping(self) -> bool:
        return self._queues is None or self._pool.is_draining

    def _plan(self, job: Job) -> Plan | None:
        """Return how a call is run, and check its arguments; ``None`` if it has to be prepared."""
        if job.plan is not None or self._needs_more(job):
            return job.plan
        revision = self._runtime.revisions.loaded(job)
        if revision is None:
            return None
        job.plan = revision.executor.plans.of(job)
        if job.plan is not None:
            job.early = revision.executor.early_result(job, job.plan)
        return job.plan

    def _needs_more(self, job: Job) -> bool:
        is_small = job.size <= self._runtime.settings.max_args_bytes
        return not is_small or job.verdict is not Verdict.RUN or self._delivery.has_spans

    def _prepare(self, job: Job, number: int) -> None:
        """Let the pool prepare and run a call; the call keeps its slot until it ends."""
        self._has_slot = False
        if self._runtime.revisions.active.executor.plans.is_slow(job):
            self._threads.run(partial(self._pool.prepare_and_run, job))
            return
        self._begin(job)
        self._pool.prepare_and_run(job)
        with self._lock:
            if number == self._leader:
                self._running = None

    def _begin(self, job: Job) -> None:
        with self._lock:
            self._running = job
            self._begun += 1
        if not self._is_busy.is_set():
            self._is_busy.set()

    def _run(self, job: Job, plan: Plan, number: int) -> None:
        self._runtime.event_loop.flush()
        context = PlainContext(job, self._pool)
        job.begin(is_wrapped=plan.is_wrapped)
        self._begin(job)
        result = plan.runner.run(job, plan, context, self._pool.mark_again)
        with self._lock:
            is_short = job.end_detached is None
            if is_short:
                self._running = None
                self._short += 1
        job.state = JobState.ENDED
        if not is_short:
            end_detached(job, result)
            return
        self._end(job, plan, result, job.let_go())

    def _run_apart(self, job: Job, plan: Plan) -> None:
        """Run a call that is known to take long on a thread of its own."""
        job.begin(is_wrapped=plan.is_wrapped)
        self._pool.detach(job)
        self._has_slot = False  # it goes with the call
        self._threads.run(partial(self._pool.run_detached, job, plan))

    def _end(
        self, job: Job, plan: Plan, result: bytes | ToolCallResult, reports: Sequence[ScriptCall[Any]] = ()
    ) -> None:
        """Keep a short call's result for the next packet, behind its reports; or let the pool end it."""
        if isinstance(result, ToolCallResult) and job.ends_alone(plan, result):
            for report in reports:
                self._delivery.writer.put_off(report, lambda _: None)
            self._pool.finish(job, result)
            return
        for report in reports:
            self._reader.post(report, self._outage.note_answer)
        job.end_with(result)
        if not self._results:
            self._oldest = monotonic()
        self._results.append(job)
        is_late = len(self._results) >= MOST_RESULTS or monotonic() - self._oldest > RESULT_SECONDS
        if is_late and self._ready:
            self._send(self._send_results)

    def _send(self, *posts: Callable[[], None]) -> None:
        for post in posts:
            post()
        try:
            self._reader.send()
        except RedisError as error:
            self._outage.note_error(error)

    # Marks: a handler begins only after Redis has confirmed that its claim is still valid.

    def _mark(self, job: Job) -> None:
        """Wait until a call's mark is confirmed or refused, or the worker stops meanwhile."""
        self._unconfirmed[job.token] = job
        try:
            job.require_fresh()
            while job.state in (JobState.CLAIMED, JobState.MARKING):
                self._outage.pause()
                try:
                    if job.state is JobState.CLAIMED:
                        self._post_marks([job, *self._next_ahead()])
                    self._reader.settle()
                except RedisError as error:
                    self._outage.note_error(error)
                job.require_fresh()
                if job.state is JobState.CLAIMED and self._is_stopping:
                    return
        finally:  # a fault of ours must not keep the lease forever
            del self._unconfirmed[job.token]

    def _mark_ahead(self) -> None:
        if jobs := self._next_ahead():
            self._send(partial(self._post_marks, jobs), self._send_results)

    def _next_ahead(self) -> list[Job]:
        """Return the next calls to be marked together; none unless all have been short."""
        jobs: list[Job] = []
        if self._short < GROUP:
            return jobs
        for job in self._ready:
            if job.state is not JobState.CLAIMED or len(jobs) >= GROUP - 1 or not (plan := self._plan(job)):
                break
            if job.early is None and plan.needs_mark:
                jobs.append(job)
        return jobs

    def _post_marks(self, jobs: Sequence[Job]) -> None:
        fresh_until = monotonic() + self._three_quarters_of_lease
        for job in jobs:
            job.state = JobState.MARKING
            job.fresh_until = fresh_until

        def on_answer(answers: Any) -> None:
            self._outage.note_answer(answers)
            if not isinstance(answers, RedisError):
                for job, answer in zip(jobs, answers, strict=True):
                    job.state = STATES[answer]
            elif not is_script_fault(answers):
                for job in jobs:
                    job.state = JobState.CLAIMED
            elif len(jobs) > 1:  # the fault of one must not stop the others
                for job in jobs:
                    self._post_marks([job])
            else:
                jobs[0].state = JobState.DAMAGED

        claims = [(job.id, job.token) for job in jobs]
        own_keys = [job.key for job in jobs]
        self._reader.post(self._ledger.start(claims, own_keys), on_answer)

    def _end_unstarted(self, job: Job) -> None:
        if job.state is JobState.CANCELLED:
            self._delivery.result_writer.end_cancelled(job)
        elif job.state is JobState.DAMAGED:
            self._delivery.result_writer.leave_damaged(job)
        else:
            logger.warning("call.claim_lost", **job.log_fields.known())

    # Results.

    def _send_results(self) -> None:
        """Post the unsent results."""
        results, self._results = self._results, []
        for job in results:
            if job.opened is not None:
                self._post_results([job])
        if others := [job for job in results if job.opened is None]:
            self._post_results(others)

    def _send_along(self, jobs: Sequence[Job]) -> bool:
        """Lead again with the results of calls on the event loop; return false if a thread leads.

        That thread may be waiting for calls.
        """
        with self._lock:
            if self._is_led or len(jobs) > EXTRA:
                return False
            self._results += jobs
        self._slots.leave_all(len(jobs))
        self.wake()
        return True

    def _post_results(self, results: list[Job]) -> None:
        writer = self._delivery.result_writer
        self._unconfirmed |= {job.token: job for job in results}

        def on_answer(answers: Any) -> None:
            self._outage.note_answer(answers)
            if is_script_fault(answers) and len(results) > 1:  # the fault of one must not stop the others
                for job in results:
                    self._post_results([job])
                return
            try:
                if is_script_fault(answers):
                    writer.note_refused(results[0], answers)
                elif isinstance(answers, RedisError):
                    self._results = results + self._results
                else:
                    writer.note_stored(results, answers)
            finally:  # last: a drain waits until they are counted
                for job in results:
                    del self._unconfirmed[job.token]

        self._reader.post(writer.row_script(results), on_answer)

    # Slots and threads.

    def _give_back(self, count: int) -> None:
        """Queue the last ``count`` claimed calls again, each in front of the one that came after it.

        Their releases go by the connection that reserves. Sent over another one, Redis might read them after
        a later reservation, which would then take the calls behind them.
        """
        for _ in range(count):
            job = self._ready[-1]
            release = self._delivery.release(job)
            if release is not None:
                self._post_release(job, *release)
            self._ready.pop()  # last, so that its lease is renewed throughout

    def _post_release(self, job: Job, script_call: ScriptCall[Any], receiver: Receiver) -> None:
        def on_answer(answer: Any) -> None:
            del self._unconfirmed[job.token]
            receiver(answer)

        self._unconfirmed[job.token] = job
        self._reader.post(script_call, on_answer)

    def _resign(self) -> bool:
        """Stop leading, unless there is something to do; return whether the thread has stopped."""
        with self._lock:
            self._is_led = bool(self._is_woken or self._results or self._unconfirmed)
            return not self._is_led

    def _replace(self, number: int) -> None:
        with self._lock:
            if number == self._leader:
                self._running = None
                self._outage.must_pause = True  # else a fault that comes again would be a busy loop
                self._elect()

    def _elect(self) -> None:
        self._leader += 1
        self._is_led = True
        self._threads.run(partial(self._lead, self._leader))

    def _watch_on(self) -> None:
        with self._lock:  # else the watch might go to sleep by what it saw before
            if not self._is_busy.is_set():
                self._is_busy.set()

    def _watch(self) -> None:
        seen = 0
        while True:
            self._is_busy.wait()
            slept_at = monotonic()
            sleep(SHORT_SECONDS)
            # a process that stood still says nothing about the handler
            is_late = monotonic() - slept_at > 2 * SHORT_SECONDS
            with self._lock:
                if self._running is not None and self._begun == seen and not is_late:
                    self._take_over(self._running)
                elif self._running is None and not (self._ready or self.on_loop.must_look):
                    self._is_busy.clear()
                seen = self._begun
            self.on_loop.look()

    def _take_over(self, job: Job) -> None:
        """Let the running call go on alone, and another thread lead."""
        self._short = 0
        if job.plan is not None and job.watch is None:  # else the pool has it already
            self._has_slot = False  # it goes with the call
            job.plan.detector.note_slow()
            self._pool.detach(job)
        self._running = self._in_hand = None
        free = max(1, self._slots.free)
        if len(self._ready) > free:  # they would wait for slots here while other workers may have free ones
            self._send(partial(self._give_back, len(self._ready) - free))
        self._elect()

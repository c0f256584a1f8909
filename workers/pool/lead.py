"""The hot path of a call in a worker: reserved and claimed in one trip, marked, run, and its result sent.

One thread *leads*. It takes calls off the queues over a connection of its own, runs the short ones one after
another, and sends their results with the next reservation: to hand a call to another thread would cost more
than a short call does. As soon as a handler lasts, a watch lets another thread lead, which takes over the
connection, the claimed calls and the results that are not sent yet. There are never more handlers than slots;
claimed calls without a slot go back to their queue. What is not a plain call is carried out by the pool.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Any

import structlog
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.connections import refusal_text
from broker_config.queue_reader import Batch, QueueReader, Receiver
from broker_config.queues import is_events_queue
from broker_config.scripts import ClaimOnReserve, ScriptCall
from broker_config.vital_thread import vital_thread
from goondan_tasks.ledger.record import Stored, Verdict
from goondan_tasks.messages import ToolCallResult, iso_time, redis_clock
from workers.cancellation import Cancellation
from workers.concurrency.slots import Slots
from workers.concurrency.threads import SHORT_SECONDS, DaemonThreads
from workers.job import Ended, Job, JobState, Plan
from workers.plain_context import PlainContext
from workers.pool.loop_calls import General, LoopCalls, note_stored
from workers.runtime import WorkerRuntime

logger = structlog.get_logger(__name__)

#: by what ``start.lua`` answers
_STATES = {Stored.YES: JobState.STARTED, Stored.LOST: JobState.LOST, Stored.CANCELLED: JobState.CANCELLED}

#: so many calls are marked as started at once; those that have not begun when the worker dies have an unknown
#: outcome
GROUP = 8

#: so many results do not wait for more
MOST_RESULTS = 16

#: seconds that a result waits for others at most, while calls are run
RESULT_SECONDS = 0.002

#: while all calls are short, those run in so many seconds are claimed beyond the free slots, so many at most
AHEAD_SECONDS = 0.01
EXTRA = 64

#: the pause before Redis is tried again, in seconds
PAUSE_SECONDS = 0.5


class Lead:
    """Leads on one of the pool's threads; any thread may :meth:`wake` it."""

    def __init__(
        self,
        reader: QueueReader,
        runtime: WorkerRuntime,
        threads: DaemonThreads,
        slots: Slots,
        general: General,
    ) -> None:
        self._reader = reader
        self._runtime = runtime
        self._ledger = runtime.delivery.ledger
        self._has_spans = runtime.delivery.has_spans
        self._three_quarters_of_lease = runtime.settings.lease_seconds * 3 / 4
        self._threads = threads
        self._slots = slots
        self._general = general
        self._worker = ""
        #: the queues to take calls from; none while the worker is not connected, or drains
        self._queues: Callable[[], Sequence[str]] = lambda: ()
        #: returns the terms on which calls are claimed, if they have changed
        self._terms: Callable[[], ClaimOnReserve | None] = lambda: None
        #: reentrant: a call that is cancelled while it is detached frees its slot, which wakes the lead
        self._lock = threading.RLock()
        #: the calls whose handlers are async
        self.on_loop = LoopCalls(runtime, threads, slots, general, self._lock)
        #: which thread leads: a number that changes with every takeover
        self._leader = 0
        self._is_led = False
        self._thread: threading.Thread | None = None
        self._is_woken = False
        #: whether the leader holds a slot
        self._has_slot = False
        self._ready: deque[Job] = deque()
        #: what the leader deals with, from the time that it leaves the claimed calls
        self._in_hand: Job | None = None
        #: what the leader runs now, and how often it has begun something
        self._running: Job | None = None
        self._beat = 0
        #: plain results that are not stored yet, and since when the first one waits
        self._results: list[Ended] = []
        self._oldest = 0.0
        #: the calls whose results or releases were sent, and that Redis has not confirmed, by token
        self._unconfirmed: dict[str, Job] = {}
        #: what has kept Redis from answering since it last did
        self._reasons: set[str] = set()
        self._must_pause = False
        self._is_attached = False
        #: whether the worker drains: no call begins any more
        self.is_closed = False
        #: how many calls in a row were short
        self._short = 0
        #: when the latest calls were claimed, and how many
        self._taken_at = 0.0
        self._taken = 0
        self._is_busy = threading.Event()

    def start(self) -> None:
        """Start the watch."""
        vital_thread("goondan-lead-watch", self._watch).start()

    def attach(
        self,
        worker: str,
        queues: Callable[[], Sequence[str]],
        terms: Callable[[], ClaimOnReserve | None] = lambda: None,
    ) -> None:
        """Take calls from these queues until :meth:`detach`.

        Before each reservation ``queues`` is asked, and ``terms``, which returns the terms of claims if they
        are others than before.
        """
        self._worker = worker
        self._queues = queues
        self._terms = terms
        self._is_attached = True
        self.look_again()

    def detach(self) -> None:
        """Take no more calls; those that have not begun go back."""
        self._queues = lambda: ()
        self._is_attached = False
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
        """The calls that are here, and not with the general way."""
        running = self._running
        return [
            *([] if running is None else [running]),
            *self._ready.copy(),
            *(ended.job for ended in self._results),
            *self.on_loop.jobs,
        ]

    @property
    def is_idle(self) -> bool:
        """Whether no call is here, and Redis has confirmed all results."""
        has_own = self._ready or self._in_hand or self._running or self._results or self._unconfirmed
        return not has_own and self.on_loop.is_idle

    def claims(self) -> list[tuple[str, str]]:
        """Return the id and token of each call whose lease is renewed here."""
        unconfirmed = (*self._unconfirmed.copy().values(), *self.on_loop.unconfirmed)
        return [(job.id, job.token) for job in (*self.jobs, *unconfirmed)]

    def cancellation_of(self, job: Job) -> Cancellation:
        """Return what is set when a plain call is cancelled; made on first use."""
        with self._lock:
            if job.cancellation is None:
                job.cancellation = Cancellation()
            return job.cancellation

    def detach_now(self, job: Job) -> None:
        """Let a plain call go on alone, and another thread lead: it is about to wait."""
        if job.plan is not None and job.plan.is_async:
            self.on_loop.detach(job)
            return
        with self._lock:
            if job.end_detached is None:
                self._take_over(job)

    def step_aside(self) -> None:
        """Let another thread lead, if this one does: what it carries out is about to wait."""
        with self._lock:
            if self._is_led and self._thread is threading.current_thread() and self._running is not None:
                self._take_over(self._running)

    # The leader's own: each of these is called by the thread that leads.

    def _lead(self, number: int) -> None:
        self._thread = threading.current_thread()
        has_resigned = False
        try:
            while number == self._leader and not has_resigned:
                if self._ready:
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
        self._general.flush()
        self._pause_if_refused()
        self._is_woken = False
        queues, credit = () if self.is_closed else self._queues(), self._slots.free
        if not self._slots.takes_events:
            queues = [queue for queue in queues if not is_events_queue(queue)]
        try:
            self._send_results()
            if not queues or credit < 1:
                self._reader.settle()
                return not self._resign()
            if (terms := self._terms()) is not None:
                self._reader.claim_with(terms)
            batch = self._reader.reserve(queues, credit, self._extra())
            self._taken_at, self._taken = monotonic(), len(batch.claims)
        except RedisError as error:
            self._refused(error)
            return True
        if batch.claims:
            self._take(batch)
        if batch.messages:
            self._general.deliver(batch)
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
            if job.verdict is Verdict.TOLD:
                continue
            if not job.verdict.is_granted:
                logger.info("call.not_run", **job.log_fields.known(), verdict=str(job.verdict))
            elif job.is_readable:
                self._ready.append(job)
            else:  # left to a process that can read it: the next sweep after a lease
                logger.error("call.not_readable", **job.log_fields.known())

    def _run_next(self, number: int) -> None:
        self._has_slot = self._has_slot or self._slots.take()
        # a batch may hold more events than Turns may begin
        is_welcome = self._slots.takes_events or not is_events_queue(self._ready[0].queue)
        if not (self._has_slot and is_welcome and self._is_attached) or self.is_closed:
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
            self._carry_out(job, number)
            return
        if job.refusal is not None:
            self._end(job, plan, job.refusal)
            return
        self._mark(job)
        if self._ready and self._ready[0].state is JobState.CLAIMED and self._short >= GROUP:
            self._mark_ahead()
        if job.state is not JobState.STARTED:
            self._end_unstarted(job)
        elif plan.is_async:
            self._has_slot = False  # it goes with the call
            self._taken = 0  # calls that are claimed beyond the slots would only go back
            self._short += 1
            with self._lock:  # the watch must not go to sleep in between
                self.on_loop.begin(job, plan)
                self._is_busy.set()
        elif plan.detector.is_slow:
            self._run_apart(job, plan)
        else:
            self._run(job, plan, number)

    def _plan(self, job: Job) -> Plan | None:
        """Return how a plain call is run, its arguments checked; ``None`` if it is not a plain call."""
        if job.plan is not None or not self._may_be_plain(job):
            return job.plan
        executor = self._runtime.revisions.active.executor
        job.plan = executor.plan(job)
        if job.plan is not None:
            job.refusal = executor.refuse_arguments(job, job.plan)
        return job.plan

    def _may_be_plain(self, job: Job) -> bool:
        is_small = job.size <= self._runtime.settings.max_args_bytes
        return is_small and job.verdict is Verdict.RUN and job.bundle_ref is None and not self._has_spans

    def _carry_out(self, job: Job, number: int) -> None:
        """Let the pool carry out what is not a plain call; its slot is its own until it ends."""
        self._has_slot = False
        if self._runtime.revisions.active.executor.is_slow(job):
            self._threads.run(partial(self._general.carry_out_claimed, job))
            return
        self._begin(job)
        self._general.carry_out_claimed(job)
        with self._lock:
            if number == self._leader:
                self._running = None

    def _begin(self, job: Job) -> None:
        with self._lock:
            self._running = job
            self._beat += 1
        if not self._is_busy.is_set():
            self._is_busy.set()

    def _run(self, job: Job, plan: Plan, number: int) -> None:
        self._runtime.event_loop.flush()
        context = PlainContext(partial(self._general.context, job))
        job.started_at, job.begun_at = job.clock(), monotonic()
        self._begin(job)
        result = self._runtime.revisions.active.executor.run_plain(job, plan, context)
        with self._lock:
            is_short = job.end_detached is None
            if is_short:
                self._running = None
                self._short += 1
        job.state = JobState.ENDED
        if not is_short:
            self._end_detached(job, result)
            return
        if job.reporter is not None:
            job.reporter.flush()
        if job.cancellation is not None:
            job.cancellation.end()
        self._end(job, plan, result)

    def _run_apart(self, job: Job, plan: Plan) -> None:
        """Let a call that is known to last run on a thread of its own."""
        job.started_at, job.begun_at = job.clock(), monotonic()
        self._general.detach(job)
        self._has_slot = False  # it goes with the call
        self._threads.run(partial(self._run_detached, job, plan))

    def _run_detached(self, job: Job, plan: Plan) -> None:
        context = PlainContext(partial(self._general.context, job))
        result = self._runtime.revisions.active.executor.run_plain(job, plan, context)
        job.state = JobState.ENDED
        self._end_detached(job, result)

    def _end_detached(self, job: Job, result: bytes | ToolCallResult) -> None:
        assert job.end_detached is not None  # noqa: S101 - detached
        if job.reporter is not None:
            job.reporter.flush()
        job.end_detached(ToolCallResult.from_json(result) if isinstance(result, bytes) else result)

    def _end(self, job: Job, plan: Plan, result: bytes | ToolCallResult) -> None:
        """Keep the result of a short call for the next packet, unless more is to be done."""
        if isinstance(result, bytes):
            ended = Ended(job, result)
        elif result.status == "error" and not plan.has_retry:
            job.ended_at = iso_time(job.clock())
            job.duration_ms = result.meta.duration_ms or 0.0
            ended = Ended(job, serializer.encode(result.to_wire()), result)
        else:
            self._general.finish(job, result)
            return
        if not self._results:
            self._oldest = monotonic()
        self._results.append(ended)
        is_late = len(self._results) >= MOST_RESULTS or monotonic() - self._oldest > RESULT_SECONDS
        if is_late and self._ready:
            self._send(self._send_results)

    def _send(self, *posts: Callable[[], None]) -> None:
        for post in posts:
            post()
        try:
            self._reader.send()
        except RedisError as error:
            self._refused(error)

    # Marks: a handler begins only when Redis has confirmed that its claim is still valid.

    def _mark(self, job: Job) -> None:
        """Wait until a call's mark is confirmed, or refused."""
        self._unconfirmed[job.token] = job
        try:
            job.require_fresh(self._three_quarters_of_lease)
            while job.state in (JobState.CLAIMED, JobState.MARKING):
                self._pause_if_refused()
                try:
                    if job.state is JobState.CLAIMED:
                        self._post_marks([job, *self._plain_ahead()])
                    self._reader.settle()
                except RedisError as error:
                    self._refused(error)
                job.require_fresh(self._three_quarters_of_lease)
        finally:  # a fault of ours must not keep the lease forever
            del self._unconfirmed[job.token]

    def _mark_ahead(self) -> None:
        if jobs := self._plain_ahead():
            self._send(partial(self._post_marks, jobs), self._send_results)

    def _plain_ahead(self) -> list[Job]:
        """Return the next plain calls, to be marked together: none unless all have been short."""
        jobs: list[Job] = []
        if self._short < GROUP:
            return jobs
        for job in self._ready:
            if job.state is not JobState.CLAIMED or len(jobs) >= GROUP - 1 or self._plan(job) is None:
                break
            if job.refusal is None:
                jobs.append(job)
        return jobs

    def _post_marks(self, jobs: Sequence[Job]) -> None:
        sent_at = monotonic()
        for job in jobs:
            job.state = JobState.MARKING
            job.marked_at = sent_at

        def on_answer(answers: Any) -> None:
            for number, job in enumerate(jobs):
                if isinstance(answers, RedisError):
                    job.state = JobState.CLAIMED
                else:
                    job.state = _STATES[answers[number]]
            self._note_answer(answers)

        self._reader.post(self._ledger.start([(job.id, job.token) for job in jobs]), on_answer)

    def _end_unstarted(self, job: Job) -> None:
        if job.state is JobState.CANCELLED:
            self._general.end_cancelled(job)
        else:
            logger.warning("call.claim_lost", **job.log_fields.known())

    # Results.

    def _send_results(self) -> None:
        """Post the results that wait."""
        if not self._results:
            return
        self._unconfirmed |= {ended.job.token: ended.job for ended in self._results}
        results, self._results = self._results, []

        def on_answer(answers: Any) -> None:
            for ended in results:
                del self._unconfirmed[ended.job.token]
            self._note_answer(answers)
            if isinstance(answers, RedisError):
                self._results = results + self._results
            else:
                note_stored(self._general, results, answers)

        self._reader.post(self._ledger.finish_many([ended.row for ended in results]), on_answer)

    def _note_answer(self, answer: Any) -> None:
        if isinstance(answer, RedisError):
            self._refused(answer)
        else:
            self._reasons.clear()

    def _refused(self, error: RedisError) -> None:
        """Try again later what Redis refused or was not reachable for."""
        reason = refusal_text(error)
        if reason not in self._reasons:  # each once, not twice a second
            self._reasons.add(reason)
            logger.warning("Redis takes nothing now, trying again: %s", reason)
        self._must_pause = True

    def _pause_if_refused(self) -> None:
        if self._must_pause:
            self._must_pause = False
            sleep(PAUSE_SECONDS)

    # Slots and threads.

    def _give_back(self, count: int) -> None:
        """Queue the last ones of the claimed calls again, each in front of the one that came after it.

        They go by the connection that reserves: by another one Redis may read them after a reservation that
        was sent later, which would take calls that are behind them.
        """
        for _ in range(count):
            release = self._general.release(self._ready[-1])
            if release is not None:
                self._post_release(self._ready[-1], *release)
            self._ready.pop()

    def _post_release(self, job: Job, script_call: ScriptCall[Any], receiver: Receiver) -> None:
        def on_answer(answer: Any) -> None:
            del self._unconfirmed[job.token]
            receiver(answer)

        self._unconfirmed[job.token] = job
        self._reader.post(script_call, on_answer)

    def _resign(self) -> bool:
        """Stop leading, unless there is something to do; return whether it stopped."""
        with self._lock:
            if self._is_woken or self._results or self._unconfirmed:
                return False
            self._is_led = False
            return True

    def _replace(self, number: int) -> None:
        with self._lock:
            if number == self._leader:
                self._running = None
                self._elect()

    def _elect(self) -> None:
        self._leader += 1
        self._is_led = True
        self._threads.run(partial(self._lead, self._leader))

    def _watch(self) -> None:
        seen = 0
        while True:
            self._is_busy.wait()
            begun = monotonic()
            sleep(SHORT_SECONDS)
            # if the process stood still this says nothing of the handler
            is_late = monotonic() - begun > 2 * SHORT_SECONDS
            with self._lock:
                if self._running is not None and self._beat == seen and not is_late:
                    self._take_over(self._running)
                elif self._running is None and not (self._ready or self.on_loop.has_short):
                    self._is_busy.clear()
                seen = self._beat
            self.on_loop.detach_lasting()

    def _take_over(self, job: Job) -> None:
        """Let the running call go on alone, and another thread lead."""
        self._short = 0
        if job.plan is not None:
            self._has_slot = False  # it goes with the call
            job.plan.detector.note_slow()
            self._general.detach(job)
        self._running = self._in_hand = None
        free = max(1, self._slots.free)
        if len(self._ready) > free:  # they would wait for slots here, while other workers may have free ones
            self._send(partial(self._give_back, len(self._ready) - free))
        self._elect()

"""How runs end: with a result that is stored, with a retry, or pending.

Writes to the ledger go through the pipelined writer: while Redis is away they wait, and none is lost.
"""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog
from redis.exceptions import ResponseError

from broker_config.pipelined_writer import PipelinedWriter
from broker_config.refusals import refusal_text
from broker_config.scripts import ScriptCall
from goondan_tasks.bundle import BoundTool
from goondan_tasks.bundle.resources import Retry
from goondan_tasks.contract.errors import GoondanError, RecordDamagedError, ToolOutputError
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.logs import CallLog
from goondan_tasks.contract.messages import ToolCallResult, epoch_milliseconds
from goondan_tasks.fleet.call_counts import CallCounts
from goondan_tasks.fleet.monitors import Monitors
from goondan_tasks.ledger.endings import finish_step
from goondan_tasks.ledger.leases import LeaseKeeper
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper, unknown_outcome
from goondan_tasks.ledger.record import NO_CALL, Claim, Outcome, Stored, completed, damaged
from workers.delivery.cancel_watch import CancelWatch
from workers.delivery.limiter import CallLimiter
from workers.delivery.spans import RunSpans
from workers.job import Job
from workers.outcome import outcome_of
from workers.tools.dynamic_tools import TurnKey, turn_of

logger = structlog.get_logger(__name__)

#: pauses are doubled up to this; a longer ``backoffSeconds`` stays as it is
LONGEST_DOUBLED_SECONDS = 300.0

#: a call whose error asks for a longer pause than this ends with that error
LONGEST_RETRY_AFTER_SECONDS = 60.0

#: errors that another run would repeat, or that are final
NEVER = ("E_TOOL_CANCELLED", "E_TOOL_INVALID_ARGS", "E_TOOL_EXPIRED", "E_TOOL_OUTCOME_UNKNOWN")
NEVER_PREFIX = "E_TOOL_NOT_"

Then = Callable[[], object]

#: gets calls that have ended
Tell = Callable[[Sequence[Job]], object]


def _tell_nobody(jobs: Sequence[Job]) -> None:
    """Tell nobody."""


def pause_seconds(retry: Retry, retries: int) -> float:
    """Return how long to wait before the next run, given the number of ``retries`` so far."""
    longest = max(retry.backoff_seconds, LONGEST_DOUBLED_SECONDS)
    doublings = min(retries, 1_000)  # a float overflows beyond that
    return min(retry.backoff_seconds * 2.0**doublings, longest)


def is_retried(retry: Retry, code: str) -> bool:
    """Return whether a call whose run failed with ``code`` is tried again."""
    if code in NEVER or code.startswith(NEVER_PREFIX):
        return False
    return not retry.codes or code in retry.codes


class KnownTools(Protocol):
    """The tools of a revision of the bundle (:class:`workers.tools.registry.Registry`)."""

    def known(self, agent: str, name: str, turn: TurnKey | None = None) -> BoundTool | None:
        """Return a tool that this worker can run for the agent, or in one of its Turns."""


@dataclass(eq=False)
class Retries:
    """Schedules the next runs of calls that have failed; until then, a call is only a record in Redis."""

    ledger: Ledger
    writer: PipelinedWriter
    reaper: Reaper
    #: returns the tools of a revision, those of the active one for ``None``; may raise a GoondanError
    tools_of: Callable[[str | None], KnownTools]
    cancels: CancelWatch

    def schedule(self, claim: Claim, result: ToolCallResult, *, granted: Then, final: Then) -> bool:
        """Retry a call whose run has ended with ``result``; return whether the ledger is asked to grant that.

        ``granted`` is called if it does: nobody holds the claim then. Else ``final`` is called, which must
        store ``result``.
        """
        pause = self._pause(claim, result)
        if pause is None:
            return False

        def on_answer(is_granted: int) -> None:
            if is_granted:
                logger.info("call.put_off", **claim.run.log_fields, code=code, seconds=pause)
                granted()
            else:
                final()
                self.writer.flush()

        run, code = claim.run, "" if result.error is None else result.error.code
        script_call = self.ledger.retry(
            claim,
            pause_ms=round(pause * 1000),
            begun_at=_begin_of(claim, result),
            code=code,
            message=self.reaper.message(run.id, run.call),
        )
        self.writer.send(script_call, on_answer, refused=lambda _: on_answer(0))
        return True

    def _pause(self, claim: Claim, result: ToolCallResult) -> float | None:
        """Return the seconds before the next run; ``None`` if there must be none."""
        retry = self._policy(claim)
        if retry is None or result.error is None or not is_retried(retry, result.error.code):
            return None
        cancellation = self.cancels.cancellation(claim)
        # a handler that was abandoned at its limit may still run, and a call has one run at a time
        if cancellation is None or cancellation.is_set() or claim.run.retries >= retry.max:
            return None
        # jitter: workers that failed together must not all come back together
        pause = pause_seconds(retry, claim.run.retries) * random.uniform(1.0, 1.25)  # noqa: S311
        pause = max(pause, result.error.retry_after)
        is_soon = result.error.retry_after <= LONGEST_RETRY_AFTER_SECONDS
        return pause if is_soon and pause * 1000 < _budget_left(claim, result) else None

    def _policy(self, claim: Claim) -> Retry | None:
        call = claim.run.call
        try:
            tools = self.tools_of(call.bundle_ref)
        except GoondanError:  # without that revision the call cannot be run either
            return None
        bound = tools.known(call.agent_name, call.tool_name, turn_of(call))
        return bound.export.retry if bound is not None and bound.export.idempotent else None


def _begin_of(claim: Claim, result: ToolCallResult) -> float:
    if claim.run.begun_at is not None:
        return claim.run.begun_at
    started_at = result.meta.started_at
    return claim.run.clock() if started_at is None else epoch_milliseconds(started_at)


def _budget_left(claim: Claim, result: ToolCallResult) -> float:
    """Return how many ms the caller's ``timeout_seconds`` leaves for further runs."""
    limit = claim.run.call.timeout_seconds
    if limit is None:
        return float("inf")
    return _begin_of(claim, result) + limit * 1000 - claim.run.clock()


@dataclass(eq=False)
class ResultWriter:
    """Ends the runs of one worker process, and tells the log, the counts and monitors of it."""

    ledger: Ledger
    writer: PipelinedWriter
    reaper: Reaper
    limiter: CallLimiter
    leases: LeaseKeeper
    cancels: CancelWatch
    retries: Retries
    spans: RunSpans
    log: CallLog
    counts: CallCounts
    monitors: Monitors
    #: the calls whose ends Redis has not confirmed, by the tokens of their claims
    unconfirmed: dict[str, Job] = field(default_factory=dict, init=False)
    #: the tokens of claims whose marks are awaited; see :meth:`take_unstarted`
    unstarted: set[str] = field(default_factory=set, init=False)
    _tell_short: Tell = field(default_factory=lambda: _tell_nobody, init=False)
    #: held while a run gets its first result: that of its handler must not overtake one in its place
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def tell_of_short(self, tell: Tell) -> None:
        """Let ``tell`` get the ended calls of which monitors have not been told that they began."""
        self._tell_short = tell

    def finish(self, job: Job, result: ToolCallResult) -> bool:
        """Store the result of a run; return whether the run had none yet.

        The result goes with the next packet; that of a lost claim changes nothing. A failed call is retried
        if its export says so, and a pending one is suspended. An event that was answered before its handler
        ended now releases its instance.
        """
        with self._lock:
            is_first, job.has_result = not job.has_result, True
        if is_first:
            self._try(job, partial(self._finish, job, result, still_runs=False))
        elif is_event(job.original):
            self._try(job, partial(self._admit_next, job, result))
        return is_first

    def answer(self, job: Job, result: ToolCallResult) -> bool:
        """Store a result while the handler still runs; return whether the run had none yet.

        An event keeps its instance until its handler has ended.
        """
        with self._lock:
            is_first, job.has_result = not job.has_result, True
            if is_first:
                self._try(job, partial(self._finish, job, result, still_runs=True))
        return is_first

    def _try(self, job: Job, end: Callable[[], None]) -> None:
        outcome = outcome_of(end)
        if outcome.error is not None:
            self._end_with_fault(job, outcome.error)

    def _finish(self, job: Job, result: ToolCallResult, *, still_runs: bool) -> None:
        claim = job.claim
        self.spans.end(claim, result)
        self.unconfirmed[job.token] = job
        if result.status == "pending":
            self._suspend(job, result)
            return
        if result.error is not None:
            granted, store = partial(self._on_retry, job, result), partial(self.store, job, result)
            if self.retries.schedule(claim, result, granted=granted, final=store):
                return
        self.store(job, result, still_runs=still_runs and is_event(claim.run.call))

    def _end_with_fault(self, job: Job, fault: BaseException) -> None:
        """End the call even after a fault of ours: else its lease is renewed forever."""
        logger.error("call.fault", **job.log_fields.known(), exc_info=fault)
        outcome = outcome_of(lambda: self.store(job, self.reaper.failure(job.claim, fault)))
        if outcome.error is not None:
            self._let_go(job, is_lost=True)  # a sweep settles the call

    def _on_retry(self, job: Job, result: ToolCallResult) -> None:
        self._let_go(job)
        call = job.claim.run.call
        if result.error is not None:
            self.counts.add_retry(call.agent_name, result.tool_name, result.error.code)
        self.monitors.add_retry(call, result)

    def _suspend(self, job: Job, result: ToolCallResult) -> None:
        claim = job.claim

        def on_answer(answer: int | bytes) -> None:
            if isinstance(answer, bytes):  # it was completed before the handler returned
                self.store(job, completed(claim.run, result, Outcome.of(answer)))
                self.writer.flush()
            elif answer == Stored.CANCELLED:
                self.end_cancelled(job)
            else:
                self._let_go(job, is_lost=answer == Stored.LOST)
                self.log(result, answer > 0)
                if answer > 0:
                    self.monitors.add_pending(claim.run.call, result)

        try:
            script_call = self.ledger.suspend(claim, result)
        except ValueError as error:
            self.store(job, self._unwritable(job, error))
        else:
            refused = partial(self.note_refused, job)
            self.writer.put_off(script_call, on_answer, is_urgent=True, refused=refused)

    # Final results.

    def store(self, job: Job, result: ToolCallResult, *, still_runs: bool = False) -> None:
        """Store a result with the next packet; one that cannot be written as JSON becomes an error."""
        if result.error is not None:
            job.opened = None
        try:
            job.end_with(result)
            answer = self.reaper.answer(job.claim, result)
        except ValueError as error:
            self.store(job, self._unwritable(job, error), still_runs=still_runs)
            return
        call = job.original
        if answer is None and not is_event(call):
            self.store_many([job], is_urgent=self.limiter.is_waited_for(call))
            return

        def on_answer(stored: Stored) -> None:
            if stored is Stored.CANCELLED:
                self.end_cancelled(job, still_runs=still_runs)
            elif still_runs and stored is Stored.YES:
                self.unconfirmed.pop(job.token, None)
                self._tell_end([job])
            else:
                self.note_stored([job], [stored])

        self.unconfirmed[job.token] = job
        script_call = self.ledger.finish_event(job.claim.run, job.row, answer, still_runs=still_runs)
        refused = partial(self.note_refused, job)
        self.writer.put_off(script_call, on_answer, is_urgent=True, refused=refused)

    def _admit_next(self, job: Job, result: ToolCallResult) -> None:
        """Admit the next event of a mailbox: the handler of one that was answered before has ended."""

        def on_answer(stored: Stored) -> None:
            if stored is Stored.CANCELLED:
                self.end_cancelled(job)
                return
            self._let_go(job, is_lost=stored is not Stored.YES)
            if stored is Stored.DAMAGED:
                self.leave_damaged(job)

        self.unconfirmed[job.token] = job
        script_call = self.ledger.finish(job.claim, result, self.reaper.answer(job.claim, result))
        refused = partial(self.note_refused, job)
        self.writer.put_off(script_call, on_answer, is_urgent=True, refused=refused)

    def store_many(self, jobs: Sequence[Job], *, is_urgent: bool = False) -> None:
        """Store the results of calls that have ended with the next packet; nothing more follows from them."""

        def on_refusal(error: ResponseError) -> None:
            if len(jobs) > 1:  # the fault of one must not stop the others
                for job in jobs:
                    self.store_many([job])
                self.writer.flush()
            else:
                self.note_refused(jobs[0], error)

        self.unconfirmed |= {job.token: job for job in jobs}
        noted = partial(self.note_stored, jobs)
        self.writer.put_off(self.row_script(jobs), noted, is_urgent=is_urgent, refused=on_refusal)

    def row_script(self, jobs: Sequence[Job]) -> ScriptCall[list[int]]:
        """Return the script call that stores such results; that of a call that opens a Step goes alone."""
        finish, opened = self.ledger.finish_many([job.row for job in jobs]), jobs[0].opened
        if opened is None:
            return finish
        return finish_step(self.ledger.scripts.finish_step, finish, opened.keeping)

    def note_stored(self, jobs: Sequence[Job], answers: Sequence[int]) -> None:
        """Act on the answers of Redis to the results of calls, which are in the same order."""
        self._tell_end([job for job, answer in zip(jobs, answers, strict=True) if answer > Stored.LOST])
        for job, answer in zip(jobs, answers, strict=True):
            if answer == Stored.CANCELLED:
                self.end_cancelled(job)
                continue
            self._let_go(job, is_lost=answer in (Stored.LOST, Stored.DAMAGED))
            if answer > Stored.LOST and job.opened is not None:
                job.opened.note_kept()
            if answer == Stored.LOST:
                logger.info("call.superseded", **job.log_fields.known())
            elif answer == Stored.DAMAGED:
                self.leave_damaged(job)

    def end_cancelled(self, job: Job, *, still_runs: bool = False) -> None:
        """End a call that is cancelled, as Redis says."""
        result = job.claim.run.ok(None, job.started_at) if job.result is None else job.result
        self.store(job, self.reaper.cancelled(result), still_runs=still_runs)
        self.writer.flush()

    def note_fault(self, job: Job, error: ResponseError) -> None:
        """End a call whose Step cannot be kept with that error; else release a damaged call."""
        if job.opened is None:
            self.leave_damaged(job, refusal_text(error))
            return
        key = job.opened.keeping.keys[0]
        fault = RecordDamagedError(f"A Redis key is damaged, {key!r}: {refusal_text(error)}")
        self.store(job, self.reaper.failure(job.claim, fault))
        self.writer.flush()

    def leave_damaged(self, job: Job, reason: str = NO_CALL) -> None:
        """Name a call that has no result because its record is damaged, and release its limits.

        Its client finds the record itself.
        """
        failure = damaged(job.id, reason)
        fields = {"reason": failure.message, "remedy": failure.suggestion}
        logger.error("call.not_stored", **job.log_fields.known(), **fields)
        self.limiter.leave_damaged(job.claim)
        self.writer.flush()

    def note_refused(self, job: Job, error: ResponseError) -> None:
        """Let a call go whose record cannot take a result: else its lease is renewed forever."""
        if job.opened is None:
            self._let_go(job, is_lost=True)
        self.note_fault(job, error)

    def _tell_end(self, jobs: Sequence[Job]) -> None:
        """Count and log calls that have ended, and tell monitors."""
        self.counts.add(job.counted for job in jobs)
        self.log.write([job.logged for job in jobs])
        for job in jobs:
            if job.is_told and job.result is not None:
                self.monitors.add_end(job.claim.run.call, job.result)
        self._tell_short([job for job in jobs if not job.is_told])

    def _unwritable(self, job: Job, error: ValueError) -> ToolCallResult:
        """Return the error result of a call whose result cannot be written as JSON."""
        message = f"{job.tool_name} ended with a result that is not JSON: {error}."
        return self.reaper.failure(job.claim, ToolOutputError(message))

    def _let_go(self, job: Job, *, is_lost: bool = False) -> None:
        self.unconfirmed.pop(job.token, None)
        if job.watch is not None:
            self.leases.drop(job.claim)
            self.cancels.drop(job.claim, is_lost=is_lost)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether Redis has not confirmed all ends."""
        return bool(self.unconfirmed)

    def take_unstarted(self, claim: Claim) -> bool:
        """Return once that a run waits for its mark: either it begins then, or its claim is given back."""
        try:
            self.unstarted.remove(claim.token)
        except KeyError:
            return False
        return True

    def abandon(self) -> None:
        """Settle the calls that still run when the process must end (DESIGN "Delivery" rules 4 and 6).

        They are queued again, except those whose handler has started and is not idempotent: these end with
        E_TOOL_OUTCOME_UNKNOWN, since they may have had their effect.

        Raises:
            RedisError: Redis is away; the leases run out by themselves.
        """
        for claim in self.leases.held():
            if claim.token in self.unconfirmed:
                continue
            if not self.reaper.requeue(claim, is_untouched=self.take_unstarted(claim)):
                self.reaper.fail(claim, unknown_outcome(claim.run.call))

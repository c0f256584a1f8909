"""How runs end: with a result that is stored, with a retry, or pending.

Writes to the ledger go through the pipelined writer: while Redis is away they wait, and none is lost.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog
from redis.exceptions import RedisError, ResponseError

from broker_config.pipelined_writer import PipelinedWriter
from broker_config.refusals import refusal_text
from goondan_tasks.bundle import BoundTool
from goondan_tasks.bundle.resources import Retry
from goondan_tasks.contract.errors import BrokerUnreachableError, GoondanError, ToolOutputError
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.logs import CallLog
from goondan_tasks.contract.messages import ToolCallResult, epoch_milliseconds
from goondan_tasks.fleet.call_counts import CallCounts, CountedCall
from goondan_tasks.fleet.monitors import Monitors
from goondan_tasks.ledger.endings import Finished
from goondan_tasks.ledger.leases import LeaseKeeper
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper, unknown_outcome
from goondan_tasks.ledger.record import NO_CALL, Claim, Outcome, Stored, completed, damaged
from workers.concurrency.watchdog import Watchdog
from workers.delivery.cancel_watch import CancelWatch
from workers.delivery.limiter import CallLimiter
from workers.delivery.spans import RunSpans
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
    """Keeps failed calls until their next run. Meanwhile they hold their claims, but no slots.

    After its pause a call is queued again. If this process dies before, the lease runs out and the call,
    which is idempotent, is run again by rule 4 of DESIGN "Delivery".
    """

    ledger: Ledger
    writer: PipelinedWriter
    reaper: Reaper
    #: returns the tools of a revision, those of the active one for ``None``; may raise a GoondanError
    tools_of: Callable[[str | None], KnownTools]
    leases: LeaseKeeper
    cancels: CancelWatch
    watchdog: Watchdog
    monitors: Monitors
    #: the calls that wait for their next run, by the tokens of their claims
    _waiting: dict[str, Claim] = field(default_factory=dict, init=False)
    _is_draining: bool = field(default=False, init=False)

    def __len__(self) -> int:
        """Return how many calls wait for their next run."""
        return len(self._waiting)

    def put_off(self, claim: Claim, result: ToolCallResult, *, granted: Then, final: Then) -> bool:
        """Retry a call whose run has ended with ``result``; return whether the ledger is asked to grant that.

        ``granted`` is called if it does. Else ``final`` is called, which must store ``result``.
        """
        pause = self._pause(claim, result)
        if pause is None:
            return False

        def on_answer(is_granted: int) -> None:
            if not is_granted:
                final()
                self.writer.flush()
                return
            granted()
            logger.info("call.put_off", **claim.run.log_fields, code=code, seconds=pause)
            self._wait(claim, pause)

        begun_at, code = _begin_of(claim, result), "" if result.error is None else result.error.code
        pause_ms = round(pause * 1000)
        script_call = self.ledger.retry(claim, pause_ms=pause_ms, begun_at=begun_at, code=code)
        self.writer.send(script_call, on_answer, refused=lambda _: on_answer(0))
        return True

    def drain(self) -> None:
        """Queue the waiting calls again at once, and from now on any other call to be retried.

        Raises:
            RedisError, BrokerUnreachableError: the other calls stay until their leases run out.
        """
        self._is_draining = True
        for claim in list(self._waiting.values()):
            if self._waiting.pop(claim.token, None) is not None:
                self._give_back(claim)

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

    def _wait(self, claim: Claim, pause: float) -> None:
        self._waiting[claim.token] = claim
        if self._is_draining:
            self._end_wait(claim)
            return
        self.watchdog.watch(pause, lambda: self._end_wait(claim))
        cancellation = self.cancels.cancellation(claim)
        if cancellation is not None:
            cancellation.on_cancel(lambda: self._end_wait(claim))

    def _end_wait(self, claim: Claim) -> None:
        """Queue the call again on a thread of its own: alarms and receivers of the writer must not block."""
        if self._waiting.pop(claim.token, None) is not None:
            threading.Thread(target=self._try_to_give_back, args=(claim,), daemon=True).start()

    def _try_to_give_back(self, claim: Claim) -> None:
        try:
            self._give_back(claim)
        except (RedisError, BrokerUnreachableError) as error:
            # a sweep will queue it
            logger.warning("call.not_given_back", **claim.run.log_fields, reason=str(error))

    def _give_back(self, claim: Claim) -> None:
        self.monitors.flush()  # an event of this run after those of the next would stay on monitors' screens
        self.leases.drop(claim)
        self.cancels.drop(claim)
        self.reaper.run_again(claim)


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


@dataclass(slots=True)
class _FirstResult:
    """Whether a run has a result: its own, or one that was stored while its handler still runs."""

    has_result: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False)
class ResultWriter:
    """Ends the runs of one worker process."""

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
    #: the current runs, by the tokens of their claims
    _runs: dict[str, _FirstResult] = field(default_factory=dict, init=False)
    #: the tokens of claims whose marks are awaited; see :meth:`take_unstarted`
    unstarted: set[str] = field(default_factory=set, init=False)
    #: the tokens of claims whose results Redis has not confirmed
    _unconfirmed: set[str] = field(default_factory=set, init=False)

    def begin(self, claim: Claim) -> None:
        """Begin a claim's run, which ends with one result, by :meth:`finish` or :meth:`answer`."""
        self._runs[claim.token] = _FirstResult()

    def finish(self, claim: Claim, result: ToolCallResult) -> bool:
        """Store the result of a run; return whether the run had none yet.

        The result goes with the next packet; that of a lost claim changes nothing. A failed call is retried
        if its export says so, and a pending one is suspended. An event that was answered before its handler
        ended now releases its instance.
        """
        run = self._runs.pop(claim.token)
        with run.lock:
            is_first, run.has_result = not run.has_result, True
        if is_first:
            self._try(claim, partial(self._finish, claim, result, still_runs=False))
        elif is_event(claim.run.call):
            self._unconfirmed.add(claim.token)
            self._try(claim, partial(self.store, claim, result, has_result=True))
        return is_first

    def answer(self, claim: Claim, result: ToolCallResult) -> bool:
        """Store a result while the handler still runs; return whether the run had none yet.

        An event keeps its instance until its handler has ended.
        """
        run = self._runs.get(claim.token)
        if run is None:
            return False
        with run.lock:  # the handler's own result must not overtake this one
            is_first, run.has_result = not run.has_result, True
            if is_first:
                self._try(claim, partial(self._finish, claim, result, still_runs=True))
        return is_first

    def _try(self, claim: Claim, end: Callable[[], None]) -> None:
        outcome = outcome_of(end)
        if outcome.error is not None:
            self._end_with_fault(claim, outcome.error)

    def _finish(self, claim: Claim, result: ToolCallResult, *, still_runs: bool) -> None:
        self._unconfirmed.add(claim.token)
        self.spans.end(claim, result)
        if result.status == "pending":
            self._suspend(claim, result)
            return
        if result.error is not None:
            granted, store = partial(self._on_retry, claim, result), partial(self.store, claim, result)
            if self.retries.put_off(claim, result, granted=granted, final=store):
                return
        self.store(claim, result, still_runs=still_runs and is_event(claim.run.call))

    def _end_with_fault(self, claim: Claim, fault: BaseException) -> None:
        """End the call even after a fault of ours: else its lease is renewed forever."""
        logger.error("call.fault", **claim.run.log_fields, exc_info=fault)
        outcome = outcome_of(lambda: self.store(claim, self.reaper.failure(claim, fault)))
        if outcome.error is not None:
            self._let_go(claim, is_lost=True)  # a sweep settles the call

    def _on_retry(self, claim: Claim, result: ToolCallResult) -> None:
        self._unconfirmed.discard(claim.token)
        if result.error is not None:
            self.counts.add_retry(claim.run.call.agent_name, result.tool_name, result.error.code)
        self.monitors.add_retry(claim.run.call, result)
        cancellation = self.cancels.cancellation(claim)
        if cancellation is not None:
            cancellation.end()  # the next run asks again

    def _suspend(self, claim: Claim, result: ToolCallResult) -> None:
        def on_answer(answer: int | bytes) -> None:
            if isinstance(answer, bytes):  # it was completed before the handler returned
                ended = completed(claim.run, result, Outcome.of(answer))
            elif answer == Stored.CANCELLED:
                ended = self.reaper.cancelled(result)
            else:
                self._let_go(claim, is_lost=answer == Stored.LOST)
                self.log(result, answer > 0)
                if answer > 0:
                    self.monitors.add_pending(claim.run.call, result)
                return
            self.store(claim, ended)
            self.writer.flush()

        try:
            script_call = self.ledger.suspend(claim, result)
        except ValueError as error:
            self.store(claim, self._unwritable(claim, error))
        else:
            refused = partial(self._on_refusal, claim)
            self.writer.put_off(script_call, on_answer, is_urgent=True, refused=refused)

    def _unwritable(self, claim: Claim, error: ValueError) -> ToolCallResult:
        """Return the error result of a call whose result cannot be written as JSON."""
        message = f"{claim.run.call.tool_name} ended with a result that is not JSON: {error}."
        return self.reaper.failure(claim, ToolOutputError(message))

    def _on_refusal(self, claim: Claim, error: ResponseError) -> None:
        """Let a call go whose record cannot take a result: else its lease is renewed forever."""
        self._log_damaged(claim, refusal_text(error))
        self._let_go(claim, is_lost=True)

    def _log_damaged(self, claim: Claim, reason: str) -> None:
        failure = damaged(claim.run.id, reason)
        fields = {"reason": failure.message, "remedy": failure.suggestion}
        logger.error("call.not_stored", **claim.run.log_fields, **fields)
        self.limiter.leave_damaged(claim)
        self.writer.flush()

    def _let_go(self, claim: Claim, *, is_lost: bool = False) -> None:
        self._unconfirmed.discard(claim.token)
        self.leases.drop(claim)
        self.cancels.drop(claim, is_lost=is_lost)

    def store(
        self, claim: Claim, result: ToolCallResult, *, still_runs: bool = False, has_result: bool = False
    ) -> None:
        """Store a result with the next packet; one that cannot be written as JSON becomes an error.

        An event that ``has_result`` already only admits the next one of its mailbox.
        """
        try:
            answer = self.reaper.answer(claim, result)
            script_call = self.ledger.finish(claim, result, answer, still_runs=still_runs)
        except ValueError as error:
            self.store(claim, self._unwritable(claim, error), still_runs=still_runs)
            return

        def on_answer(finished: Finished) -> None:
            stored = finished.stored
            if stored is Stored.CANCELLED:
                self.store(claim, self.reaper.cancelled(result), still_runs=still_runs)
                self.writer.flush()
                return
            if still_runs and stored is Stored.YES:
                self._unconfirmed.discard(claim.token)
            else:
                self._let_go(claim, is_lost=stored in (Stored.LOST, Stored.DAMAGED))
            if stored is Stored.DAMAGED:
                self._log_damaged(claim, NO_CALL)
            elif not has_result:  # else the call has ended before, and so has its log
                self.log(result, stored is Stored.YES)
            if stored is Stored.YES and not has_result:
                self.counts.add([CountedCall.of(result)])
                self.monitors.add_end(claim.run.call, result)
            self.limiter.follow(finished.look_in)

        is_waited_for = is_event(claim.run.call) or self.limiter.is_waited_for(claim.run.call)
        refused = partial(self._on_refusal, claim)
        self.writer.put_off(script_call, on_answer, is_urgent=is_waited_for, refused=refused)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether Redis has not confirmed all results."""
        return bool(self._unconfirmed)

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
            if claim.token in self._unconfirmed:
                continue
            if not self.reaper.requeue(claim, is_untouched=self.take_unstarted(claim)):
                self.reaper.fail(claim, unknown_outcome(claim.run.call))

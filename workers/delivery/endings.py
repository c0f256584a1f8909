"""How runs end: with a result that is stored, or not yet, because the call is tried again or pending.

What is told to the ledger goes by courier: while Redis is away it waits, and nothing is lost.
"""

from functools import partial
from typing import Any

import structlog

from broker_config.courier import Courier
from goondan_tasks.errors import ToolOutputError
from goondan_tasks.events import is_event
from goondan_tasks.ledger.errands import Errands
from goondan_tasks.ledger.leases import LeaseKeeper
from goondan_tasks.ledger.outcome import Outcome, completed
from goondan_tasks.ledger.record import Claim, Finished, Stored
from goondan_tasks.ledger.settlement import Settlement, unknown_outcome
from goondan_tasks.logs import CallLog
from goondan_tasks.messages import ToolCallResult
from workers.concurrency.function_outcome import FunctionOutcome, outcome_of
from workers.delivery.cancel_watch import CancelWatch
from workers.delivery.doorkeeper import Doorkeeper
from workers.delivery.retries import Retries
from workers.delivery.spans import RunSpans

logger = structlog.get_logger(__name__)


class Endings:
    """Ends the runs of one worker process."""

    def __init__(
        self,
        errands: Errands,
        courier: Courier,
        settlement: Settlement,
        *,
        doorkeeper: Doorkeeper,
        leases: LeaseKeeper,
        cancels: CancelWatch,
        retries: Retries,
        spans: RunSpans,
        log: CallLog,
    ) -> None:
        self._errands = errands
        self._courier = courier
        self._settlement = settlement
        self._doorkeeper = doorkeeper
        self._leases = leases
        self._cancels = cancels
        self.retries = retries
        self._spans = spans
        self.log = log
        #: the tokens of claims whose result is on its way
        self._unconfirmed: set[str] = set()

    def finish(self, claim: Claim, result: ToolCallResult, *, still_runs: bool = False) -> None:
        """Store the result, with the next packet; a claim that was lost leaves the newer one as it is.

        Or try the call again, if it has failed and its export says so; or let it wait, if it is pending. An
        event whose handler ``still_runs`` keeps its instance until :meth:`end_late`.
        """
        outcome = FunctionOutcome[None]()
        with outcome:
            self._finish(claim, result, still_runs=still_runs)
        if outcome.error is not None:
            self._end_with_fault(claim, outcome.error)

    def _finish(self, claim: Claim, result: ToolCallResult, *, still_runs: bool) -> None:
        self._unconfirmed.add(claim.token)
        self._spans.end(claim, result)
        if result.status == "pending":
            self._suspend(claim, result)
            return
        if result.error is not None:
            granted, store = partial(self._on_retry, claim), partial(self.store, claim, result)
            if self.retries.put_off(claim, result, granted=granted, final=store):
                return
        self.store(claim, result, still_runs=still_runs and is_event(claim.run.call))

    def end_late(self, claim: Claim, result: ToolCallResult) -> None:
        """Let the instance go on, with the next packet, once the handler of an event has ended too late."""
        if is_event(claim.run.call):
            self._unconfirmed.add(claim.token)
            outcome = outcome_of(lambda: self.store(claim, result))
            if outcome.error is not None:
                self._end_with_fault(claim, outcome.error)

    def _end_with_fault(self, claim: Claim, fault: BaseException) -> None:
        """Let even a fault of ours end the call: its lease would be renewed for ever."""
        logger.error("call.fault", call_id=claim.run.id, exc_info=fault)
        outcome = outcome_of(lambda: self.store(claim, self._settlement.failure(claim, fault)))
        if outcome.error is not None:
            self._let_go(claim, is_lost=True)  # a sweep settles the call

    def _on_retry(self, claim: Claim) -> None:
        self._unconfirmed.discard(claim.token)
        cancellation = self._cancels.cancellation(claim)
        if cancellation is not None:
            cancellation.end()  # the next run asks anew
        self._doorkeeper.leave(claim, pauses=True)

    def _suspend(self, claim: Claim, result: ToolCallResult) -> None:
        def on_answer(answer: int | bytes) -> None:
            if isinstance(answer, bytes):  # it was completed before the handler had returned
                self.store(claim, completed(claim.run, result, Outcome.of(answer)))
                self._courier.flush()
            elif answer == Stored.CANCELLED:
                self.store(claim, self._settlement.cancelled(result))
                self._courier.flush()
            else:
                self._let_go(claim, is_lost=answer == Stored.LOST)
                self.log(result, answer > 0)

        try:
            errand = self._errands.suspend(claim, result)
        except ValueError as error:
            self.store(claim, self._unwritable(claim, error))
        else:
            self._courier.put_off(errand, on_answer, is_urgent=True)

    def _unwritable(self, claim: Claim, error: ValueError) -> ToolCallResult:
        """Return what ends a call whose result cannot be written down: it must end with one."""
        message = f"{claim.run.call.tool_name} ended with a result that is not JSON: {error}."
        return self._settlement.failure(claim, ToolOutputError(message))

    def _let_go(self, claim: Claim, *, is_lost: bool = False) -> None:
        self._unconfirmed.discard(claim.token)
        self._leases.drop(claim)
        self._cancels.drop(claim, is_lost=is_lost)
        self._doorkeeper.leave(claim)

    def store(self, claim: Claim, result: ToolCallResult, *, still_runs: bool = False) -> None:
        """Store a result, with the next packet; one that cannot be written ends the call so."""
        try:
            answer = self._settlement.answer(claim, result)
            errand = self._errands.finish(claim, result, answer, still_runs=still_runs)
        except ValueError as error:
            self.store(claim, self._unwritable(claim, error), still_runs=still_runs)
            return

        def on_answer(raw: Any) -> None:
            finished = Finished.of(raw)
            stored = finished.stored
            if stored is Stored.CANCELLED:
                self.store(claim, self._settlement.cancelled(result), still_runs=still_runs)
                self._courier.flush()
                return
            if still_runs and stored is Stored.YES:
                self._unconfirmed.discard(claim.token)
            else:
                self._let_go(claim, is_lost=stored is Stored.LOST)
            self.log(result, stored is Stored.YES)
            unsent = self._settlement.unsent(finished, answer)
            if unsent:
                self._doorkeeper.send_later(unsent)

        is_waited_for = is_event(claim.run.call) or self._doorkeeper.has_admitted(claim)
        self._courier.put_off(errand, on_answer, is_urgent=is_waited_for)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether Redis has not confirmed yet that it has all results."""
        return bool(self._unconfirmed)

    def abandon(self) -> None:
        """Settle what still runs when the process must end (DESIGN "Delivery" rules 4 and 6).

        The rest is given back to the queue, but for a handler that has started and is not idempotent:
        it may have had its effect, and that is said.

        Raises:
            RedisError: Redis is away; the leases run out by themselves.
        """
        for claim in self._leases.held():
            if claim.token in self._unconfirmed:
                continue
            if not self._settlement.requeue(claim):
                self._settlement.fail(claim, unknown_outcome(claim.run.call))

"""Ends calls that must not run any more, and queues the calls of dead workers again."""

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, cast

from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.refusals import is_script_fault
from broker_config.scripts import ScriptCall, run_script_calls
from goondan_tasks.contract.calls import queue_element
from goondan_tasks.contract.errors import (
    AgentOutcomeUnknownError,
    CallClosedError,
    CallNotFoundError,
    GoondanError,
    HandoffTimeoutError,
    ToolCancelledError,
    ToolExpiredError,
    ToolInputValidationError,
    ToolOutcomeUnknownError,
    ToolOutputError,
    ToolPoisonedError,
    ToolTimeoutError,
)
from goondan_tasks.contract.events import answer_to, completed_event, handling_agent, is_event
from goondan_tasks.contract.failure import OUR_CODES, describe, with_error_in_output_by_name
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.contract.names import NO_CALL_TOOL
from goondan_tasks.fleet.agent_registry import AgentRegistry
from goondan_tasks.fleet.call_counts import OK, REQUEUED, CountStore, Settlement
from goondan_tasks.fleet.monitors import Monitors
from goondan_tasks.fleet.usage import OTHER
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import Limiter, conflict, shared
from goondan_tasks.ledger.record import Claim, Outcome, Stored, Verdict, completed
from goondan_tasks.ledger.submission import Submission, event_submission
from goondan_tasks.ledger.timer import Timer, Woken

logger = logging.getLogger(__name__)

_ERRORS: dict[Verdict, type[GoondanError]] = {
    Verdict.EXPIRED: ToolExpiredError,
    Verdict.UNKNOWN: ToolOutcomeUnknownError,
    Verdict.OVERRAN: ToolTimeoutError,
    Verdict.POISONED: ToolPoisonedError,
    Verdict.CANCELLED: ToolCancelledError,
    Verdict.UNRESOLVED: ToolExpiredError,
    Verdict.UNAPPROVED: ToolExpiredError,
}
#: message and suggestion for a pending call that has expired
_LATE = {
    Verdict.UNRESOLVED: (
        "The call was started but not completed in time.",
        "Check whether the work it started still runs; complete the call before its deadline.",
    ),
    Verdict.UNAPPROVED: (
        "The call was not approved in time; it was not run.",
        "Ask for an approval (`goondan approvals list`) and submit the call again.",
    ),
}
_EVENT_ERRORS: dict[Verdict, type[GoondanError]] = {
    **_ERRORS,
    Verdict.EXPIRED: HandoffTimeoutError,
    Verdict.OVERRAN: HandoffTimeoutError,
    Verdict.UNKNOWN: AgentOutcomeUnknownError,
}

#: why a lease may have ended; Redis cannot tell
CAUSES = " (it died, was frozen, or lost Redis)"

#: the codes whose log line is a warning, even if no worker died
_GRAVE = {ToolPoisonedError.code, ToolOutcomeUnknownError.code, AgentOutcomeUnknownError.code}

#: the codes that are counted by name; tools and completions may have any
_COUNTED = {OK, REQUEUED, *OUR_CODES}

#: how many mailboxes one script reads; more would block Redis for too long
MAILBOX_BATCH = 200

#: how long the agents that workers serve are cached
SERVED_SECONDS = 1.0

#: the approximate time limit of one sweep
SWEEP_SECONDS = 1.0


class Reaper:
    """Carries out the ledger's verdicts. Every worker and every waiting client has a reaper."""

    def __init__(self, ledger: Ledger, help_url: str, monitors: Monitors | None = None) -> None:
        self._ledger = ledger
        self._counts = CountStore(ledger.redis, ledger.keys)
        self._monitors = monitors or Monitors(ledger.redis, ledger.settings)
        self._limiter = Limiter(ledger)
        self._timer = Timer(ledger)
        self._help_url = help_url
        self._registry = AgentRegistry(ledger.redis, ledger.keys)
        self._agents: Collection[str] = ()
        self._served_until = -math.inf

    def settle(self, claim: Claim) -> None:
        """Do what the verdict says: end the call, queue it again, or store its completion."""
        if claim.run.call.tool_name == NO_CALL_TOOL:  # the worker died before it stored the dead letter
            self.finish(*self.dead_letter(claim))
        elif claim.verdict is Verdict.REQUEUE:
            self.run_again(claim, died=True)
        elif claim.verdict is Verdict.LIMITED:
            self.fail(claim, self._limiter.too_late(claim))
        elif claim.verdict is Verdict.CONFLICT:
            self.fail(claim, conflict(claim))
        elif claim.verdict is Verdict.SHARED:
            self._share(claim)
        elif claim.verdict is Verdict.COMPLETED:
            self.finish(claim, completed(claim.run, self._interim(claim), Outcome.of(claim.completion)))
        else:
            self.fail(claim, _error_of(claim))

    def dead_letter(self, claim: Claim) -> tuple[Claim, ToolCallResult]:
        """Return the claim and result that end the record of a message without a call: a dead letter."""
        error = ToolInputValidationError(f"The message holds no call: {claim.run.call.args.get('reason')}.")
        return replace(claim, verdict=Verdict.POISONED), self.failure(claim, error)

    def run_again(self, claim: Claim, *, died: bool = False) -> None:
        """Queue the call again, or end it as cancelled if it was cancelled in the meantime."""
        if not self.requeue(claim, died=died):
            self.fail(claim, ToolCancelledError())

    def _share(self, claim: Claim) -> None:
        try:
            result = self._ledger.result(claim.about)
        except ValueError as error:  # running the call anyway would break the key's promise
            message = (
                f"The result of call {claim.about}, which has its idempotencyKey, cannot be read: {error}"
            )
            self.fail(claim, ToolOutputError(message))
            return
        if result is None:  # the other call has just expired: run this one
            self.run_again(claim)
        else:
            self.finish(claim, shared(claim, result))

    def fail(self, claim: Claim, error: Exception) -> None:
        """End the call with ``error``, or as cancelled if it is cancelled."""
        result = self.failure(claim, error)
        if claim.was_suspended:
            result = completed(claim.run, self._interim(claim), Outcome(error=result.error))
        self.finish(claim, result)

    def _interim(self, claim: Claim) -> ToolCallResult | None:
        """Return the interim result of a pending call, or ``None`` if it is damaged: the call must end."""
        try:
            return self._ledger.result(claim.run.id)
        except ValueError:
            return None

    def finish(self, claim: Claim, result: ToolCallResult) -> bool:
        """Store a result; return whether it was accepted. A cancelled call ends as cancelled instead."""
        result = with_error_in_output_by_name(result)
        answer = self.answer(claim, result)
        finish = self._ledger.finish(claim, result, answer, still_runs=claim.still_runs)
        stored: Stored = finish.run(self._ledger.redis)
        if stored is Stored.CANCELLED:
            self.finish(claim, self.cancelled(result))
        is_stored = stored is Stored.YES
        if is_stored and not claim.has_result:
            received = claim.lost_claim_at or claim.run.queued_at
            self._monitors.tell_end(claim.run.call, result, received=received, lost_by=claim.lost_by)
            self._note(claim, OK if result.error is None else result.error.code)
            self._unqueue(claim)
        return is_stored

    def _unqueue(self, claim: Claim) -> None:
        """Remove the message of a call that no worker has had, if none will read it.

        Without a worker it would count as backlog for ever. Workers drop such messages themselves.
        """
        call = claim.run.call
        if not claim.lost_by and call.agent_name not in self._served():
            self._ledger.unqueue(claim.run.id, call).run(self._ledger.redis)

    def _served(self) -> Collection[str]:
        """Return the agents that live workers serve, as of a moment ago."""
        now = monotonic()
        if now >= self._served_until:
            self._agents = {agent for worker in self._registry.workers() for agent in worker.agents}
            self._served_until = now + SERVED_SECONDS
        return self._agents

    def _note(self, claim: Claim, code: str) -> None:
        """Log and count how a call was settled: ``requeued``, ``ok``, or the code of its error.

        The answers of producers to events are no settlements.
        """
        if claim.verdict is Verdict.RUN and code == OK:
            return
        lost_by = "" if claim.is_held else claim.lost_by
        self._log(claim, code, lost_by)
        self._counts.add_settled(
            Settlement(
                claim.run.id,
                claim.run.call.agent_name,
                code if code in _COUNTED else OTHER,
                lost_by,
            )
        )

    def _log(self, claim: Claim, code: str, lost_by: str) -> None:
        how = {OK: "completed", REQUEUED: "queued again"}.get(code, f"ended with {code}")
        ended = f", the lease of worker {lost_by} ended during attempt {claim.run.attempt}{CAUSES}"
        why = ended if lost_by else ""
        fields = {**claim.run.log_fields, "code": code, "lost_by": lost_by or None}
        level = logging.WARNING if claim.lost_by or code in _GRAVE else logging.INFO
        logger.log(level, "call.settled: %s%s", how, why, extra=fields)

    def message(self, call_id: str, call: ToolCall) -> bytes:
        """Return a call's message."""
        return queue_element(call_id, call, serializer.encode(call.to_wire()))

    def answer(self, claim: Claim, result: ToolCallResult) -> Submission | None:
        """Return the event that the end of the call causes, if any.

        It is the answer to the asking agent if the call is a request, and the news to its own agent if the
        call was pending.
        """
        call = None
        if is_event(claim.run.call):
            call = answer_to(claim.run.call, result)
        elif claim.was_pending:
            call = completed_event(claim.run.call, result)
        if call is None:
            return None
        return event_submission(call, in_mailbox=not call.args["awaited"])

    def cancel(self, call_id: str, canceller: str) -> None:
        """Cancel a call. It ends at once if no worker runs it; otherwise its worker ends it soon.

        Raises:
            CallNotFoundError, CallClosedError: as :meth:`Ledger.cancel`.
        """
        claim = self._ledger.cancel(call_id, canceller).run(self._ledger.redis)
        if claim is not None:
            self.settle(claim)

    def cancel_many(self, call_ids: Sequence[str], canceller: str) -> dict[str, str]:
        """Cancel calls as :meth:`cancel` does, in a few trips to Redis.

        Return the ids of the cancelled ones, each with its agent, or "" if its worker ends it. Those that
        have ended, or are unknown, are left out. The messages stay in the queues until :func:`tidy_queues` or
        a worker removes them.
        """
        asked = [_tolerant(self._ledger.cancel(call_id, canceller)) for call_id in call_ids]
        answers = run_script_calls(self._ledger.redis, asked)
        claims = [claim for is_open, claim in answers if is_open and claim is not None]
        alone = [claim for claim in claims if not (is_event(claim.run.call) or claim.was_pending)]
        self._finish_cancelled(alone)
        for claim in claims:
            if is_event(claim.run.call) or claim.was_pending:  # their ends cause events
                self.settle(claim)
        return {
            call_id: "" if claim is None else claim.run.call.agent_name
            for call_id, (is_open, claim) in zip(call_ids, answers, strict=True)
            if is_open
        }

    def _finish_cancelled(self, claims: Sequence[Claim]) -> None:
        """Store the results of cancelled calls in one script; no other call waits for their ends."""
        if not claims:
            return
        results = [self.failure(claim, ToolCancelledError()) for claim in claims]
        ended = [self._ledger.ended_with(*one) for one in zip(claims, results, strict=True)]
        stored = self._ledger.finish_many(ended).run(self._ledger.redis)
        counted = Counter[str]()
        for claim, result, answer in zip(claims, results, stored, strict=True):
            if answer > Stored.LOST:
                received = claim.run.queued_at
                self._monitors.tell_end(claim.run.call, result, received=received, lost_by="")
                self._log(claim, ToolCancelledError.code, "")
                counted[claim.run.call.agent_name] += 1
        for agent, count in counted.items():
            self._counts.add_settled(Settlement("", agent, ToolCancelledError.code), count)

    def cancelled(self, result: ToolCallResult) -> ToolCallResult:
        """Return the result that replaces ``result`` because the call is cancelled."""
        error = describe(ToolCancelledError(), help_url=self._help_url)
        fields = {"status": "error", "output": None, "handle": None, "error": error}
        return with_error_in_output_by_name(result.model_copy(update=fields))

    def failure(self, claim: Claim, error: BaseException, started_at: float | None = None) -> ToolCallResult:
        """Return the result of a call that ends with ``error``; without ``started_at``, it was not run."""
        failed = claim.run.failed(describe(error, help_url=self._help_url), started_at)
        return with_error_in_output_by_name(failed)

    def sweep(self, sweeper: str) -> int:
        """Settle calls that are past their deadline or their lease; return how many.

        Scheduled calls whose time has come are queued first. A sweep stops when none is left, or after
        ``SWEEP_SECONDS``; the next sweep continues.
        """
        self.wake()
        count, end = 0, monotonic() + SWEEP_SECONDS
        while claims := self._ledger.sweep(sweeper).run(self._ledger.redis):
            for claim in claims:
                self._settle_late(claim)
            count += len(claims)
            if monotonic() >= end:
                break
        return count

    def wake(self) -> Woken:
        """Queue the scheduled calls whose time has come, as long as a sweep may take.

        ``seconds`` of the answer says when to look again.
        """
        count, passed, end = 0, 0, monotonic() + SWEEP_SECONDS
        while True:
            woken = self._timer.wake(passed).run(self._ledger.redis)
            count += woken.queued
            if woken.passed is None or monotonic() >= end:
                return woken._replace(queued=count)
            passed = woken.passed

    def run_now(self, call_id: str) -> None:
        """Queue a scheduled call at once; raises as :meth:`Timer.run_now` does."""
        self._timer.run_now(call_id).run(self._ledger.redis)

    def release_events(self, agent: str) -> None:
        """Queue the parked events of an agent again, because other processes handle them from now on."""
        boxes = cast("list[bytes]", self._ledger.redis.zrange(self._ledger.keys.mailboxes(agent), 0, -1))
        for start in range(0, len(boxes), MAILBOX_BATCH):
            some = [box.decode() for box in boxes[start : start + MAILBOX_BATCH]]
            self._ledger.release_events(agent, some).run(self._ledger.redis)

    def _settle_late(self, claim: Claim) -> None:
        """Settle a claim; an error caused by a damaged record is only logged."""
        try:
            self.settle(claim)
        except (GoondanError, ResponseError, ValueError, TypeError, LookupError) as error:
            if isinstance(error, ResponseError) and not is_script_fault(error):
                raise  # the others would be refused, too
            logger.error("call %s cannot be settled: %r", claim.run.id, error, extra=claim.run.log_fields)

    def return_event(self, claim: Claim) -> None:
        """Return an unread fetched event to its mailbox, or end it if it is cancelled."""
        release = self._ledger.release(claim, died=False, is_untouched=True)
        if not release.run(self._ledger.redis):
            self.fail(claim, ToolCancelledError())

    def requeue(self, claim: Claim, *, died: bool = False, is_untouched: bool = False) -> bool:
        """Queue the call again, with a new message; with ``died``, count the death of its worker.

        With ``is_untouched``, its handler has not begun, even if it is marked as started.

        False if the handler has started and is not idempotent, if the call is cancelled, or if the claim was
        lost.
        """
        call_id, call = claim.run.id, claim.run.call
        is_lost_run = claim.lost_by and not claim.has_result
        if is_lost_run:
            received = claim.lost_claim_at or claim.run.queued_at
            self._monitors.tell_retry(
                call_id, call, claim.run.worker, received=received, lost_by=claim.lost_by
            )
        message = self.message(call_id, call)
        release = self._ledger.release(claim, died=died, message=message, is_untouched=is_untouched)
        if not release.run(self._ledger.redis):
            return False
        if is_lost_run:
            self._note(claim, REQUEUED)
        return True


def _tolerant(cancel: ScriptCall[Claim | None]) -> ScriptCall[tuple[bool, Claim | None]]:
    """Make the answer say whether the call was open, in place of an error."""

    def parse(answer: Any) -> tuple[bool, Claim | None]:
        try:
            return True, cancel.parse(answer)
        except (CallClosedError, CallNotFoundError):
            return False, None

    return ScriptCall(cancel.script, cancel.keys, cancel.arguments, parse)


def unknown_outcome(call: ToolCall) -> GoondanError:
    """Return the error of a call whose worker died after the handler had started."""
    return (_EVENT_ERRORS if is_event(call) else _ERRORS)[Verdict.UNKNOWN]()


def _error_of(claim: Claim) -> GoondanError:
    if is_event(claim.run.call):
        if claim.verdict is Verdict.EXPIRED:
            what = "to be handled again" if claim.run.attempt > 0 else "and was not handled"
            agent = handling_agent(claim.run.call)
            return HandoffTimeoutError(f"The event waited for {agent} past its deadline, {what}.")
        return _EVENT_ERRORS[claim.verdict]()
    if claim.verdict in _LATE:
        message, suggestion = _LATE[claim.verdict]
        return ToolExpiredError(message, suggestion=suggestion)
    if claim.verdict is Verdict.EXPIRED and claim.run.attempt > 0:
        return ToolExpiredError("The call waited in the queue for another run past its deadline.")
    return _ERRORS[claim.verdict]()

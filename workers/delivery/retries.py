"""Failed runs of idempotent exports that say ``retry``: tried again, each after a longer pause."""

import threading
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from broker_config.courier import Courier
from goondan_tasks.bundle.resources import Retry
from goondan_tasks.errors import BrokerUnreachableError, GoondanError
from goondan_tasks.ledger.errands import Errands
from goondan_tasks.ledger.leases import LeaseKeeper
from goondan_tasks.ledger.record import Claim
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.messages import ToolCallResult, epoch_milliseconds
from workers.concurrency.watchdog import Watchdog
from workers.delivery.cancel_watch import CancelWatch
from workers.revisions.revisions import Revisions
from workers.tools.dynamic_tools import turn_of

logger = structlog.get_logger(__name__)

#: pauses are doubled up to this; a longer ``backoffSeconds`` is kept as it is
LONGEST_DOUBLED_SECONDS = 300.0

#: errors that another run would only repeat, or that must stand
NEVER = ("E_TOOL_CANCELLED", "E_TOOL_INVALID_ARGS", "E_TOOL_EXPIRED", "E_TOOL_OUTCOME_UNKNOWN")
NEVER_PREFIX = "E_TOOL_NOT_"

Then = Callable[[], object]


def pause_seconds(retry: Retry, retries: int) -> float:
    """Return how long to wait before the next run, after so many ``retries``."""
    longest = max(retry.backoff_seconds, LONGEST_DOUBLED_SECONDS)
    doublings = min(retries, 1_000)  # beyond that a float overflows
    return min(retry.backoff_seconds * 2.0**doublings, longest)


def is_retried(retry: Retry, code: str) -> bool:
    """Say whether a run that failed with ``code`` is tried again."""
    if code in NEVER or code.startswith(NEVER_PREFIX):
        return False
    return not retry.codes or code in retry.codes


class Retries:
    """Keeps failed calls until their next run. They hold their claims meanwhile, but no place.

    When the pause is over the call is queued again. If this process dies before, its lease runs out and the
    call is run again by rule 4 of DESIGN "Delivery": it is idempotent.
    """

    def __init__(
        self,
        errands: Errands,
        courier: Courier,
        settlement: Settlement,
        *,
        revisions: Revisions,
        leases: LeaseKeeper,
        cancels: CancelWatch,
        watchdog: Watchdog,
    ) -> None:
        self._errands = errands
        self._courier = courier
        self._settlement = settlement
        self._revisions = revisions
        self._leases = leases
        self._cancels = cancels
        self._watchdog = watchdog
        self._waiting: dict[str, Claim] = {}
        self._is_draining = False

    def __len__(self) -> int:
        """Return how many calls wait here for their next run."""
        return len(self._waiting)

    def put_off(self, claim: Claim, result: ToolCallResult, *, granted: Then, final: Then) -> bool:
        """Try a call again whose run has ended with ``result``; say whether that is so.

        ``granted`` is called when the ledger grants a further run; if it does not, ``final`` is, and
        ``result`` is to be stored.
        """
        pause = self._pause(claim, result)
        if pause is None:
            return False

        def on_answer(is_granted: int) -> None:
            if not is_granted:
                final()
                self._courier.flush()
                return
            granted()
            logger.info("call.put_off", call_id=claim.run.id, seconds=pause, attempt=claim.run.attempt)
            self._wait(claim, pause)

        begun_at = _begin_of(claim, result)
        errand = self._errands.retry(claim, pause_ms=round(pause * 1000), begun_at=begun_at)
        self._courier.send(errand, on_answer)
        return True

    def drain(self) -> None:
        """Give back what waits here, and from now on what is put off, at once.

        Raises:
            RedisError, BrokerUnreachableError: the rest stays until its leases run out.
        """
        self._is_draining = True
        for claim in list(self._waiting.values()):
            if self._waiting.pop(claim.token, None) is not None:
                self._give_back(claim)

    def _pause(self, claim: Claim, result: ToolCallResult) -> float | None:
        """Return the seconds before the next run, or ``None`` if there is to be none."""
        retry = self._policy(claim)
        if retry is None or result.error is None or not is_retried(retry, result.error.code):
            return None
        cancellation = self._cancels.cancellation(claim)
        # a handler that was abandoned at its limit may still run, and there is one run at a time
        if cancellation is None or cancellation.is_set() or claim.run.retries >= retry.max:
            return None
        pause = pause_seconds(retry, claim.run.retries)
        return pause if pause * 1000 < _budget_left(claim, result) else None

    def _policy(self, claim: Claim) -> Retry | None:
        call = claim.run.call
        try:
            tools = self._revisions.registry(call.bundle_ref)
        except GoondanError:  # it could not be run with it either
            return None
        bound = tools.known(call.agent_name, call.tool_name, turn_of(call))
        return bound.export.retry if bound is not None and bound.export.idempotent else None

    def _wait(self, claim: Claim, pause: float) -> None:
        self._waiting[claim.token] = claim
        if self._is_draining:
            self._end_wait(claim)
            return
        self._watchdog.watch(pause, lambda: self._end_wait(claim))
        cancellation = self._cancels.cancellation(claim)
        if cancellation is not None:
            cancellation.on_cancel(lambda: self._end_wait(claim))

    def _end_wait(self, claim: Claim) -> None:
        """Give the call back on a thread of its own: neither alarms nor the courier may block."""
        if self._waiting.pop(claim.token, None) is not None:
            threading.Thread(target=self._try_to_give_back, args=(claim,), daemon=True).start()

    def _try_to_give_back(self, claim: Claim) -> None:
        try:
            self._give_back(claim)
        except (RedisError, BrokerUnreachableError) as error:
            logger.warning("call.not_given_back", call_id=claim.run.id, reason=str(error))  # the sweep will

    def _give_back(self, claim: Claim) -> None:
        self._leases.drop(claim)
        self._cancels.drop(claim)
        self._settlement.run_again(claim)


def _begin_of(claim: Claim, result: ToolCallResult) -> float:
    if claim.run.begun_at is not None:
        return claim.run.begun_at
    started_at = result.meta.started_at
    return claim.run.clock() if started_at is None else epoch_milliseconds(started_at)


def _budget_left(claim: Claim, result: ToolCallResult) -> float:
    """Return the ms that the caller's ``timeout_seconds`` leaves for further runs."""
    limit = claim.run.call.timeout_seconds
    if limit is None:
        return float("inf")
    return _begin_of(claim, result) + limit * 1000 - claim.run.clock()

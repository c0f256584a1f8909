"""A call from its message to its stored result: claim, carry out, finish.

Broker acknowledgements decide nothing here; the ledger's claim does (DESIGN "Delivery"). While Redis
is away the calling thread keeps trying: a call in hand is neither dropped nor reported as failed.
"""

import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from redis.exceptions import RedisError

from goondan_tasks.errors import GoondanError, ToolOutcomeUnknownError
from goondan_tasks.ledger.ledger import ClaimTerms, Ledger
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.messages import ToolCall, ToolCallResult
from workers.executor import Executor
from workers.incoming import Incoming
from workers.leases import LeaseKeeper
from workers.registry import Registry

logger = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """What the settings say about calls: bytes of arguments, runs of a call."""

    max_args_bytes: int
    max_attempts: int


class Delivery:
    """Carries calls out on behalf of one worker process."""

    def __init__(
        self,
        ledger: Ledger,
        settlement: Settlement,
        *,
        registry: Registry,
        executor: Executor,
        leases: LeaseKeeper,
        limits: DeliveryLimits,
    ) -> None:
        self._ledger = ledger
        self._settlement = settlement
        self._registry = registry
        self._executor = executor
        self._leases = leases
        self._limits = limits
        self._stopped = threading.Event()

    def claim(self, incoming: Incoming, worker: str) -> Claim | None:
        """Take the call of a message; ``None`` if nothing is to be run.

        A message that holds no call is answered with that error.
        """
        try:
            call = incoming.call(self._limits.max_args_bytes)
        except GoondanError as error:
            self.refuse(incoming, worker, error)
            return None
        claim = self._claim(incoming.id, call, worker)
        if claim.verdict is Verdict.RUN:
            self._leases.hold(claim)
            return claim
        if claim.is_ours:
            self._steadily(lambda: self._settlement.settle(claim))
        logger.info("call.not_run", call_id=incoming.id, verdict=str(claim.verdict))
        return None

    def carry_out(self, claim: Claim) -> Coroutine[Any, Any, ToolCallResult]:
        """Return the coroutine that runs the call (see :mod:`workers.event_loop`)."""
        return self._executor.execute(claim.run, lambda: self._start(claim))

    def finish(self, claim: Claim, result: ToolCallResult) -> None:
        """Store the result; a claim that was lost meanwhile leaves the newer result as it is."""
        stored = self._steadily(lambda: self._ledger.finish(claim, result))
        self._leases.drop(claim)
        logger.info(
            "call.finished" if stored else "call.superseded",
            call_id=claim.run.id,
            agent=result.meta.agent_name,
            tool=result.tool_name,
            status=result.status,
            code=None if result.error is None else result.error.code,
            duration_ms=result.meta.duration_ms,
        )

    def refuse(self, incoming: Incoming, worker: str, error: GoondanError) -> None:
        """Answer a message that holds no call that could be run."""
        claim = self._claim(incoming.id, incoming.placeholder(), worker)
        if claim.is_ours:
            self._steadily(lambda: self._settlement.fail(claim, error))
        logger.warning("call.refused", call_id=incoming.id, code=error.code, reason=error.message)

    def abandon(self) -> None:
        """Settle what still runs when the process must end (DESIGN "Delivery" rules 4 and 6).

        A handler that has started and is not idempotent may have had its effect: that is said. The
        rest is given back to the queue.
        """
        for claim in self._leases.held():
            record = self._ledger.record(claim.run.id)
            if record is not None and record.has_started and not self._terms(claim.run.call).idempotent:
                self._settlement.fail(claim, ToolOutcomeUnknownError())
            else:
                self._settlement.requeue(claim)

    def stop(self) -> None:
        """Stop trying to reach Redis: the process is about to end."""
        self._stopped.set()

    def _claim(self, call_id: str, call: ToolCall, worker: str) -> Claim:
        terms = self._terms(call)
        return self._steadily(lambda: self._ledger.claim(call_id, call, worker, terms))

    def _start(self, claim: Claim) -> float:
        if not self._steadily(lambda: self._ledger.start(claim)):
            raise ToolOutcomeUnknownError("The claim was lost before the handler started.")
        return claim.run.clock()

    def _terms(self, call: ToolCall) -> ClaimTerms:
        bound = (self._registry.catalog(call.agent_name) or {}).get(call.tool_name)
        if bound is None:
            return ClaimTerms(max_attempts=self._limits.max_attempts)
        export = bound.export
        return ClaimTerms(
            idempotent=bool(export.idempotent),
            max_attempts=export.max_attempts or self._limits.max_attempts,
        )

    def _steadily(self, action: Callable[[], T]) -> T:
        while True:
            try:
                return action()
            except RedisError as error:
                logger.warning("redis.unreachable", reason=str(error), retry_seconds=RETRY_SECONDS)
                if self._stopped.wait(RETRY_SECONDS):
                    raise

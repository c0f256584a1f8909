"""The events in the hands of a producer that is an agent's brain: kept alive, ended when they must end."""

import threading
import time
from dataclasses import dataclass

import structlog
from redis.exceptions import RedisError

from goondan_tasks.errors import BrokerUnreachableError, GoondanError, HandoffTimeoutError, ToolCancelledError
from goondan_tasks.events import handling_agent
from goondan_tasks.ledger.leases import LeaseKeeper
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim
from goondan_tasks.ledger.settlement import Settlement

logger = structlog.get_logger(__name__)

#: how soon a brain's event ends after it was cancelled, or after its limit
LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """One event, and when it must have its answer (``time.monotonic()``)."""

    claim: Claim
    ends_at: float | None

    @classmethod
    def of(cls, claim: Claim) -> "Held":
        """Begin to count now."""
        limit = claim.run.call.timeout_seconds
        return cls(claim, None if limit is None else time.monotonic() + limit)


class HeldEvents:
    """Renews their leases; one that is cancelled, or past its limit, ends so, whatever its brain does."""

    def __init__(self, ledger: Ledger, settlement: Settlement, lease_seconds: float) -> None:
        self._ledger = ledger
        self._settlement = settlement
        self._leases = LeaseKeeper(ledger, lease_seconds, on_lost=self.drop)
        self._held: dict[str, Held] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, claim: Claim) -> None:
        """Keep an event until it is dropped."""
        with self._lock:
            self._held[claim.run.id] = Held.of(claim)
            if self._thread is None:
                # the process is somebody else's: it must not be told to stop if this thread dies
                threading.Thread(target=self._leases.keep, name="goondan-leases", daemon=True).start()
                self._thread = threading.Thread(target=self._watch, name="goondan-held-events", daemon=True)
                self._thread.start()
        self._leases.hold(claim)

    def drop(self, claim: Claim) -> None:
        """Keep an event no longer; a newer claim of it stays."""
        with self._lock:
            held = self._held.get(claim.run.id)
            if held is not None and held.claim.token == claim.token:
                del self._held[claim.run.id]
        self._leases.drop(claim)

    def close(self) -> None:
        """Keep nothing any more: events without an answer end as if this process had died."""
        self._stopped.set()
        self._leases.stop()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            with self._lock:
                held = dict(self._held)
            if held:
                try:
                    self._look(held)
                except (RedisError, BrokerUnreachableError) as error:
                    logger.warning("events.not_looked_after", reason=str(error))

    def _look(self, held: dict[str, Held]) -> None:
        cancelled = self._ledger.marked(list(held))
        for call_id, one in held.items():
            error = _end_of(one, is_cancelled=call_id in cancelled)
            if error is not None:
                self._settlement.fail(one.claim, error)  # if Redis is away it is held still, and ended later
                self.drop(one.claim)


def _end_of(held: Held, *, is_cancelled: bool) -> GoondanError | None:
    if is_cancelled:
        return ToolCancelledError()
    if held.ends_at is not None and time.monotonic() > held.ends_at:
        call = held.claim.run.call
        return HandoffTimeoutError(
            f"{handling_agent(call)} did not finish within {call.timeout_seconds:g} s."
        )
    return None

"""Telling runs that their calls were cancelled."""

import threading
import time

from redis.exceptions import RedisError

from goondan_tasks.errors import ToolCancelledError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim
from workers.cancellation import Cancellation

#: how often to look, and how old a run must be to be looked for: quick calls cost no trip to Redis
LOOK_SECONDS = 0.25


class CancelWatch:
    """Asks the ledger about this process's calls, all in one trip, on a daemon thread.

    The key decides, not a message: a worker that was cut off sees it when it is back (DESIGN "Delivery"
    rule 7).
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._runs: dict[str, tuple[Claim, Cancellation]] = {}
        self._lock = threading.Lock()
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="goondan-cancels", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hold(self, claim: Claim) -> Cancellation:
        """Look for ``claim`` from now on; return what is set when its call is cancelled."""
        cancellation = Cancellation()
        with self._lock:
            self._runs[claim.token] = (claim, cancellation)
        return cancellation

    def drop(self, claim: Claim) -> None:
        """Look for ``claim`` no longer."""
        with self._lock:
            self._runs.pop(claim.token, None)

    def cancellation(self, claim: Claim) -> Cancellation | None:
        """Return what :meth:`hold` returned, until the claim is dropped."""
        with self._lock:
            _, cancellation = self._runs.get(claim.token, (None, None))
            return cancellation

    def look(self) -> None:
        """Cancel the runs whose calls are cancelled.

        Raises:
            RedisError: Redis is away; the next look sees what this one would have seen.
        """
        since = time.monotonic() - LOOK_SECONDS
        with self._lock:
            runs = [(claim.run.id, run) for claim, run in self._runs.values() if claim.asked_at < since]
        if runs:
            marked = self._ledger.marked([call_id for call_id, _ in runs])
            for call_id, cancellation in runs:
                if call_id in marked:
                    cancellation.set(ToolCancelledError())

    def _watch(self) -> None:
        while not self._pause.wait(LOOK_SECONDS):
            try:
                self.look()
            except RedisError:
                continue  # the leases' thread says so

"""Notices cancelled calls and cancels their runs."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from redis.exceptions import RedisError

from broker_config.vital_thread import vital_thread
from goondan_tasks.contract.errors import GoondanError, ToolCancelledError, ToolOutcomeUnknownError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim
from workers.cancellation import Cancellation
from workers.concurrency.watchdog import Watchdog

#: how often to look, and how old a run must be to be looked for: short calls cost no trip to Redis
LOOK_SECONDS = 0.25

#: how long a handler may take to end after it is cancelled
CLEAN_UP_SECONDS = 5.0


class _HeldRun(NamedTuple):
    claim: Claim
    cancellation: Cancellation
    abandon: Callable[[], None]


class CancelWatch:
    """Asks the ledger about all calls of this process in one trip, on a daemon thread.

    A key in Redis decides whether a call is cancelled, not a message: a worker that was cut off sees it
    after it reconnects (DESIGN "Delivery" rule 7).
    """

    def __init__(self, ledger: Ledger, watchdog: Watchdog) -> None:
        self._ledger = ledger
        self._watchdog = watchdog
        self._runs: dict[str, _HeldRun] = {}
        self._lock = threading.Lock()
        self._pause = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        vital_thread("goondan-cancels", self._watch, is_over=self._pause.is_set).start()

    def stop(self) -> None:
        """Stop looking."""
        self._pause.set()

    def hold(
        self, claim: Claim, abandon: Callable[[], None], cancellation: Cancellation | None = None
    ) -> Cancellation:
        """Watch ``claim`` from now on; return the cancellation that is set when its call is cancelled.

        :data:`CLEAN_UP_SECONDS` after that ``abandon`` is called, in case the handler has not ended.
        """
        cancellation = cancellation or Cancellation()
        with self._lock:
            self._runs[claim.token] = _HeldRun(claim, cancellation, abandon)
        return cancellation

    def drop(self, claim: Claim, *, is_lost: bool = False) -> None:
        """Stop watching ``claim``: its run has ended, or another worker has it."""
        with self._lock:
            run = self._runs.pop(claim.token, None)
        if run is not None:
            run.cancellation.end(is_lost=is_lost)

    def cancellation(self, claim: Claim) -> Cancellation | None:
        """Return the cancellation of a claim that is watched."""
        with self._lock:
            run = self._runs.get(claim.token)
            return None if run is None else run.cancellation

    def look(self) -> None:
        """Cancel the runs whose calls are cancelled.

        Raises:
            RedisError: Redis is away; the next look sees what this one would have seen.
        """
        since = time.monotonic() - LOOK_SECONDS
        with self._lock:
            runs = [
                run
                for run in self._runs.values()
                if run.claim.asked_at < since and not run.cancellation.is_set()
            ]
        if not runs:
            return
        ask = self._ledger.cancelled_ids([run.claim.run.id for run in runs])
        cancelled = ask.run(self._ledger.redis)
        for run in runs:
            if run.claim.run.id in cancelled:
                self._end(run, ToolCancelledError())

    def end_lost(self, claim: Claim) -> None:
        """Cancel the run of a claim that was lost: the call must run only in the worker that has it now."""
        with self._lock:
            run = self._runs.get(claim.token)
        if run is not None:
            self._end(run, ToolOutcomeUnknownError("The claim was lost while the handler ran."))

    def _end(self, run: _HeldRun, error: GoondanError) -> None:
        self._watchdog.watch(CLEAN_UP_SECONDS, run.abandon)
        run.cancellation.set(error)

    def _watch(self) -> None:
        while not self._pause.wait(LOOK_SECONDS):
            try:
                self.look()
            except RedisError:
                continue  # the thread of the leases logs it

"""Keeping claims alive: every lease is renewed while its call is carried out."""

import threading
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from broker_config.vital_thread import vital_thread
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim

logger = structlog.get_logger(__name__)

#: how soon to try again what Redis did not take: a sweep spares a live call only once (``sweep.lua``)
RETRY_SECONDS = 1.0


class LeaseKeeper:
    """Renews this process's claims every third of a lease, on a daemon thread.

    ``on_lost`` is told of a claim that somebody else has taken, or that is gone: its run must end.
    """

    def __init__(self, ledger: Ledger, lease_seconds: float, on_lost: Callable[[Claim], object]) -> None:
        self._ledger = ledger
        self._interval = lease_seconds / 3
        self._on_lost = on_lost
        self._claims: dict[str, Claim] = {}
        self._is_failing = False
        #: the tokens of the claims that the last renewal did not find
        self._missed: set[str] = set()
        self._lock = threading.Lock()
        self._pause = threading.Event()

    def start(self) -> None:
        """Start the thread, in a process that can do nothing without it."""
        vital_thread("goondan-leases", self.keep, is_over=self._pause.is_set).start()

    def keep(self) -> None:
        """Renew until :meth:`stop` is called."""
        pause = self._interval
        while not self._pause.wait(pause):
            pause = self._interval if self._renew() else min(self._interval, RETRY_SECONDS)

    def stop(self) -> None:
        """Renew nothing any more: whoever holds a claim still has as long as its lease."""
        self._pause.set()

    def hold(self, claim: Claim) -> None:
        """Renew ``claim`` from now on."""
        with self._lock:
            self._claims[claim.run.id] = claim

    def drop(self, claim: Claim) -> None:
        """Stop renewing ``claim``; a newer one of the same call stays."""
        with self._lock:
            held = self._claims.get(claim.run.id)
            if held is not None and held.token == claim.token:
                del self._claims[claim.run.id]

    def held(self) -> list[Claim]:
        """Return the claims of the calls being carried out."""
        with self._lock:
            return list(self._claims.values())

    def _renew(self) -> bool:
        held = self.held()
        try:
            lost = self._ledger.renew(held)
        except RedisError as error:
            if not self._is_failing:  # once, not every second while Redis is away
                logger.warning("leases.not_renewed", reason=str(error))
            self._is_failing = True
            return False
        if self._is_failing:
            logger.info("leases.renewed_again")
        self._is_failing = False
        # a call whose result Redis has just stored is missed once: its claim is dropped a moment later
        missed = [claim for claim in held if claim.run.id in lost]
        for claim in missed:
            if claim.token in self._missed:
                logger.warning("leases.lost", call_id=claim.run.id)
                self.drop(claim)
                self._on_lost(claim)
        self._missed = {claim.token for claim in missed}
        return True

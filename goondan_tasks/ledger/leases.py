"""Keeping claims alive: every lease is renewed while its call is carried out."""

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from broker_config.connections import SOCKET_TIMEOUT_SECONDS
from broker_config.vital_thread import vital_thread
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim

#: how soon to try again what Redis did not take: a sweep spares a live call only once (``sweep.lua``)
RETRY_SECONDS = 1.0


def lease_timeout(lease_seconds: float) -> float:
    """Return the seconds that one trip to Redis may take so that a renewal can be tried again in time."""
    return min(SOCKET_TIMEOUT_SECONDS, lease_seconds / 6)


class LeaseKeeper:
    """Renews this process's claims every third of a lease, on a daemon thread.

    The ledger should have a connection whose time limit is a fraction of the lease (:func:`lease_timeout`).

    ``on_lost`` is called with a claim that another worker has taken, or that is gone: its run must end.
    """

    def __init__(
        self,
        ledger: Ledger,
        lease_seconds: float,
        on_lost: Callable[[Claim], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._ledger = ledger
        self._interval = lease_seconds / 3
        self._on_lost = on_lost
        self._clock = clock
        self._claims: dict[str, Claim] = {}
        self._others: list[Callable[[], Sequence[tuple[str, str]]]] = []
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
        due = self._clock() + self._interval
        while not self._pause.wait(due - self._clock()):
            begun = self._clock()  # what a renewal takes must not put off the next one
            due = begun + (self._interval if self._renew() else min(self._interval, RETRY_SECONDS))

    def stop(self) -> None:
        """Stop renewing: each claim is still held until its lease ends."""
        self._pause.set()

    def hold(self, claim: Claim) -> None:
        """Renew ``claim`` from now on."""
        with self._lock:
            self._claims[claim.run.id] = claim

    def renew_also(self, others: Callable[[], Sequence[tuple[str, str]]]) -> None:
        """Renew from now on what ``others`` returns, too: the id and token of claims held for a short time.

        A lost claim is not reported: its holder asks Redis before and after the run.
        """
        self._others.append(others)

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
        claims = [claim.id_and_token for claim in held]
        claims += [claim for others in self._others for claim in others()]
        try:
            lost = self._ledger.renew(claims).run(self._ledger.redis) if claims else set()
        except RedisError as error:
            if not self._is_failing:  # once, not every second while Redis is away
                _logger().warning("leases.not_renewed", reason=str(error))
            self._is_failing = True
            return False
        if self._is_failing:
            _logger().info("leases.renewed_again")
        self._is_failing = False
        # a call whose result Redis has just stored is missed once: its claim is dropped a moment later
        missed = [claim for claim in held if claim.run.id in lost]
        for claim in missed:
            if claim.token in self._missed:
                _logger().warning("leases.lost", **claim.run.log_fields)
                self.drop(claim)
                self._on_lost(claim)
        self._missed = {claim.token for claim in missed}
        return True


def _logger() -> Any:
    import structlog  # it imports rich, a quarter of the start of a client that never logs

    return structlog.get_logger(__name__)

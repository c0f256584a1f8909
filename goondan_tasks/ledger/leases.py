"""Renews the leases of claims while their calls are carried out."""

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from broker_config.connections import SOCKET_TIMEOUT_SECONDS
from broker_config.vital_thread import vital_thread
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim

#: the pause after a failed renewal; short, because a sweep spares a live call only once (``sweep.lua``)
RETRY_SECONDS = 1.0


def lease_timeout(lease_seconds: float) -> float:
    """Return the time limit of one trip to Redis (seconds); it leaves time to try a renewal again."""
    return min(SOCKET_TIMEOUT_SECONDS, lease_seconds / 6)


class LeaseKeeper:
    """Renews this process's claims every third of a lease, on a daemon thread.

    The ledger's connection should have the time limit :func:`lease_timeout`. ``on_lost`` is called with each
    claim that is gone or was taken by another worker: its run must end.
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
        #: the tokens of the claims that the last renewal did not find, and since when they are missing
        self._missed: dict[str, float] = {}
        self._lock = threading.Lock()
        self._pause = threading.Event()

    def start(self) -> None:
        """Start the thread; if it dies, the process is told to stop."""
        vital_thread("goondan-leases", self.keep, is_over=self._pause.is_set).start()

    def keep(self) -> None:
        """Renew until :meth:`stop` is called."""
        due = self._clock() + self._interval
        while not self._pause.wait(due - self._clock()):
            begun = self._clock()  # the time that a renewal takes must not delay the next one
            due = begun + (self._interval if self._renew() else min(self._interval, RETRY_SECONDS))

    def stop(self) -> None:
        """Stop renewing. Claims stay valid until their leases end."""
        self._pause.set()

    def hold(self, claim: Claim) -> None:
        """Renew ``claim`` from now on."""
        with self._lock:
            self._claims[claim.run.id] = claim

    def renew_also(self, others: Callable[[], Sequence[tuple[str, str]]]) -> None:
        """Also renew the claims that ``others`` returns, each ``(id, token)``; they are held only briefly.

        If one is lost, ``on_lost`` is not called: its holder asks Redis before and after the run.
        """
        self._others.append(others)

    def drop(self, claim: Claim) -> None:
        """Stop renewing ``claim``; a newer claim of the same call is kept."""
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
            if not self._is_failing:  # log once per outage
                _logger().warning("leases.not_renewed", reason=str(error))
            self._is_failing = True
            return False
        if self._is_failing:
            _logger().info("leases.renewed_again")
        self._is_failing = False
        # a claim is lost only if it is missing for a while: one whose result was just stored is dropped in a
        # moment. After an outage one renewal may follow another at once
        now = self._clock()
        missed = [claim for claim in held if claim.run.id in lost]
        self._missed = {claim.token: self._missed.get(claim.token, now) for claim in missed}
        for claim in missed:
            if now - self._missed[claim.token] >= self._interval / 2:
                _logger().warning("leases.lost", **claim.run.log_fields)
                self.drop(claim)
                self._on_lost(claim)
        return True


def _logger() -> Any:
    import structlog  # imports rich, a quarter of the start-up time of a client that never logs

    return structlog.get_logger(__name__)

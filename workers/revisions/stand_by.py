"""A worker that cannot get the active revision leaves its agents' calls to workers that have it.

Else it would fail each call in a millisecond, before those could take it. It goes on as soon as it has the
revision, or is the last one (see :mod:`workers.pool.left_queues`).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

import structlog
from redis.exceptions import RedisError

from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.messages import ToolCall
from goondan_tasks.revisions.active import RevisionState
from goondan_tasks.roster import WorkerRecord
from workers.process_identity import this_process
from workers.revisions.load_failures import AGAIN_SECONDS
from workers.revisions.revisions import Revisions

logger = structlog.get_logger(__name__)

#: how long a worker may take to load the active revision before it stands by
BEHIND_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Lacked:
    """A revision that is lacked, from a time on (by time.monotonic), and for how long that counts."""

    ref: str
    since: float
    seconds: float = math.inf

    def counts_at(self, now: float) -> bool:
        return self.since <= now < self.since + self.seconds


class StandBy:
    """Knows whether this process lacks the active revision, and who has it."""

    def __init__(
        self,
        revisions: Revisions,
        state: Callable[[], RevisionState | None],
        workers: Callable[[], Iterable[WorkerRecord]],
    ) -> None:
        self._revisions = revisions
        self._state = state
        self._workers = workers
        #: what is active elsewhere and not here
        self._lacked: _Lacked | None = None
        #: the agents whose calls are left to others
        self.agents: frozenset[str] = frozenset()
        #: whether the worker stops, and takes no calls again
        self.is_over = False

    def lack(self, ref: str, *, is_unavailable: bool = False) -> None:
        """Note that a revision is active, and not here yet; or, that it cannot be had for now."""
        if is_unavailable:
            self._lacked = _Lacked(ref, monotonic())
        elif self._lacked is None or self._lacked.ref != ref:
            self._lacked = _Lacked(ref, monotonic() + BEHIND_SECONDS)

    def have(self) -> None:
        """Note that what is active is active here."""
        self._lacked = None

    def others_run(self, ref: str, agents: Iterable[str]) -> frozenset[str]:
        """Return those of the agents that a living worker but this one serves with a revision.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        here = this_process().id
        others = [one for one in self._workers() if one.bundle_ref == ref and one.id != here]
        return frozenset(agents).intersection(agent for one in others for agent in one.agents)

    def is_covered(self, ref: str, agents: Iterable[str]) -> bool:
        """Say whether others serve all of these agents with a revision: who cannot has trouble of its own.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        wanted = frozenset(agents)
        return self.others_run(ref, wanted) == wanted

    def leaves(self, call: ToolCall, error: GoondanError) -> bool:
        """Say whether a call is left to others: its revision is active there, and cannot be loaded here."""
        if not isinstance(error, BundleRevisionUnavailableError | ConfigError):
            return False
        try:
            ref = self._revisions.fixed(call).bundle_ref
            if ref is None or not self._is_active_elsewhere(ref, call.agent_name):
                return False
        except (RedisError, ValueError) as refusal:
            logger.warning("call.not_left_to_others", agent=call.agent_name, reason=str(refusal))
            return False
        self._lacked = _Lacked(ref, monotonic(), AGAIN_SECONDS)  # who follows no revisions never has it
        return True

    def _is_active_elsewhere(self, ref: str, agent: str) -> bool:
        if ref == self._revisions.active.ref:
            return False
        state = self._state()
        return state is not None and state.active == ref and bool(self.others_run(ref, [agent]))

    def look(self) -> None:
        """Decide for which agents this process stands by; Redis is asked only while it lacks something.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        lacked = self._lacked
        if self.is_over:
            return
        if lacked is None or not lacked.counts_at(monotonic()):
            self.agents = frozenset()
        else:
            self.agents = self.others_run(lacked.ref, self._revisions.served)

    def end(self) -> None:
        """Decide no more."""
        self.is_over = True

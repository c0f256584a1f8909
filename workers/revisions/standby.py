"""A worker that lacks the active revision leaves its agents' calls to workers that have it.

Otherwise it would fail each call in a millisecond, before those could take it. It resumes as soon as it has
the revision, or is the last worker (see :mod:`workers.pool.left_queues`).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

import structlog
from redis.exceptions import RedisError

from goondan_tasks.agent_registry import WorkerRecord
from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.messages import ToolCall
from goondan_tasks.revisions.active import RevisionState
from workers.process_identity import this_process
from workers.revisions.revisions import AGAIN_SECONDS, Revisions

logger = structlog.get_logger(__name__)

#: how long a worker may take to load the active revision before it stands by
BEHIND_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Lacked:
    """A revision that is missing here, since when (by time.monotonic), and for how long that counts."""

    ref: str
    since: float
    seconds: float = math.inf

    def counts_at(self, now: float) -> bool:
        return self.since <= now < self.since + self.seconds


class StandBy:
    """Decides whether this process leaves its calls to workers that have the active revision."""

    def __init__(
        self,
        revisions: Revisions,
        state: Callable[[], RevisionState | None],
        workers: Callable[[], Iterable[WorkerRecord]],
    ) -> None:
        self._revisions = revisions
        self._state = state
        self._workers = workers
        #: the revision that is active elsewhere and not here
        self._lacked: _Lacked | None = None
        #: the agents whose calls are left to others
        self.agents: frozenset[str] = frozenset()
        #: whether the worker stops, and takes no calls again
        self.is_over = False

    def lack(self, ref: str, *, is_unavailable: bool = False) -> None:
        """Note that the active revision is not loaded here yet, or cannot be for now."""
        if is_unavailable:
            self._lacked = _Lacked(ref, monotonic())
        elif self._lacked is None or self._lacked.ref != ref:
            self._lacked = _Lacked(ref, monotonic() + BEHIND_SECONDS)

    def have(self) -> None:
        """Note that the active revision is loaded here."""
        self._lacked = None

    def others_run(self, ref: str, agents: Iterable[str]) -> frozenset[str]:
        """Return those of the agents that another living worker serves with a revision.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        here = this_process().id
        others = [one for one in self._workers() if one.bundle_ref == ref and one.id != here]
        return frozenset(agents).intersection(agent for one in others for agent in one.agents)

    def is_covered(self, ref: str, agents: Iterable[str]) -> bool:
        """Return whether other workers serve all of these agents with a revision.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        wanted = frozenset(agents)
        return self.others_run(ref, wanted) == wanted

    def leaves(self, call: ToolCall, error: GoondanError) -> bool:
        """Return whether a call is left to others: they run its revision, which cannot be loaded here."""
        if not isinstance(error, BundleRevisionUnavailableError | ConfigError):
            return False
        try:
            ref = self._revisions.fixed(call).bundle_ref
            if ref is None or not self._is_active_elsewhere(ref, call.agent_name):
                return False
        except (RedisError, ValueError) as refusal:
            logger.warning("call.not_left_to_others", agent=call.agent_name, reason=str(refusal))
            return False
        self._lacked = _Lacked(ref, monotonic(), AGAIN_SECONDS)  # it may not follow revisions
        return True

    def _is_active_elsewhere(self, ref: str, agent: str) -> bool:
        if ref == self._revisions.active.ref:
            return False
        state = self._state()
        return state is not None and state.active == ref and bool(self.others_run(ref, [agent]))

    def look(self) -> None:
        """Decide for which agents this process stands by; Redis is read only while a revision is missing.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        lacked = self._lacked
        if self.is_over:
            return
        if lacked is None or not lacked.counts_at(monotonic()):
            self.agents = frozenset()
        else:
            self.agents = self.others_run(lacked.ref, self._revisions.served)

    def end(self) -> None:
        """Stop deciding: the worker stops."""
        self.is_over = True

"""A worker that cannot get the active revision leaves its agents' calls to workers that have it.

Else it would fail each call in a millisecond, before those could take it. It goes on as soon as it has the
revision, or is the last one (see :mod:`workers.left_queues`).
"""

from collections.abc import Callable, Iterable
from time import monotonic

from goondan_tasks.revisions.active import RevisionState
from goondan_tasks.roster import WorkerRecord
from workers.process_identity import this_process
from workers.revisions import Revisions

#: how long a worker may take to load the active revision before it stands by
BEHIND_SECONDS = 2.0


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
        #: what is active elsewhere and not here, and since when, by time.monotonic
        self._lacked: tuple[str, float] | None = None
        #: the agents whose calls are left to others
        self.agents: frozenset[str] = frozenset()
        self._is_over = False

    def lack(self, ref: str, *, is_unavailable: bool = False) -> None:
        """Note that a revision is active, and not here yet; or, that it cannot be had for now."""
        if is_unavailable:
            self._lacked = ref, -BEHIND_SECONDS
        elif self._lacked is None or self._lacked[0] != ref:
            self._lacked = ref, monotonic()

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

    def leaves(self, agent: str, ref: str | None) -> bool:
        """Say whether a call that cannot be run here is left to others: it names what is active there.

        Raises:
            redis.exceptions.RedisError: Redis is away.
            ValueError: the record cannot be read.
        """
        if ref is None or ref == self._revisions.active.ref:
            return False
        state = self._state()
        if state is None or state.active != ref or not self.others_run(ref, [agent]):
            return False
        self.lack(ref, is_unavailable=True)
        return True

    def look(self) -> None:
        """Decide for which agents this process stands by; Redis is asked only while it lacks something.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        lacked = self._lacked
        if self._is_over:
            return
        if lacked is None or monotonic() - lacked[1] < BEHIND_SECONDS:
            self.agents = frozenset()
        else:
            self.agents = self.others_run(lacked[0], self._revisions.served)

    def end(self) -> None:
        """Decide no more: the worker stops, and takes no calls again."""
        self._is_over = True

"""``policy.lifecycle.ttlSeconds``: a worker removes the instances that nobody has used for so long.

One worker at a time does it below each state root, once a minute, on a thread of its own.
"""

import threading
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from goondan_tasks.bundle.resources import LifecyclePolicy
from goondan_tasks.instances.housekeeping import Housekeeping
from goondan_tasks.ledger.ledger import Ledger

logger = structlog.get_logger(__name__)

#: how often instances are looked at, by all workers together
EVERY_SECONDS = 60


class Collector:
    """Looks after the instances of one workspace on behalf of one worker process."""

    def __init__(
        self,
        ledger: Ledger,
        housekeeping: Housekeeping,
        *,
        workspace: str,
        policy: Callable[[], LifecyclePolicy],
    ) -> None:
        self._redis = ledger.redis
        self._keys = ledger.keys
        self._housekeeping = housekeeping
        self._workspace = workspace
        self._policy = policy
        self._is_at_work = threading.Lock()

    def look(self, worker: str, root_id: str) -> None:
        """Begin a round, unless there is no time limit, or a worker has begun one within the last minute.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        policy = self._policy()
        if policy.ttl_seconds is None or self._is_at_work.locked():
            return
        seconds = policy.ttl_seconds + (policy.gc_grace_seconds or 0)
        if self._redis.set(self._keys.collector(root_id), worker, nx=True, ex=EVERY_SECONDS):
            thread = threading.Thread(target=self._run, args=[seconds, root_id], name="goondan-collector")
            thread.daemon = True
            thread.start()

    def _run(self, seconds: float, root_id: str) -> None:
        with self._is_at_work:
            try:
                self.collect(seconds, root_id)
            except (RedisError, OSError) as error:
                logger.warning("instances.not_collected", reason=str(error))  # the next round will

    def collect(self, seconds: float, root_id: str) -> None:
        """Remove what was not used for so long; the claim on the round is renewed meanwhile."""
        for removal in self._housekeeping.collect(seconds, workspace=self._workspace):
            self._redis.expire(self._keys.collector(root_id), EVERY_SECONDS)
            if removal.removed:
                logger.info(
                    "instance.removed",
                    instance=removal.instance_key,
                    agents=list(removal.agents),
                    files=removal.files,
                    reason=removal.reason or f"unused for {seconds:g} s",
                )

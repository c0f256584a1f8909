"""The lock in Redis by which machines commit one at a time."""

import contextlib
from collections.abc import Iterator

from redis import Redis
from redis.exceptions import RedisError

from goondan_tasks.changesets.locks import LOOK_SECONDS, WAIT_SECONDS, too_late
from goondan_tasks.errors import BrokerUnreachableError

#: after this time the lock of a dead machine is free; a commit that takes longer may be overtaken
HOLD_SECONDS = 60.0


class RedisLock:
    """Holds among machines."""

    def __init__(self, redis: Redis, key: str, wait_seconds: float = WAIT_SECONDS) -> None:
        self._lock = redis.lock(
            key, timeout=HOLD_SECONDS, blocking_timeout=wait_seconds, sleep=LOOK_SECONDS, thread_local=True
        )

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the turn; see :class:`~goondan_tasks.changesets.locks.CommitLock`.

        Raises:
            ChangesetError: it did not come in time.
            BrokerUnreachableError: Redis cannot be reached.
        """
        try:
            is_held = self._lock.acquire()
        except RedisError as error:
            raise BrokerUnreachableError(f"The lock of commits cannot be had: {error}") from error
        if not is_held:
            raise too_late()
        try:
            yield
        finally:
            # it was held too long, or Redis has lost it: the refs decide
            with contextlib.suppress(RedisError):
                self._lock.release()

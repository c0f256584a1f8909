"""A thread that reads something periodically, and on request."""

import threading
from collections.abc import Callable
from functools import partial

import structlog
from redis.exceptions import RedisError

from workers.concurrency.threads import without_fault

logger = structlog.get_logger(__name__)

#: the time between two rounds without a request
LOOK_SECONDS = 1.0


class FallbackPoller:
    """Reads the record of the active revision, then runs the less urgent ``after``."""

    def __init__(self, look: Callable[[], None], *after: Callable[[], None]) -> None:
        self._look = look
        self._after = after
        self._rounds = threading.Condition()
        self._asked = 0
        self._answered = 0

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="goondan-following", daemon=True).start()

    def looks_within(self, seconds: float) -> bool:
        """Request another round and wait for it; return whether it ended in time."""
        with self._rounds:
            self._asked += 1
            round_ = self._asked
            self._rounds.notify_all()
            return self._rounds.wait_for(lambda: self._answered >= round_, seconds)

    def _run(self) -> None:
        while True:
            with self._rounds:
                self._rounds.wait_for(lambda: self._asked > self._answered, LOOK_SECONDS)
                round_ = self._asked
            without_fault(partial(attempt, self._look))
            with self._rounds:
                self._answered = round_
                self._rounds.notify_all()
            for what in self._after:
                without_fault(partial(attempt, what))


def attempt(what: Callable[[], None]) -> None:
    """Read the record with ``what``; log a record that cannot be read."""
    try:
        what()
    except (RedisError, ValueError) as error:
        log_unread(error)


def log_unread(error: Exception) -> None:
    """Log that the record could not be read."""
    logger.warning("revision.record_not_read", reason=str(error))

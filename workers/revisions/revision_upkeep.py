"""What keeps the record of the active revision alive, and old checkouts away."""

from time import monotonic

from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.checkouts import Checkouts, clean_checkouts
from workers.concurrency.lookout import attempt
from workers.concurrency.threads import on_new_thread

#: how often the record is kept alive, and old checkouts are removed
UPKEEP_SECONDS = 3_600.0
#: how long a checkout stays that nobody opens
CHECKOUT_SECONDS = 7 * 86_400.0


class RevisionUpkeep:
    """Does this now and then."""

    def __init__(self, record: ActiveRevision, checkouts: Checkouts) -> None:
        self._record = record
        self._checkouts = checkouts
        self._kept_at = -UPKEEP_SECONDS

    def look(self) -> None:
        """Do it if it is time to; checkouts are removed on another thread.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        if monotonic() - self._kept_at > UPKEEP_SECONDS:
            self._kept_at = monotonic()
            self._record.keep()
            on_new_thread(lambda: attempt(self._clean_up))

    def _clean_up(self) -> None:
        try:
            clean_checkouts(self._checkouts.cache, CHECKOUT_SECONDS)
        finally:
            self._checkouts.forget_fetched()

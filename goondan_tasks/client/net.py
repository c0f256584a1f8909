"""The net under all who wait on one client, should the notification of a result be missed."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from goondan_tasks.client.result_listener import ResultListener
from goondan_tasks.errors import CallNotFoundError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import result_of

#: how often somebody looks, however many wait
LOOK_SECONDS = 2.0

#: how many calls are looked for in one trip
BATCH = 500


class Net:
    """Looks for the results of all that are waited for, and sweeps, so that nobody waits for ever."""

    def __init__(self, ledger: Ledger, listener: ResultListener, sweep: Callable[[], object]) -> None:
        self._ledger = ledger
        self._listener = listener
        self._sweep = sweep
        self._looked_at = time.monotonic()
        self._is_looking = threading.Lock()
        #: those that the ledger did not know at the last look: whoever waits for one looks for itself
        self.unknown: frozenset[str] = frozenset()

    @property
    def is_due(self) -> bool:
        """Whether nobody has looked for a while: who failed to has not."""
        return time.monotonic() - self._looked_at >= LOOK_SECONDS

    def look(self) -> None:
        """Look, if it is time, and nobody does so at this moment.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        if self.is_due and self._is_looking.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._is_looking.release()

    def _look(self) -> None:
        begun_at = time.monotonic()
        self._sweep()
        waiting = self._listener.waiting()
        self.unknown = frozenset(one for call_ids in _batches(waiting) for one in self._look_for(call_ids))
        self._looked_at = begun_at

    def _look_for(self, call_ids: Sequence[str]) -> Iterator[str]:
        """Hand over the results that are there; yield the calls of which nothing is."""
        keys = self._ledger.keys
        with self._ledger.redis.pipeline(transaction=False) as pipe:
            for call_id in call_ids:
                pipe.get(keys.celery_result(call_id))
                pipe.exists(keys.call(call_id))
            answers = pipe.execute()
        for call_id, stored, is_known in zip(call_ids, answers[::2], answers[1::2], strict=True):
            try:
                if stored is not None:
                    self._listener.resolve(call_id, result_of(stored))
                elif not is_known:
                    yield call_id
            except ValueError as error:
                self._listener.fail(call_id, unreadable(call_id, error))


def not_found(call_id: str) -> CallNotFoundError:
    """Return the error of a call that nobody knows."""
    return CallNotFoundError(
        f"No call {call_id!r}: it is unknown, its record has expired, or this version cannot read it."
    )


def unreadable(call_id: str, error: ValueError) -> CallNotFoundError:
    """Return the error of a result that is damaged, or of a newer version."""
    return CallNotFoundError(f"The result of call {call_id!r} cannot be read: {error}")


def _batches(call_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(call_ids), BATCH):
        yield call_ids[start : start + BATCH]

"""Messages that workers had reserved when they died, while no worker is there to put them back.

Workers do that for one another (:mod:`broker_config.transport`). Without any, such a message stands in no
queue: whoever starts workers by what waits in the queues would never see it.
"""

from functools import partial

from redis import Redis

from broker_config.in_flight import InFlight
from broker_config.scripts import run_errand


class LeftMessages:
    """Puts back what nobody has renewed for ``seconds``: a reservation of a live worker is never that old."""

    def __init__(self, redis: Redis, seconds: float) -> None:
        self._in_flight = InFlight(partial(run_errand, redis))
        self._seconds = seconds

    def put_back(self) -> int:
        """Put a batch back to the front of its queues; return how many messages that were.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        return self._in_flight.give_back(self._in_flight.overdue(self._seconds))

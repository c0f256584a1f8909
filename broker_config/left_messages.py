"""Messages that workers had reserved when they died, while no worker is there to put them back.

Workers do that for one another (:mod:`broker_config.transport`). Without any, such a message stands in no
queue: whoever starts workers by what waits in the queues would never see it.
"""

from importlib.resources import files

from redis import Redis

from broker_config.queues import BELL_SUFFIX
from broker_config.scripts import Errand, Script, run_errand
from broker_config.transport import BATCH, IN_FLIGHT, IN_FLIGHT_INDEX


class LeftMessages:
    """Puts back what nobody has renewed for ``seconds``: a reservation of a live worker is never that old."""

    def __init__(self, redis: Redis, seconds: float) -> None:
        self._redis = redis
        self._seconds = seconds
        folder = files("broker_config.scripts")
        self._overdue, self._give_back = Script.read(folder, "overdue"), Script.read(folder, "give_back")

    def put_back(self) -> int:
        """Put a batch back to the front of its queues; return how many messages that were.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        tags = run_errand(self._redis, Errand(self._overdue, [IN_FLIGHT_INDEX], [self._seconds, BATCH]))
        if not tags:
            return 0
        errand = Errand(self._give_back, [IN_FLIGHT, IN_FLIGHT_INDEX], [BELL_SUFFIX, *tags])
        return int(run_errand(self._redis, errand))

"""A plugin of pytest: the Redis in memory of unit tests becomes the server at ``REAL_REDIS_URL``, emptied."""

import os
from typing import Any
from urllib.parse import urlsplit

import fakeredis
import redis

WHERE = urlsplit(os.environ["REAL_REDIS_URL"])


class RealRedis(redis.Redis):
    def __init__(self, **options: Any) -> None:
        super().__init__(host=str(WHERE.hostname), port=WHERE.port or 0, password=WHERE.password, **options)
        self.flushall()


vars(fakeredis)["FakeRedis"] = RealRedis

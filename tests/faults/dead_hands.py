"""How long the ledger leaves calls in the hands of dead workers: read from its own records, now and then."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from redis import Redis

from goondan_tasks.client import Client
from tests.faults.beside import beside
from tests.faults.crowd import AGENT
from tests.faults.fleet import Fleet

TICK_SECONDS = 0.25


@contextmanager
def dead_hands(client: Client, fleet: Fleet) -> Iterator["Watch"]:
    """Watch the calls in progress for the length of a ``with`` block, and until none is left after it.

    The seconds of each call count from its worker's death to the last look at which that worker still had it.
    """
    with Redis.from_url(client.settings.redis_url) as redis:
        watch = Watch(client, fleet, redis)
        with beside(watch.look_until, "dead-hands", 60):
            yield watch


class Watch:
    """What was seen: ``seconds`` by call and worker, and the process of each worker by its name."""

    def __init__(self, client: Client, fleet: Fleet, redis: Redis) -> None:
        self.seconds: dict[str, float] = {}
        self.pids: dict[str, int] = {}
        self._client = client
        self._fleet = fleet
        self._redis = redis
        self._keys = client._ledger.keys

    def look_until(self, is_over: threading.Event) -> None:
        while self._look() or not is_over.is_set():
            time.sleep(TICK_SECONDS)

    def _look(self) -> bool:
        """Note the calls that the dead have; say whether any call is in progress."""
        self.pids.update({worker.name: worker.pid for worker in self._client.workers()})
        running = cast("list[bytes]", self._redis.zrange(self._keys.running(AGENT), 0, -1))
        call_ids = [call_id.decode() for call_id in running]
        with self._redis.pipeline(transaction=False) as pipe:
            for call_id in call_ids:
                pipe.hget(self._keys.call(call_id), "worker")
            owners = [(owner or b"").decode() for owner in pipe.execute()]
        died_at = {death.pid: death.at for death in self._fleet.deaths}
        for call_id, owner in zip(call_ids, owners, strict=True):
            pid = self.pids.get(owner)
            if pid in died_at:
                self.seconds[f"{call_id} of {owner}"] = time.time() - died_at[pid]
        return bool(call_ids)

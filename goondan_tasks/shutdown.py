"""Asking workers to drain by a key in Redis: for all of an agent, or for one by name (DESIGN §4).

Every worker looks at the keys that are about it, so none misses a request, not even one that is connecting
anew just then. A request says when it was made: a worker that has begun later is not meant.
"""

from collections.abc import Sequence
from typing import Self

from pydantic import model_validator
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.messages import Versioned, WireModel

#: how long a request stands; a worker that cannot reach Redis for longer misses it
TTL_SECONDS = 600


class ShutdownRequest(WireModel):
    """Whose workers are to drain: an agent's, or the one of that name."""

    agent: str | None = None
    worker: str | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _is_about_one(self) -> Self:
        if bool(self.agent) == bool(self.worker):
            raise ValueError("name either an agent or a worker")
        return self

    @property
    def target(self) -> str:
        """What its key is called by."""
        return f"agent:{self.agent}" if self.agent else f"worker:{self.worker}"


class _Asked(Versioned):
    at: int
    reason: str = ""


class ShutdownRequests:
    """The requests of one namespace. Times are milliseconds, Redis time."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def now(self) -> int:
        """Return the time from which a worker that begins now heeds requests."""
        seconds, micros = self._redis.time()
        return seconds * 1000 + micros // 1000

    def ask(self, request: ShutdownRequest) -> None:
        """Ask the workers that run now to drain; a later request takes the place of an earlier one."""
        asked = _Asked(at=self.now(), reason=request.reason)
        self._redis.set(
            self._keys.shutdown(request.target), serializer.encode(asked.to_wire()), ex=TTL_SECONDS
        )

    def heed(self, worker: str, agents: Sequence[str], since: int) -> dict[str, str]:
        """Return the agents that a worker is to leave, with the reason of each.

        A request that is about the worker itself means all of them; one from before ``since`` none.
        """
        requests = [ShutdownRequest(worker=worker), *(ShutdownRequest(agent=agent) for agent in agents)]
        rows = self._redis.mget([self._keys.shutdown(request.target) for request in requests])
        asked = [_Asked.from_wire(serializer.decode(row)) if row else None for row in rows]
        own, *others = [one if one is not None and one.at > since else None for one in asked]
        if own is not None:
            return dict.fromkeys(agents, own.reason)
        return {agent: one.reason for agent, one in zip(agents, others, strict=True) if one is not None}

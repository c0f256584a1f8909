"""The states of the agents' workers in Redis, shared by all orchestrators and ``goondan agents``."""

from collections.abc import Callable, Iterable

from redis import Redis
from redis.exceptions import WatchError

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.orchestrator.upkeep import Upkeep

#: how long a state is kept after its last change
TTL_SECONDS = 86_400

#: the next state, given the one before and the time in ms; ``None`` changes nothing
Step = Callable[[Upkeep, int], Upkeep | None]


class UpkeepStore:
    """The states by agent."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def read(self, agents: Iterable[str]) -> dict[str, Upkeep]:
        """Return the states of these agents; of one that cannot be read here, only that as its reason."""
        names = list(agents)
        rows = self._redis.mget([self._keys.upkeep(name) for name in names]) if names else []
        return {name: _shown(row) for name, row in zip(names, rows, strict=True)}

    def change(self, agent: str, step: Step) -> Upkeep | None:
        """Take one step of an agent's state, in one piece; return the new state.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached; the step may or may not have been taken.
            ValueError: the state cannot be read: another version has written it.
        """
        key = self._keys.upkeep(agent)
        with self._redis.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(key)  # type: ignore[no-untyped-call]
                    seconds, micros = pipe.time()
                    before = _state(pipe.get(key))
                    after = step(before, seconds * 1000 + micros // 1000)
                    if after is None or after == before:
                        return after
                    pipe.multi()
                    pipe.set(key, serializer.encode(after.to_wire()), ex=TTL_SECONDS)
                    pipe.execute()
                except WatchError:  # another orchestrator was quicker
                    continue
                return after


def _shown(row: bytes | str | None) -> Upkeep:
    try:
        return _state(row)
    except ValueError:
        return Upkeep(
            reason="What another version of goondan has written of its workers cannot be read here."
        )


def _state(row: bytes | str | None) -> Upkeep:
    return Upkeep() if row is None else Upkeep.from_wire(serializer.decode(row))

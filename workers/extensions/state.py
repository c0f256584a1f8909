"""The state of extensions, kept for each instance of an agent: ``api.state``."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, cast

from redis import Redis

from broker_config import serializer
from broker_config.connections import retrying
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.table_rows import naming
from workers.concurrency.event_loop import beside_loop, is_on_loop
from workers.concurrency.threads import on_new_thread
from workers.extensions.events import running_for

#: the lifetime of state after it was last read or written
TTL_SECONDS = 30 * 86_400

#: how long an operation waits for a Redis that cannot be reached, as the rest of a Turn does; all of them may
#: be repeated
PATIENCE_SECONDS = 60.0

#: the size limit of a value, in bytes of JSON
LARGEST_VALUE = 1_048_576


@dataclass(frozen=True, slots=True)
class StateOwner:
    """An extension in one instance of an agent."""

    agent: str
    extension: str
    instance_key: str


class RedisState:
    """State in Redis.

    All methods raise a BrokerUnreachableError if Redis stays away, or refuses, and a RecordDamagedError if
    another program has written the key.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._keys = Keys(settings.namespace)
        self._url = settings.redis_url

    def read(self, owner: StateOwner, key: str) -> bytes | None:
        name = self._name(owner)
        with self._patiently(name), self._redis.pipeline(transaction=False) as pipe:
            pipe.hget(name, key)
            pipe.expire(name, TTL_SECONDS)
            value: bytes | None = pipe.execute()[0]
        return value

    def write(self, owner: StateOwner, key: str, value: bytes | None) -> None:
        name = self._name(owner)
        with self._patiently(name), self._redis.pipeline() as pipe:
            if value is None:
                pipe.hdel(name, key)
            else:
                pipe.hset(name, key, value)
            pipe.expire(name, TTL_SECONDS)
            pipe.execute()

    def keys(self, owner: StateOwner) -> list[str]:
        name = self._name(owner)
        with self._patiently(name):
            found = cast("list[bytes]", self._redis.hkeys(name))
        return [key.decode() for key in found]

    @contextmanager
    def _patiently(self, name: str) -> Iterator[None]:
        with broker_errors(self._url), naming(name), retrying(monotonic() + PATIENCE_SECONDS):
            yield

    def _name(self, owner: StateOwner) -> str:
        return self._keys.extension(owner.agent, owner.extension, owner.instance_key)


class MemoryState:
    """State in this process, for :func:`workers.testing.run_tool`."""

    def __init__(self) -> None:
        self._values: defaultdict[StateOwner, dict[str, bytes]] = defaultdict(dict)

    def read(self, owner: StateOwner, key: str) -> bytes | None:
        return self._values[owner].get(key)

    def write(self, owner: StateOwner, key: str, value: bytes | None) -> None:
        if value is None:
            self._values[owner].pop(key, None)
        else:
            self._values[owner][key] = value

    def keys(self, owner: StateOwner) -> list[str]:
        return list(self._values[owner])


#: where state is stored; ``None`` as a value removes it
StateStore = RedisState | MemoryState


class ExtensionState:
    """The ``api.state`` of one extension of one agent: see :class:`goondan_tasks.extension_api.State`.

    Raises:
        RuntimeError: no instance is named, and no call of the agent is running.
        TypeError: the key is not text.
        ValueError: the value is not JSON, or longer than :data:`LARGEST_VALUE`.
        BrokerUnreachableError: Redis stays away for :data:`PATIENCE_SECONDS`, or refuses.
        RecordDamagedError: another program has written the state's key.
    """

    def __init__(self, store: StateStore, agent: str, extension: str) -> None:
        self._store = store
        self._agent = agent
        self._extension = extension

    def get(self, key: str, default: Any = None, *, instance_key: str | None = None) -> Any:
        owner = self._owner(key, instance_key)

        def read() -> Any:
            data = self._store.read(owner, key)
            return default if data is None else serializer.decode(data)

        return now_or_awaitable(read)

    def set(self, key: str, value: Any, *, instance_key: str | None = None) -> Any:
        owner = self._owner(key, instance_key)
        data = None if value is None else serializer.encode(value, serializer.DEEPEST)
        if data is not None and len(data) > LARGEST_VALUE:
            raise ValueError(f"state {key!r}: {len(data)} bytes; {LARGEST_VALUE} is the most")
        return now_or_awaitable(partial(self._store.write, owner, key, data))

    def keys(self, prefix: str = "", *, instance_key: str | None = None) -> Any:
        owner = self._owner(prefix, instance_key)
        return now_or_awaitable(
            lambda: sorted(key for key in self._store.keys(owner) if key.startswith(prefix))
        )

    def _owner(self, key: str, instance_key: str | None) -> StateOwner:
        if not isinstance(key, str):
            raise TypeError(f"state is kept under text, not {key!r}")
        if instance_key is None:
            current = running_for(self._agent)
            if current is None:
                raise RuntimeError("no Turn, Step or tool call is running here: name the instance_key")
            instance_key = current.instance_key
        return StateOwner(self._agent, self._extension, instance_key)


def now_or_awaitable(function: Callable[[], Any]) -> Any:
    """Call a function that may block; on the event loop, return an awaitable that calls it on a thread."""
    return beside_loop(function, on_new_thread) if is_on_loop() else function()

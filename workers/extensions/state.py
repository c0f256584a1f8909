"""What extensions remember: ``api.state``, kept for each instance of an agent."""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.client.broker_errors import broker_errors
from workers.concurrency.beside_loop import beside_loop, is_on_loop
from workers.concurrency.threads import on_new_thread
from workers.extensions.running import running_call

#: how long it is kept after it was last asked for or changed
TTL_SECONDS = 30 * 86_400

#: the most that one key may hold, in bytes of JSON
LARGEST_VALUE = 1_048_576


@dataclass(frozen=True, slots=True)
class Place:
    """Whose state it is."""

    agent: str
    extension: str
    instance_key: str


class StateStore(Protocol):
    """Where state is kept; its methods block."""

    def read(self, place: Place, key: str) -> bytes | None:
        """Return what is kept."""

    def write(self, place: Place, key: str, value: bytes | None) -> None:
        """Keep a value; ``None`` forgets it."""

    def keys(self, place: Place) -> list[str]:
        """Return what something is kept under."""


class RedisState:
    """Keeps state in Redis, where every worker sees it."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._keys = Keys(settings.namespace)
        self._url = settings.redis_url

    def read(self, place: Place, key: str) -> bytes | None:
        """Return what is kept.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        name = self._name(place)
        with broker_errors(self._url), self._redis.pipeline(transaction=False) as pipe:
            pipe.hget(name, key)
            pipe.expire(name, TTL_SECONDS)
            value: bytes | None = pipe.execute()[0]
        return value

    def write(self, place: Place, key: str, value: bytes | None) -> None:
        """Keep a value; raises as :meth:`read`."""
        name = self._name(place)
        with broker_errors(self._url), self._redis.pipeline() as pipe:
            if value is None:
                pipe.hdel(name, key)
            else:
                pipe.hset(name, key, value)
            pipe.expire(name, TTL_SECONDS)
            pipe.execute()

    def keys(self, place: Place) -> list[str]:
        """Return what something is kept under; raises as :meth:`read`."""
        with broker_errors(self._url):
            found = cast("list[bytes]", self._redis.hkeys(self._name(place)))
        return [key.decode() for key in found]

    def _name(self, place: Place) -> str:
        return self._keys.extension(place.agent, place.extension, place.instance_key)


class MemoryState:
    """Keeps state in this process, for :func:`workers.testing.run_tool`."""

    def __init__(self) -> None:
        self._values: defaultdict[Place, dict[str, bytes]] = defaultdict(dict)

    def read(self, place: Place, key: str) -> bytes | None:
        """Return what is kept."""
        return self._values[place].get(key)

    def write(self, place: Place, key: str, value: bytes | None) -> None:
        """Keep a value; ``None`` forgets it."""
        if value is None:
            self._values[place].pop(key, None)
        else:
            self._values[place][key] = value

    def keys(self, place: Place) -> list[str]:
        """Return what something is kept under."""
        return list(self._values[place])


class ExtensionState:
    """The ``api.state`` of one extension of one agent: see :class:`goondan_tasks.extension_api.State`."""

    def __init__(self, store: StateStore, agent: str, extension: str) -> None:
        self._store = store
        self._agent = agent
        self._extension = extension

    def get(self, key: str, default: Any = None, *, instance_key: str | None = None) -> Any:
        """Return what is kept under ``key``.

        Raises:
            RuntimeError: no instance is named, and none is running.
            TypeError: ``key`` is no text.
            BrokerUnreachableError: Redis cannot be reached.
        """
        place = self._place(key, instance_key)
        if is_on_loop():
            return beside_loop(partial(self._get, place, key, default), on_new_thread)
        return self._get(place, key, default)

    def set(self, key: str, value: Any, *, instance_key: str | None = None) -> Any:
        """Keep JSON under ``key``; ``None`` forgets it.

        Raises:
            ValueError: ``value`` is no JSON, or longer than :data:`LARGEST_VALUE`.
            RuntimeError, TypeError, BrokerUnreachableError: as :meth:`get`.
        """
        place = self._place(key, instance_key)
        data = None if value is None else serializer.encode(value)
        if data is not None and len(data) > LARGEST_VALUE:
            raise ValueError(f"state {key!r}: {len(data)} bytes; {LARGEST_VALUE} is the most")
        if is_on_loop():
            return beside_loop(partial(self._store.write, place, key, data), on_new_thread)
        return self._store.write(place, key, data)

    def keys(self, prefix: str = "", *, instance_key: str | None = None) -> Any:
        """Return the keys that begin with ``prefix``; raises as :meth:`get`."""
        place = self._place(prefix, instance_key)
        if is_on_loop():
            return beside_loop(partial(self._under, place, prefix), on_new_thread)
        return self._under(place, prefix)

    def _under(self, place: Place, prefix: str) -> list[str]:
        return sorted(key for key in self._store.keys(place) if key.startswith(prefix))

    def _get(self, place: Place, key: str, default: Any) -> Any:
        data = self._store.read(place, key)
        return default if data is None else serializer.decode(data)

    def _place(self, key: str, instance_key: str | None) -> Place:
        if not isinstance(key, str):
            raise TypeError(f"state is kept under text, not {key!r}")
        if instance_key is None:
            current = running_call()
            if current is None or current.agent_name != self._agent:
                raise RuntimeError("no Turn, Step or tool call is running here: name the instance_key")
            instance_key = current.instance_key
        return Place(self._agent, self._extension, instance_key)

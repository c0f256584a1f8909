"""Paused agents and tools, in one hash of Redis.

Workers read it with each heartbeat, and orchestrators at each look; both renew its lifetime. So a pause does
not end by itself while one of them lives, and lasts :data:`TTL_SECONDS` after that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import quote

from redis import Redis

from broker_config import serializer
from broker_config.connections import redis_time
from broker_config.keys import Keys
from goondan_tasks.contract.messages import Versioned
from goondan_tasks.contract.table_rows import naming, only_advice, read_row
from goondan_tasks.contract.wording import on_one_line

#: how long pauses are kept after the last heartbeat of any worker
TTL_SECONDS = 30 * 86_400

#: before the field of a paused tool, the name of the limit that its calls wait for
LIMIT_PREFIX = "paused:"


class Pause(Versioned):
    """A paused agent, or a paused tool of an agent."""

    agent: str
    tool: str | None = None
    reason: str = ""
    #: who paused it
    by: str = ""
    #: ms, Redis time
    at: int = 0

    @property
    def target(self) -> str:
        """The agent, or the tool and its agent, in words."""
        return self.agent if self.tool is None else f"{self.tool} of {self.agent}"

    @property
    def text(self) -> str:
        """Who paused it, and why: ``paused by ann: the index is being rebuilt``."""
        who = f" by {self.by}" if self.by else ""
        return on_one_line(f"paused{who}: {self.reason}" if self.reason else f"paused{who}")


def field_of(agent: str, tool: str | None = None) -> str:
    """Return the field of the hash for an agent or a tool."""
    own = quote(agent, safe="")
    return own if tool is None else f"{own}/{quote(tool, safe='')}"


def pause_name(agent: str, tool: str) -> str:
    """Return the name of the limit that the calls of a paused tool wait for."""
    return f"{LIMIT_PREFIX}{field_of(agent, tool)}"


def is_pause(limit: str) -> bool:
    """Return whether a limit is the pause of a tool."""
    return limit.startswith(LIMIT_PREFIX)


@dataclass(frozen=True, slots=True)
class Paused:
    """What is paused at one moment."""

    #: by their fields
    pauses: Mapping[str, Pause] = field(default_factory=dict)

    def agent(self, name: str) -> Pause | None:
        """Return the pause of an agent, if there is one."""
        return self.pauses.get(field_of(name))

    def of(self, agent: str, tool: str) -> Pause | None:
        """Return what holds the calls of a tool: the pause of the agent, or that of the tool."""
        return self.agent(agent) or self.pauses.get(field_of(agent, tool))

    def about(self, agent: str) -> tuple[Pause, ...]:
        """Return the pauses of an agent and of its tools."""
        return tuple(pause for pause in self.pauses.values() if pause.agent == agent)

    def agents(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of these agents that are paused."""
        return frozenset(name for name in names if self.agent(name) is not None)

    def tools(self, agent: str) -> frozenset[str]:
        """Return the paused tools of an agent."""
        return frozenset(one.tool for one in self.about(agent) if one.tool is not None)


class Pauses:
    """The pauses of one namespace. Methods may raise ``redis.exceptions.RedisError``.

    If another program has overwritten their key, nothing is paused.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def read(self) -> Paused:
        """Read all pauses; damaged rows are left out."""
        rows: dict[bytes, bytes] = {}
        with only_advice(self._keys.paused):
            rows = cast("dict[bytes, bytes]", self._redis.hgetall(self._keys.paused))
        return _paused(rows)

    def read_and_keep(self) -> Paused:
        """Read all pauses, and renew their lifetime, in one trip."""
        rows: dict[bytes, bytes] = {}
        with only_advice(self._keys.paused), self._redis.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._keys.paused)
            pipe.expire(self._keys.paused, TTL_SECONDS)
            rows, _ = pipe.execute()
        return _paused(rows)

    def pause(self, agent: str, tool: str | None, reason: str, by: str) -> Pause:
        """Pause an agent or a tool; this replaces the reason of an earlier pause.

        Raises:
            RecordDamagedError: another program has overwritten the key.
        """
        pause = Pause(agent=agent, tool=tool, reason=reason, by=by, at=int(redis_time(self._redis)))
        with naming(self._keys.paused), self._redis.pipeline() as pipe:
            pipe.hset(self._keys.paused, field_of(agent, tool), serializer.encode(pause.to_wire()))
            pipe.expire(self._keys.paused, TTL_SECONDS)
            pipe.execute()
        return pause

    def resume(self, agent: str, tool: str | None) -> bool:
        """End a pause; return whether there was one. Workers admit the calls that waited for it, in order.

        Raises:
            RecordDamagedError: another program has overwritten a key.
        """
        found = field_of(agent, tool)
        with naming(self._keys.paused, self._keys.limits), self._redis.pipeline() as pipe:
            pipe.hdel(self._keys.paused, found)
            # the next look at the limits is due at once
            pipe.zadd(self._keys.limits, {f"{LIMIT_PREFIX}{found}": 0}, xx=True)
            was_paused, _ = pipe.execute()
        return bool(was_paused)


def _paused(rows: Mapping[bytes, bytes]) -> Paused:
    found = {name.decode(errors="replace"): row for name, row in rows.items()}
    read = {name: read_row(Pause, row, f"the pause of {name!r}") for name, row in sorted(found.items())}
    return Paused({name: one for name, one in read.items() if one is not None})

"""The table of instances: which there are, who made them, where they work, and when they were last used.

An instance is an (agent, instanceKey); those of one key in a workspace share a home. It comes to be when
somebody spawns it, or when a worker first runs something for it. Methods raise
``redis.exceptions.RedisError`` as it comes.
"""

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from broker_config.keys import Keys
from broker_config.scripts import run_errand, run_errands
from goondan_tasks.agents.homes import Home, encoded
from goondan_tasks.agents.instance_errands import InstanceErrands, guest_field
from goondan_tasks.agents.instance_record import InstanceRecord, Tenant

#: how many records are read in one trip
BATCH = 500


@dataclass(frozen=True, slots=True)
class Opened:
    """What a worker is told of an instance that it wants to work in."""

    #: its workdir, a path from the workspace's instances; ``None`` means the home's own
    cwd: str | None = None
    #: under these tokens its files may stand aside: deletions that were left half-done
    aside: tuple[str, ...] = ()
    #: a deletion has it for so many seconds at most, and it is not open
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Spawned:
    """What became of a wish for an instance; see :class:`Opened`."""

    is_new: bool
    cwd: str | None = None
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """How a deletion got a home: ``held``, ``busy`` (another one has it) or ``used`` (too lately)."""

    word: str
    #: Redis time in ms
    now: int
    aside: tuple[str, ...] = ()


class Instances:
    """The instances of one namespace."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._errands = InstanceErrands(keys)

    def open(self, agent: str, instance_key: str, *, workspace: str, root_id: str) -> Opened:
        """Register that an agent is about to work in an instance, below the state root of that id."""
        home = Home.of(workspace, instance_key)
        word, *rest = run_errand(
            self._redis,
            self._errands.open(home, agent, workspace=workspace, instance_key=instance_key, root_id=root_id),
        )
        if word == b"held":
            return Opened(held_seconds=rest[0] / 1000)
        return Opened(rest[0].decode() or None, tuple(rest[1].decode().split()))

    def look(self, agent: str, instance_key: str, *, workspace: str) -> Opened:
        """Return what :meth:`open` would, and register nothing: a full Redis refuses that."""
        cwd = self._redis.hget(self._keys.instance(str(Home.of(workspace, instance_key))), f"cwd:{agent}")
        return Opened(None if cwd is None else cast("bytes", cwd).decode())

    def spawn(
        self,
        target: str,
        instance_key: str,
        *,
        workspace: str,
        owner: tuple[str, str],
        cwd: str | None = None,
        request: str | None = None,
    ) -> Spawned:
        """Make an instance of ``target``, or take the one that there is, which keeps its ``cwd``.

        Of many who ask at once, one is told that it is new. The same ``request`` is told the same again.
        """
        home = Home.of(workspace, instance_key)
        word, value = run_errand(
            self._redis,
            self._errands.spawn(
                home,
                target,
                workspace=workspace,
                instance_key=instance_key,
                owner=owner,
                cwd=cwd,
                request=request or uuid.uuid4().hex,
            ),
        )
        if word == b"held":
            return Spawned(is_new=False, held_seconds=value / 1000)
        return Spawned(word == b"spawned", value.decode() or None)

    def records(self, homes: Iterable[Home] | None = None) -> Iterator[InstanceRecord]:
        """Yield instances, by default all of them, the longest unused first."""
        wanted = iter(self._homes() if homes is None else homes)
        while batch := list(itertools.islice(wanted, BATCH)):
            with self._redis.pipeline(transaction=False) as pipe:
                for home in batch:
                    pipe.hgetall(self._keys.instance(str(home)))
                rows = pipe.execute()
            yield from map(InstanceRecord.from_redis, batch, rows)

    def unused_since(self, moment: float) -> list[Home]:
        """Return the homes that were last used at ``moment`` (ms) or before."""
        return _homes_of(self._redis.zrange(self._keys.instances, "-inf", moment, byscore=True))

    def homes_of(self, instance_key: str) -> list[Home]:
        """Return the homes of one key, in every workspace."""
        pattern = f"*/{encoded(instance_key)}"
        return sorted(
            Home.parse(member.decode())
            for member, _ in self._redis.zscan_iter(self._keys.instances, match=pattern, count=BATCH)
        )

    def touch(self, homes: Sequence[Home]) -> None:
        """Note that instances are in use now."""
        if homes:
            scores = dict.fromkeys(map(str, homes), self.now())
            self._redis.zadd(self._keys.instances, scores, xx=True)

    def now(self) -> int:
        """Return Redis time in ms."""
        seconds, micros = self._redis.time()
        return seconds * 1000 + micros // 1000

    def hold(self, homes: Sequence[Home], token: str, unused_since: float | None = None) -> list[Hold]:
        """Hold homes, one at least, for a deletion: nobody opens them until it lets go, or has left them.

        With ``unused_since``, only those not used after that (ms).
        """
        errands = [self._errands.hold(home, token, unused_since) for home in homes]
        return [_hold(answer) for answer in run_errands(self._redis, errands)]

    def forget(self, record: InstanceRecord, token: str) -> bool:
        """Remove an instance that is held; false if the hold was lost."""
        if not run_errand(self._redis, self._errands.let_go(record.home, token, forget=True)):
            return False
        self._take_leave(record.home, record.tenants)
        return True

    def let_go(self, homes: Sequence[Home], token: str) -> None:
        """Let homes be as they were."""
        if homes:
            errands = [self._errands.let_go(home, token, forget=False) for home in homes]
            run_errands(self._redis, errands)

    def leave(self, home: Home, tenant: Tenant) -> bool:
        """Remove one agent's part; false if it has none, or nobody else has, or a deletion holds the home."""
        if not run_errand(self._redis, self._errands.leave(home, tenant.agent)):
            return False
        self._take_leave(home, [tenant])
        return True

    def settled(self, home: Home, token: str) -> None:
        """Note that what a half-done deletion left is dealt with."""
        run_errand(self._redis, self._errands.settled(home, token))

    def _take_leave(self, home: Home, tenants: Iterable[Tenant]) -> None:
        """Take the guests that they were off the lists of their hosts; a guest that is gone harms nobody."""
        for tenant in tenants:
            if tenant.cwd is not None:
                host = self._keys.instance(str(home.beside(tenant.cwd)))
                self._redis.hdel(host, guest_field(home, tenant.agent))

    def _homes(self) -> list[Home]:
        return _homes_of(self._redis.zrange(self._keys.instances, 0, -1))


def _homes_of(members: Any) -> list[Home]:
    return [Home.parse(member.decode()) for member in members]


def _hold(answer: Sequence[Any]) -> Hold:
    word, now, *aside = answer
    return Hold(word.decode(), now, tuple(aside[0].decode().split()) if aside else ())

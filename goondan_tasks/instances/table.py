"""The table of instances: which exist, who spawned them, where they work, and when they were last used.

An instance is an (agent, instanceKey), created when it is spawned or when a worker first serves it. The
instances of one key in a workspace share a directory: ``<state
root>/workspaces/<workspace>/instances/<instance>``. They work in ``workspace`` inside it, unless they were
spawned with another directory. Sources: 001 §12.5 rule 1, DESIGN §6.
"""

import hashlib
import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Self, cast

from redis import Redis

from broker_config import serializer
from broker_config.connections import redis_time, rows_of
from broker_config.keys import Keys
from broker_config.scripts import Script, ScriptCall, run_script_calls
from goondan_tasks.authoring.tool_api import SpawnedAgentInfo
from goondan_tasks.contract.messages import LONGEST_RUN_SECONDS, iso_time
from goondan_tasks.contract.names import OUTSIDE
from goondan_tasks.contract.table_rows import naming, only_advice, report_row

#: times from here on, in ms, are damage
LATEST_MS = 10**14

#: a directory name may take 255 bytes; longer encodings end in a digest instead
LONGEST_NAME = 150

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
#: matches a workspace and an instance as :func:`encoded` writes them
_is_directory = re.compile(r"[a-z0-9_%A-F-]+/[a-z0-9_%A-F-]+").fullmatch


def encoded(key: str) -> str:
    """Encode ``key`` as a directory name: ``a-z 0-9 - _`` stay, every other byte becomes ``%XX``.

    Different keys get different names, also on case-insensitive file systems. No name begins with a dot.
    """
    data = key.encode("utf-8", "backslashreplace")
    name = "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in data) or "%"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 66]}%-{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True, slots=True, order=True)
class InstanceDirectory:
    """An instance's directory: the directory names of its workspace and of its own."""

    workspace: str
    name: str

    @classmethod
    def of(cls, workspace: str, instance_key: str) -> Self:
        """Return the directory of an instance."""
        return cls(encoded(workspace), encoded(instance_key))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what :meth:`__str__` wrote.

        Raises:
            ValueError: it is something else, such as a path that leads elsewhere.
        """
        if not _is_directory(text):
            raise ValueError(f"{text!r} names no directory of an instance")
        workspace, _, name = text.partition("/")
        return cls(workspace, name)

    def __str__(self) -> str:
        return f"{self.workspace}/{self.name}"

    def may_contain(self, part: str) -> bool:
        """Return whether its key may contain a text, given as :func:`encoded` writes it."""
        return part in self.name or len(self.name) >= LONGEST_NAME or len(part) >= LONGEST_NAME

    def beside(self, cwd: str) -> Self:
        """Return the directory in this workspace that contains ``cwd``, a path from the instances' parent."""
        return type(self)(self.workspace, cwd.partition("/")[0])


def instances_directory(state_root: Path, workspace: str) -> Path:
    """Return the parent of the instances' directories, given the workspace's directory name."""
    return state_root / "workspaces" / workspace / "instances"


class InstanceInfo(SpawnedAgentInfo):
    """An instance of an agent, as ``goondan instances --json`` prints it.

    ``cwd`` is a path from the parent of the workspace's instances, on any machine.
    """

    last_used_at: str
    workspace: str


@dataclass(frozen=True, slots=True)
class AgentPart:
    """An agent's part of an instance. Times are milliseconds, Redis time."""

    agent: str
    created_at: int
    last_used_at: int
    #: the agent that spawned it, and that agent's instance
    owner: tuple[str, str] | None = None
    #: its workdir, if that is not in its own directory: a path from the parent of the instances
    cwd: str | None = None
    #: id of the state root in which a worker last opened it
    root_id: str | None = None


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """An instance: its directory, and the agents that work under its key."""

    directory: InstanceDirectory
    #: ``None`` for a directory that no call has used yet
    key: str | None = None
    workspace: str = ""
    parts: tuple[AgentPart, ...] = ()
    #: instances that were spawned with a workdir in this directory: their own directories, and their agents
    guests: tuple[tuple[InstanceDirectory, str], ...] = ()
    #: tokens of the deletions that hold the directory or were interrupted
    tokens: frozenset[str] = field(default=frozenset())

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents, sorted."""
        return tuple(part.agent for part in self.parts)

    @property
    def last_used_at(self) -> int:
        """When any of its agents used it last; 0 if none did."""
        return max((part.last_used_at for part in self.parts), default=0)

    def part(self, agent: str) -> AgentPart | None:
        """Return an agent's part."""
        return next((part for part in self.parts if part.agent == agent), None)

    def infos(self) -> list[InstanceInfo]:
        """Describe the instance for each of its agents; without an owner it is the client's."""
        unowned = (OUTSIDE, self.key or "")
        return [
            InstanceInfo(
                target=part.agent,
                instance_key=self.key or "",
                owner_agent=(part.owner or unowned)[0],
                owner_instance_key=(part.owner or unowned)[1],
                created_at=iso_time(part.created_at),
                last_used_at=iso_time(part.last_used_at),
                cwd=part.cwd,
                workspace=self.workspace,
            )
            for part in self.parts
        ]

    @classmethod
    def from_redis(cls, directory: InstanceDirectory, fields: Mapping[bytes, bytes]) -> Self:
        """Read the hash of one instance (``directory.lua`` says what is in it).

        Raises:
            ValueError: it is damaged.
        """
        texts = {name.decode(): value.decode() for name, value in fields.items()}
        parts = [name.partition(":") for name in texts]
        agents = sorted(agent for field, _, agent in parts if field == "created")
        tokens = texts.get("aside", "").split() + texts.get("retiring", "").split()[:1]
        return cls(
            directory=directory,
            key=texts.get("key"),
            workspace=texts.get("workspace", ""),
            parts=tuple(_part(agent, texts) for agent in agents),
            guests=tuple(sorted(_guest_of(directory, name) for field, _, name in parts if field == "guest")),
            tokens=frozenset(tokens),
        )


def _part(agent: str, texts: Mapping[str, str]) -> AgentPart:
    owner = texts.get(f"owner:{agent}")
    return AgentPart(
        agent=agent,
        created_at=_time(texts[f"created:{agent}"]),
        last_used_at=_time(texts.get(f"used:{agent}", "0")),
        owner=None if owner is None else _owner(serializer.decode(owner)),
        cwd=texts.get(f"cwd:{agent}"),
        root_id=texts.get(f"root:{agent}"),
    )


def _time(text: str) -> int:
    time = int(text)
    if not 0 <= time < LATEST_MS:
        raise ValueError(f"{time} is no time")
    return time


def _owner(value: Any) -> tuple[str, str]:
    match value:
        case [str(agent), str(instance_key)]:
            return agent, instance_key
    raise ValueError(f"{value!r} is no owner")


def _guest_of(host: InstanceDirectory, text: str) -> tuple[InstanceDirectory, str]:
    name, _, agent = text.rpartition("@")
    return InstanceDirectory.parse(f"{host.workspace}/{name}"), agent


#: an instance that is unused for this long is dropped from the table; its files stay
INSTANCE_TTL_SECONDS = LONGEST_RUN_SECONDS

#: how long a deletion holds a directory; after that it counts as interrupted
HOLD_SECONDS = 30.0


def _guest_field(directory: InstanceDirectory, agent: str) -> str:
    return f"guest:{directory.name}@{agent}"


#: how many records one round trip reads
BATCH = 500


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to a worker that opens an instance."""

    #: its workdir, a path from the parent of the instances; ``None``: inside its own directory
    cwd: str | None = None
    #: tokens of interrupted deletions, which may have set its files aside
    aside: tuple[str, ...] = ()
    #: more than 0 if it was not opened: a deletion holds it for at most this long
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Spawned:
    """The answer to a spawn; see :class:`Opened`."""

    is_new: bool
    cwd: str | None = None
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """The answer to a hold: ``held``, ``busy`` (another deletion holds it) or ``used`` (too recently)."""

    word: str
    #: Redis time in ms
    now: int
    aside: tuple[str, ...] = ()


class Instances:
    """The table of instances of one namespace. Each change is one script.

    All methods raise ``redis.exceptions.RedisError`` if Redis cannot be reached. :meth:`open`, :meth:`look`
    and :meth:`spawn` raise RecordDamagedError if another program has written the instance's key.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        folder = files("goondan_tasks.instances") / "scripts"
        self._open, self._spawn, self._hold = (
            Script.read(folder, "directory", name) for name in ("open", "spawn", "hold")
        )
        self._leave, self._let_go, self._settled = (
            Script.read(folder, name) for name in ("leave", "let_go", "settled")
        )

    def open(self, agent: str, instance_key: str, *, workspace: str, root_id: str) -> Opened:
        """Register that an agent is about to work in an instance, below the state root of that id."""
        directory = InstanceDirectory.of(workspace, instance_key)
        arguments = (agent, workspace, instance_key, root_id, INSTANCE_TTL_SECONDS)
        with naming(self._key(directory)):
            word, *rest = self._script_call(self._open, directory, *arguments).run(self._redis)
        if word == b"held":
            return Opened(held_seconds=rest[0] / 1000)
        return Opened(rest[0].decode() or None, tuple(rest[1].decode().split()))

    def look(self, agent: str, instance_key: str, *, workspace: str) -> Opened:
        """Return what :meth:`open` would, without registering anything, so that it works in a full Redis."""
        key = self._key(InstanceDirectory.of(workspace, instance_key))
        with naming(key):
            cwd = self._redis.hget(key, f"cwd:{agent}")
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
        """Create an instance of ``target``, or return the existing one, which keeps its ``cwd``.

        Of concurrent callers, one gets ``is_new``. The same ``request`` gets the same answer again.
        """
        directory = InstanceDirectory.of(workspace, instance_key)
        host = directory if cwd is None else directory.beside(cwd)
        request = request or uuid.uuid4().hex
        place = (serializer.encode(owner), cwd or "", _guest_field(directory, target))
        arguments = (target, workspace, instance_key, *place, request, INSTANCE_TTL_SECONDS)
        script_call = self._script_call(self._spawn, directory, *arguments, host=host)
        with naming(*dict.fromkeys(map(self._key, (directory, host)))):
            word, value = script_call.run(self._redis)
        if word == b"held":
            return Spawned(is_new=False, held_seconds=value / 1000)
        return Spawned(word == b"spawned", value.decode() or None)

    def records(self, directories: Iterable[InstanceDirectory] | None = None) -> Iterator[InstanceRecord]:
        """Yield instances, by default all of them, the longest unused first.

        A damaged one is logged and left out, so that its files stay.
        """
        if directories is None:
            directories = self.directories()
        wanted = iter(directories)
        while batch := list(itertools.islice(wanted, BATCH)):
            with self._redis.pipeline(transaction=False) as pipe:
                for directory in batch:
                    pipe.hgetall(self._key(directory))
                rows = rows_of(pipe)
            for directory, row in zip(batch, rows, strict=True):
                record = None if row is None else self._readable(directory, row)
                if record is not None:
                    yield record

    def _readable(self, directory: InstanceDirectory, row: Mapping[bytes, bytes]) -> InstanceRecord | None:
        try:
            return InstanceRecord.from_redis(directory, row)
        except ValueError as error:
            report_row(f"the key {self._key(directory)!r}", str(error))
            return None

    def directories(self) -> list[InstanceDirectory]:
        """Return the directories of all instances, the longest unused first."""
        return self._listed_between("-inf", "+inf")

    def unused_since(self, moment: float) -> list[InstanceDirectory]:
        """Return the directories that were last used at ``moment`` (ms) or before."""
        return self._listed_between("-inf", moment)

    def _listed_between(self, first: str, last: float | str) -> list[InstanceDirectory]:
        with naming(self._keys.instances):
            members = self._redis.zrange(
                self._keys.instances, cast("int", first), cast("int", last), byscore=True
            )
        return _directories_of(cast("list[bytes]", members))

    def directories_of(self, instance_key: str) -> list[InstanceDirectory]:
        """Return the directories of one key, in every workspace."""
        return self._matching(f"*/{encoded(instance_key)}")

    def directories_in(self, workspace: str) -> list[InstanceDirectory]:
        """Return the directories of a workspace."""
        return self._matching(f"{encoded(workspace)}/*")

    def _matching(self, pattern: str) -> list[InstanceDirectory]:
        found = self._redis.zscan_iter(self._keys.instances, match=pattern, count=BATCH)
        return sorted(_directories_of(member for member, _ in found))

    def touch(self, directories: Sequence[InstanceDirectory]) -> None:
        """Record that instances are in use now."""
        if directories:
            scores = dict.fromkeys(map(str, directories), self.now())
            with only_advice(self._keys.instances):
                self._redis.zadd(self._keys.instances, scores, xx=True)

    def now(self) -> int:
        """Return Redis time in ms."""
        return int(redis_time(self._redis))

    def hold(
        self, directories: Sequence[InstanceDirectory], token: str, unused_since: float | None = None
    ) -> list[Hold]:
        """Hold one or more directories for a deletion: until it ends or the hold expires, none is opened.

        With ``unused_since``, only those not used after that (ms).
        """
        since = "" if unused_since is None else unused_since
        arguments = (token, round(HOLD_SECONDS * 1000), since, INSTANCE_TTL_SECONDS)
        script_calls = [self._script_call(self._hold, directory, *arguments) for directory in directories]
        return [
            Hold(word.decode(), now, tuple(aside[0].decode().split()) if aside else ())
            for word, now, *aside in run_script_calls(self._redis, script_calls)
        ]

    def forget(self, record: InstanceRecord, token: str) -> bool:
        """Remove a held instance; false if the hold was lost."""
        if not self._script_call(self._let_go, record.directory, token, 1).run(self._redis):
            return False
        self._remove_guests(record.directory, record.parts)
        return True

    def let_go(self, directories: Sequence[InstanceDirectory], token: str) -> None:
        """End holds without changing the instances."""
        if directories:
            run_script_calls(
                self._redis,
                [self._script_call(self._let_go, directory, token, 0) for directory in directories],
            )

    def leave(self, directory: InstanceDirectory, part: AgentPart, token: str) -> bool:
        """Remove one agent's part of a held instance, and end the hold.

        False if the agent has none, if no other agent has one, or if the hold was lost.
        """
        if not self._script_call(self._leave, directory, part.agent, token).run(self._redis):
            return False
        self._remove_guests(directory, [part])
        return True

    def settled(self, directory: InstanceDirectory, token: str) -> None:
        """Record that the files of an interrupted deletion have been restored."""
        ScriptCall(self._settled, [self._key(directory)], [token]).run(self._redis)

    def _remove_guests(self, directory: InstanceDirectory, parts: Iterable[AgentPart]) -> None:
        """Remove the parts' guest entries in other directories; a stale entry is harmless."""
        for part in parts:
            if part.cwd is not None:
                self._redis.hdel(self._key(directory.beside(part.cwd)), _guest_field(directory, part.agent))

    def _script_call(
        self,
        script: Script,
        directory: InstanceDirectory,
        *arguments: Any,
        host: InstanceDirectory | None = None,
    ) -> ScriptCall[Any]:
        keys = [self._keys.instances, self._key(directory), *([] if host is None else [self._key(host)])]
        return ScriptCall(script, keys, [str(directory), *arguments])

    def _key(self, directory: InstanceDirectory) -> str:
        return self._keys.instance(str(directory))


def _directories_of(members: Iterable[bytes]) -> list[InstanceDirectory]:
    return [directory for member in members if (directory := _listed(member)) is not None]


def _listed(member: bytes) -> InstanceDirectory | None:
    try:
        return InstanceDirectory.parse(member.decode())
    except ValueError as error:
        report_row("a member of the index of instances", str(error))
        return None

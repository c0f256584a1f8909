"""Steps and Turns in Redis: written where a Step opens, read by its producer and by the calls' workers."""

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import cast

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.bundle.catalog import CatalogItem, ToolCatalog
from goondan_tasks.messages import JsonObject, ToolCall
from goondan_tasks.steps.history import TurnHistory, read_history
from goondan_tasks.steps.record import LeftTools, StepRecord, TurnEntry

#: Step ids are identities of calls; what looks otherwise is none, and Redis is not asked
_STEP_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: so many lines of one Turn's record are kept
LONGEST_RECORD = 1000

#: how many catalogs a process keeps in mind: Steps in a row mostly have the same
MOST_CATALOGS = 64

_NO_TOOLS = LeftTools()

#: begins the fields of a Step that name the tools which were unregistered in it
_UNREGISTERED = "unregistered:"

#: how long an instance may rest until it is not told any more that the bundle has changed meanwhile
REVISION_TTL_SECONDS = 7 * 86_400


@dataclass(frozen=True, slots=True)
class KeptStep:
    """A Step with its catalog, and the time by ``time.monotonic`` until which it is kept."""

    record: StepRecord
    catalog: ToolCatalog
    until: float


class StepStore:
    """The Steps of one namespace; each is kept for ``ttl_seconds``.

    Its methods raise ``redis.exceptions.RedisError`` as it comes, and ``ValueError`` if what is kept
    cannot be read, or is of a newer version.
    """

    def __init__(
        self, redis: Redis, keys: Keys, ttl_seconds: int, *, remembers_revisions: bool = False
    ) -> None:
        self._redis = redis
        self._remembers_revisions = remembers_revisions
        self._keys = keys
        self._ttl_seconds = ttl_seconds
        self._catalogs: OrderedDict[str, ToolCatalog] = OrderedDict()
        self._lock = threading.Lock()

    def keep(
        self,
        record: StepRecord,
        catalog: bytes,
        *,
        message: JsonObject | None,
        left: LeftTools = _NO_TOOLS,
    ) -> None:
        """Keep a Step that has opened, with its catalog's JSON, whose digest the record has.

        ``left`` is what the next Step of the Turn begins with.
        """
        fields = {"step": serializer.encode(record.to_wire())}
        if message is not None:
            fields["message"] = serializer.encode(message)
        if left.registered:
            fields["registered"] = serializer.encode([tool.to_wire() for tool in left.registered])
        fields |= {f"{_UNREGISTERED}{name}": b"" for name in left.unregistered}
        key, turn = self._keys.step(record.id), self._turn_key(record)
        entry = TurnEntry(step_id=record.id, index=record.index, message=message)
        with self._redis.pipeline() as pipe:
            pipe.set(self._keys.catalog(record.catalog), catalog, ex=self._ttl_seconds)
            pipe.hset(key, mapping=fields)  # type: ignore[arg-type]
            pipe.expire(key, self._ttl_seconds)
            pipe.rpush(turn, serializer.encode(entry.to_wire()))
            pipe.ltrim(turn, -LONGEST_RECORD, -1)
            pipe.expire(turn, self._ttl_seconds)
            if self._remembers_revisions and record.bundle_ref is not None:
                last = self._keys.step_revision(record.agent_name, record.instance_key)
                pipe.set(last, record.bundle_ref, ex=max(self._ttl_seconds, REVISION_TTL_SECONDS))
            pipe.execute()

    def last_revision(self, agent: str, instance_key: str) -> str | None:
        """Return the revision that the last Step of an instance had, in a store that remembers it."""
        stored = cast("bytes | None", self._redis.get(self._keys.step_revision(agent, instance_key)))
        return None if stored is None else stored.decode()

    def read(self, step_id: str) -> KeptStep | None:
        """Return a Step, unless it is unknown or has expired."""
        if not _STEP_ID.fullmatch(step_id):
            return None
        key, asked_at = self._keys.step(step_id), monotonic()
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hget(key, "step")
            pipe.pttl(key)
            stored, left = pipe.execute()
        if stored is None:
            return None
        record = StepRecord.from_wire(serializer.decode(stored))
        catalog = self._catalog(record.catalog)
        return None if catalog is None else KeptStep(record, catalog, asked_at + left / 1000)

    def message(self, step_id: str) -> JsonObject | None:
        """Return what a Step began with."""
        stored = cast("bytes | None", self._redis.hget(self._keys.step(step_id), "message"))
        return None if stored is None else cast("JsonObject", serializer.decode(stored))

    def left_by(self, step_id: str, call: ToolCall, *, bundle_ref: str | None = None) -> LeftTools:
        """Return the tools with which the Step after this one, of the call's Turn, begins.

        With another revision of the bundle it begins with none: that revision registers its own.
        """
        if not _STEP_ID.fullmatch(step_id):
            return _NO_TOOLS
        key = self._keys.step(step_id)
        with self._redis.pipeline() as pipe:
            pipe.hmget(key, ["step", "registered"])
            pipe.hkeys(key)
            (step, registered), fields = pipe.execute()
        record = None if step is None else StepRecord.from_wire(serializer.decode(step))
        if record is None or not record.is_of(call) or record.bundle_ref != bundle_ref:
            return _NO_TOOLS
        names = (field.decode() for field in fields)
        return LeftTools(
            registered=() if registered is None else serializer.decode(registered),
            unregistered=sorted(
                name.removeprefix(_UNREGISTERED) for name in names if name.startswith(_UNREGISTERED)
            ),
        )

    def note_unregistered(self, step_id: str, names: Iterable[str]) -> None:
        """Note tools that were unregistered in a Step since it opened."""
        key, fields = self._keys.step(step_id), {f"{_UNREGISTERED}{name}": b"" for name in names}
        with self._redis.pipeline() as pipe:
            pipe.hset(key, mapping=fields)  # type: ignore[arg-type]
            pipe.expire(key, self._ttl_seconds)
            pipe.execute()

    def note_calls(self, record: StepRecord, call_ids: Sequence[str]) -> None:
        """Put the calls of a Step into the record of its Turn."""
        entry = TurnEntry(step_id=record.id, index=record.index, call_ids=tuple(call_ids))
        turn = self._turn_key(record)
        with self._redis.pipeline() as pipe:
            pipe.rpush(turn, serializer.encode(entry.to_wire()))
            pipe.ltrim(turn, -LONGEST_RECORD, -1)
            pipe.expire(turn, self._ttl_seconds)
            pipe.execute()

    def turn(self, agent: str, instance_key: str, turn_id: str) -> list[TurnEntry]:
        """Return the record of a Turn, in the order in which things happened."""
        rows = cast("list[bytes]", self._redis.lrange(self._keys.turn(agent, instance_key, turn_id), 0, -1))
        return [TurnEntry.from_wire(serializer.decode(row)) for row in rows]

    def history(self, call: ToolCall) -> TurnHistory:
        """Return what has come of the Turn that a call belongs to."""
        return read_history(self._redis, self._keys, call)

    def _catalog(self, digest: str) -> ToolCatalog | None:
        with self._lock:
            known = self._catalogs.get(digest)
            if known is not None:
                self._catalogs.move_to_end(digest)
                return known
        stored = cast("bytes | None", self._redis.get(self._keys.catalog(digest)))
        if stored is None:
            return None
        catalog = ToolCatalog(tuple(CatalogItem.from_wire(item) for item in serializer.decode(stored)))
        with self._lock:
            self._catalogs[digest] = catalog
            if len(self._catalogs) > MOST_CATALOGS:
                self._catalogs.popitem(last=False)
        return catalog

    def _turn_key(self, record: StepRecord) -> str:
        return self._keys.turn(record.agent_name, record.instance_key, record.turn_id)


def digest_of_catalog(catalog: bytes) -> str:
    """Return the name under which Steps share a catalog, given its JSON."""
    return hashlib.sha256(catalog).hexdigest()

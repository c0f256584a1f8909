"""The Steps of one namespace in Redis."""

import hashlib
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.resources import files
from time import monotonic
from typing import Any, TypeVar, cast

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from broker_config import serializer
from broker_config.connections import answers_of
from broker_config.keys import Keys
from broker_config.scripts import Script, ScriptCall, ScriptConnection
from goondan_tasks.contract.catalog import CatalogItem, ToolCatalog
from goondan_tasks.contract.errors import RecordDamagedError
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.table_rows import naming, only_advice
from goondan_tasks.history.history import TurnHistory, entries_of, read_history
from goondan_tasks.history.records import KeptStep, LeftTools, StepRecord, TurnEntry

_STEP_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: how many catalogs a process caches: consecutive Steps mostly have the same one
MOST_CATALOGS = 64
#: prefix of a Step's fields that name the tools it has unregistered
_UNREGISTERED = "unregistered:"
#: how long the revision of an instance's last Step is kept, so that the next Step can tell that it has
#: changed
REVISION_TTL_SECONDS = 7 * 86_400

_NO_TOOLS = LeftTools()

T = TypeVar("T")


class StepStore:
    """The Steps of one namespace; each is kept for ``ttl_seconds``.

    All methods raise ``redis.exceptions.RedisError`` if Redis cannot be reached, RecordDamagedError if a key
    has another type, and ``ValueError`` if a record cannot be read or has a newer version.
    """

    def __init__(
        self, redis: Redis, keys: Keys, ttl_seconds: int, *, remembers_revisions: bool = False
    ) -> None:
        self._redis = redis
        self._remembers_revisions = remembers_revisions
        self._keys = keys
        self._scripts = ScriptConnection(redis)
        of_calls = files("goondan_tasks.ledger") / "scripts"
        self._keep_step = Script.read(of_calls, "turn_lines", "keeping", "keep_step")
        self._note_calls = Script.read(of_calls, "turn_lines", "note_calls")
        self._left_tools = Script.read(files("goondan_tasks.history") / "scripts", "left_tools")
        self.ttl_seconds = ttl_seconds
        self._catalogs: OrderedDict[str, ToolCatalog] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, script_call: ScriptCall[T]) -> T:
        """Run a script call of this store."""
        with naming(str(script_call.keys[0])):
            [answer] = self._scripts.run([script_call])
        return cast("T", answer)

    def keeping(
        self, record: StepRecord, catalog: bytes, *, message: JsonObject | None, left: LeftTools = _NO_TOOLS
    ) -> ScriptCall[bool]:
        """Return what stores an open Step with its catalog as JSON; the record has the catalog's digest.

        ``left`` is for the next Step of the Turn. A Step that was opened before stays as it is, because its
        producer may have read it; the answer is whether it is this one. Two runs of one call open the same
        Step if the first was taken for dead.
        """
        fields = {"step": serializer.encode(record.to_wire())}
        if message is not None:
            fields["message"] = serializer.encode(message)
        if left.registered:
            fields["registered"] = serializer.encode([tool.to_wire() for tool in left.registered])
        fields |= {f"{_UNREGISTERED}{name}": b"" for name in left.unregistered}
        key, turn = self._keys.step(record.id), self._turn_of(record)
        keys, revision = [key, self._keys.catalog(record.catalog), turn], ("", 0)
        if self._remembers_revisions and record.bundle_ref is not None:
            keys.append(self._keys.step_revision(record.agent_name, record.instance_key))
            revision = (record.bundle_ref, max(self.ttl_seconds, REVISION_TTL_SECONDS))
        line = _line(record, message=message)
        arguments = [self.ttl_seconds, catalog, line, *revision, *itertools.chain(*fields.items())]

        def is_kept(answer: Any) -> bool:
            [known, fault] = answer
            _note_fault(turn, fault)
            return known in (None, fields["step"])

        return ScriptCall(self._keep_step, keys, arguments, is_kept)

    def last_revision(self, agent: str, instance_key: str) -> str | None:
        """Return the revision of an instance's last Step, if this store keeps revisions."""
        stored, key = None, self._keys.step_revision(agent, instance_key)
        with only_advice(key):
            stored = cast("bytes | None", self._redis.get(key))
        return None if stored is None else stored.decode()

    def read(self, step_id: str) -> KeptStep | None:
        """Return a Step, or ``None`` if it is unknown or has expired."""
        [read] = self.read_all([step_id])
        if isinstance(read, Exception):
            raise read
        return read

    def read_all(self, step_ids: Sequence[str]) -> "list[KeptStep | Exception | None]":
        """Return Steps as :meth:`read` does; a record that cannot be read has the error in its place."""
        asked, asked_at = [step_id for step_id in step_ids if _is_step_id(step_id)], monotonic()
        with self._redis.pipeline(transaction=False) as pipe:
            for step_id in asked:
                pipe.hget(self._keys.step(step_id), "step")
                pipe.pttl(self._keys.step(step_id))
            rows = iter(answers_of(pipe))
        read = {step_id: self._kept(step_id, next(rows), next(rows), asked_at) for step_id in asked}
        return [read.get(step_id) for step_id in step_ids]

    def _kept(self, step_id: str, stored: Any, left: Any, asked_at: float) -> "KeptStep | Exception | None":
        try:
            with naming(self._keys.step(step_id)):
                _require_answers([stored])
            if stored is None:
                return None
            record = StepRecord.from_wire(serializer.decode(stored))
            catalog = self._catalog(record.catalog)
        except (ValueError, RecordDamagedError) as error:
            return error
        return None if catalog is None else KeptStep(record, catalog, asked_at + left / 1000)

    def with_catalog(self, record: StepRecord) -> KeptStep | None:
        """Return a Step that has just opened with its catalog, or ``None`` if that has expired."""
        opened_at, catalog = monotonic(), self._catalog(record.catalog)
        return None if catalog is None else KeptStep(record, catalog, opened_at + self.ttl_seconds)

    def message(self, step_id: str) -> JsonObject | None:
        """Return what a Step began with."""
        key = self._keys.step(step_id)
        with naming(key):
            stored = cast("bytes | None", self._redis.hget(key, "message"))
        return None if stored is None else cast("JsonObject", serializer.decode(stored))

    def left_by(self, step_id: str, call: ToolCall, *, bundle_ref: str | None = None) -> LeftTools:
        """Ask what a Step leaves to the next Step of the call's Turn; see :meth:`left`."""
        asked = self.asking_left(step_id)
        return _NO_TOOLS if asked is None else self.left(self.run(asked), call, bundle_ref=bundle_ref)

    def asking_left(self, step_id: str) -> ScriptCall[Any] | None:
        """Return what asks for the tools that a Step leaves, and is answered with what :meth:`left` takes."""
        return ScriptCall(self._left_tools, [self._keys.step(step_id)], []) if _is_step_id(step_id) else None

    def left(self, answer: Any, call: ToolCall, *, bundle_ref: str | None = None) -> LeftTools:
        """Return the dynamic tools that a Step leaves to the next Step of the call's Turn.

        There are none if the bundle's revision has changed: each revision registers its own tools.
        """
        [step, registered, fields] = answer
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
        """Record tools that were unregistered after the Step had opened."""
        key, fields = self._keys.step(step_id), {f"{_UNREGISTERED}{name}": b"" for name in names}
        with naming(key), self._redis.pipeline() as pipe:
            pipe.hset(key, mapping=fields)  # type: ignore[arg-type]
            pipe.expire(key, self.ttl_seconds)
            pipe.execute()

    def noting(self, record: StepRecord, call_ids: Sequence[str]) -> ScriptCall[None]:
        """Return what adds calls of a Step to its Turn's record; if only that is damaged, it is logged."""
        turn, line = self._turn_of(record), _line(record, call_ids=tuple(call_ids))
        return ScriptCall(self._note_calls, [turn], [self.ttl_seconds, line], partial(_note_fault, turn))

    def turn(self, agent: str, instance_key: str, turn_id: str) -> list[TurnEntry]:
        key = self._keys.turn(agent, instance_key, turn_id)
        with naming(key):
            return entries_of(cast("list[bytes]", self._redis.lrange(key, 0, -1)))

    def history(self, call: ToolCall) -> TurnHistory:
        with naming(self._keys.turn(call.agent_name, call.instance_key, call.turn_id)):
            return read_history(self._redis, self._keys, call)

    def _catalog(self, digest: str) -> ToolCatalog | None:
        with self._lock:
            known = self._catalogs.get(digest)
            if known is not None:
                self._catalogs.move_to_end(digest)
                return known
        key = self._keys.catalog(digest)
        with naming(key):
            stored = cast("bytes | None", self._redis.get(key))
        if stored is None:
            return None
        catalog = ToolCatalog(tuple(CatalogItem.from_wire(item) for item in serializer.decode(stored)))
        with self._lock:
            self._catalogs[digest] = catalog
            if len(self._catalogs) > MOST_CATALOGS:
                self._catalogs.popitem(last=False)
        return catalog

    def _turn_of(self, record: StepRecord) -> str:
        return self._keys.turn(record.agent_name, record.instance_key, record.turn_id)


def _is_step_id(text: str) -> bool:
    """Return whether a Step may have this id: Redis is not asked for anything but identities of calls."""
    return _STEP_ID.fullmatch(text) is not None


def _line(record: StepRecord, **fields: Any) -> bytes:
    """Return a line of the record of a Turn."""
    return serializer.encode(TurnEntry(step_id=record.id, index=record.index, **fields).to_wire())


def _note_fault(turn: str, fault: bytes | None) -> None:
    if fault is not None:
        with only_advice(turn):
            raise ResponseError(fault.decode(errors="replace"))


def _require_answers(answers: Iterable[Any]) -> None:
    for answer in answers:
        if isinstance(answer, RedisError):
            raise answer


def digest_of_catalog(catalog: bytes) -> str:
    """Return the digest by which Steps share a catalog, given the catalog's JSON."""
    return hashlib.sha256(catalog).hexdigest()

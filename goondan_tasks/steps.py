"""Steps and Turns: the record of an open Step, its tool calls, and the history of its Turn in Redis.

Sources: 001 §12.1, 003 §1.1; DESIGN §6.
"""

import hashlib
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Protocol, cast

from pydantic import Field
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.connections import answers_of, rows_of
from broker_config.keys import Keys
from goondan_tasks.bundle.catalog import CatalogItem, ToolCatalog
from goondan_tasks.errors import RecordDamagedError
from goondan_tasks.failure import describe
from goondan_tasks.ledger.record import CALL_FIELDS, call_of
from goondan_tasks.messages import (
    JsonObject,
    Message,
    ResultMeta,
    ToolCall,
    ToolCallResult,
    Versioned,
    WireModel,
    call_part,
    iso_time,
    wall_clock,
)
from goondan_tasks.model_messages import ModelCall, ModelReply, StepCallResult, read_model_call, read_reply
from goondan_tasks.names import STEP_TOOL, call_identity
from goondan_tasks.table_rows import naming, only_advice

#: fields of a message's data that hold calls beside its content
_CALLS_IN_DATA = ("tool_calls", "toolCalls")

# Turns may be long and their outputs large, and one command blocks all other clients of Redis: so only the
# latest part of a Turn is read, in small commands.
#: how many of a Turn's latest calls are read
MOST_CALLS = 256
#: the limit of the calls with their results that are read, and of the Turn's lines
MOST_BYTES = 1_048_576
#: how many lines or calls one command reads
AT_ONCE = 32

#: Step ids are identities of calls; Redis is not asked for anything else
_STEP_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: how many lines of one Turn's record are kept
LONGEST_RECORD = 1000
#: how many catalogs a process caches: consecutive Steps mostly have the same one
MOST_CATALOGS = 64
#: prefix of a Step's fields that name the tools it has unregistered
_UNREGISTERED = "unregistered:"
#: how long the revision of an instance's last Step is kept, so that the next Step can tell that it has
#: changed
REVISION_TTL_SECONDS = 7 * 86_400


class StepRecord(Versioned):
    """A Step, as its producer and the workers that run its calls read it."""

    id: str
    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    #: counted from 0
    index: int
    #: the digest of its Tool Catalog; Steps with the same tools share it
    catalog: str
    blocks: tuple[JsonObject, ...] = ()
    #: by the name of a dynamic tool, the id of the earlier Step of the Turn that registered it
    origins: dict[str, str] = Field(default_factory=dict)
    #: the revision of the bundle for its calls; ``None`` if the workers follow none
    bundle_ref: str | None = None

    def is_of(self, call: ToolCall) -> bool:
        """Return whether a call belongs to the Turn of this Step."""
        turn = (self.agent_name, self.instance_key, self.turn_id)
        return turn == (call.agent_name, call.instance_key, call.turn_id)

    def is_of_wire(self, call: JsonObject) -> bool:
        """Return whether the call of a wire record belongs to the Turn of this Step."""
        turn = (self.agent_name, self.instance_key, self.turn_id)
        return turn == (call["agentName"], call["instanceKey"], call["turnId"])


class RecordedStep(Protocol):
    """An open Step with its record."""

    __slots__ = ()

    @property
    def record(self) -> StepRecord:
        """The record that was made when the Step opened."""

    @property
    def id(self) -> str:
        """The Step's id: the ``stepId`` of its calls."""
        return self.record.id

    @property
    def index(self) -> int:
        """The number of earlier Steps in the Turn."""
        return self.record.index

    @property
    def blocks(self) -> tuple[JsonObject, ...]:
        """What the model reads besides its messages: ``{type, data?, items?, priority?}``."""
        return self.record.blocks


class StepTool(WireModel):
    """A tool that a Step registered for the later Steps of its Turn."""

    item: CatalogItem
    step_id: str


class LeftTools(WireModel):
    """The changes of dynamic tools that a Step leaves to the next Step of its Turn, in any worker."""

    #: in addition to those that are registered for all Turns
    registered: tuple[StepTool, ...] = ()
    #: names, which may be those of tools that are registered for all Turns
    unregistered: tuple[str, ...] = ()


class StepInput(Versioned):
    """The arguments of the system tool that opens a Step."""

    index: int
    #: what the Step begins with
    message: JsonObject | None = None
    #: the previous Step of the same Turn
    previous_step_id: str | None = None


class TurnEntry(Versioned):
    """One line of a Turn's record: a Step that opened, or calls that a Step made."""

    step_id: str
    index: int
    message: JsonObject | None = None
    call_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepCall:
    """A model's call with the tool's full name and an id that is unique in the Turn."""

    asked: ModelCall
    tool_name: str
    tool_call_id: str
    #: the model's message that contains it; ``None`` if that is too large to send with every call
    message: Message | None = None

    @property
    def model_call_id(self) -> str | None:
        """The model's id, if it differs from the call's."""
        return None if self.asked.id == self.tool_call_id else self.asked.id

    def to_wire(self) -> JsonObject:
        """Return the call with the model's id, in the form of 003 §6.2."""
        return {"id": self.asked.id, "name": self.tool_name, "args": self.asked.args}

    def answered(self, result: ToolCallResult) -> StepCallResult:
        """Return the result with its message and the model's id."""
        fields = {name: getattr(result, name) for name in ToolCallResult.model_fields}
        fields["tool_call_id"] = self.asked.id
        return StepCallResult.model_construct(**fields, message=self.asked.message(result))


@dataclass(slots=True)
class TurnCalls:
    """The call ids used in one Turn: models repeat ids from Step to Step (DESIGN §4)."""

    _first_used: dict[str, int] = field(default_factory=dict)
    #: by id: the model's id, the index of the Step, and the count of this model id in the Step
    _used: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def of_step(
        self, record: StepRecord, catalog: ToolCatalog, model_reply: Any, *, max_args_bytes: int
    ) -> list[StepCall]:
        """Read a model's reply, or its tool calls; reading the same reply again returns the same calls.

        Raises:
            ToolInputValidationError: ``model_reply`` is not a model's reply, or a part of it is not a call.
        """
        reply = read_reply(model_reply)
        calls_read = (read_model_call(raw, max_args_bytes=max_args_bytes) for raw in reply.calls)
        model_calls = [replace(call, args=catalog.original_args(call.name, call.args)) for call in calls_read]
        seen: Counter[str] = Counter()
        calls = [
            StepCall(call, catalog.original_name(call.name), self._unused_id(call.id, record.index, seen))
            for call in model_calls
        ]
        message = _message_of(reply, calls, record, most_bytes=max_args_bytes)
        return [replace(call, message=message) for call in calls]

    def _unused_id(self, model_id: str, index: int, seen: Counter[str]) -> str:
        seen[model_id] += 1
        call = (model_id, index, seen[model_id])
        own = self._first_used.setdefault(model_id, index) == index
        name = model_id if own else f"{model_id}.step-{index}"
        if name.startswith(STEP_TOOL):  # reserved for the calls that open Steps
            name = f".{name}"
        if seen[model_id] > 1:
            name = f"{name}.{seen[model_id]}"
        while self._used.setdefault(name, call) != call:
            name = f"{name}.2"
        return name


def _message_of(
    reply: ModelReply, calls: Sequence[StepCall], record: StepRecord, *, most_bytes: int
) -> Message | None:
    """Return the model's whole message, which is sent with each call.

    ``None`` if it is not JSON or too large: each call then gets a message of its own.
    """
    if not calls:
        return None
    call_parts = (call_part(call.asked.id, call.tool_name, call.asked.args) for call in calls)
    content = [next(call_parts) if part is None else part for part in reply.parts]
    given = {} if reply.given is None else dict(reply.given)
    data = {name: value for name, value in given.get("data", {}).items() if name not in _CALLS_IN_DATA}
    message = Message(
        **{
            "id": f"msg-{record.id}-{calls[0].tool_call_id}",
            "created_at": iso_time(wall_clock()),
            **given,
            "data": {**data, "role": "assistant", "content": content},
            "source": {"type": "assistant", "stepId": record.id},
        }
    )
    try:
        size = len(serializer.encode(message.to_wire()))
    except serializer.NotJsonError:
        return None
    return message if size * len(calls) <= most_bytes else None


def opening_id(index: int, failures: int) -> str:
    """Return the ``toolCallId`` of the call that opens a Step; a Step's own calls never have such an id.

    The result of a failed call is final, so the next attempt is a new call.
    """
    return f"{STEP_TOOL}-{index}.{failures + 1}" if failures else f"{STEP_TOOL}-{index}"


def _refused(
    call: StepCall, record: StepRecord, *, help_url: str, correlation_id: str
) -> StepCallResult | None:
    """Return the result of a call with a mistake of the model, which is not submitted; else ``None``."""
    if call.asked.fault is None:
        return None
    names = (record.agent_name, record.instance_key, record.turn_id)
    meta = ResultMeta(
        id=call_identity(*names, call.tool_call_id),
        agent_name=record.agent_name,
        instance_key=record.instance_key,
        turn_id=record.turn_id,
        trace_id=record.trace_id,
        span_id="0" * 16,
        correlation_id=correlation_id,
    )
    result = ToolCallResult(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        status="error",
        error=describe(call.asked.fault, help_url=help_url),
        meta=meta,
    )
    return call.answered(result)


@dataclass(frozen=True, slots=True)
class ReplyCalls:
    """The calls in a model's reply, and the results of those refused because of the model's mistakes."""

    calls: Sequence[StepCall]
    #: in call order; ``None`` for calls to submit
    refusals: Sequence[StepCallResult | None]

    @classmethod
    def of(
        cls, calls: Sequence[StepCall], record: StepRecord, *, help_url: str, correlation_id: str
    ) -> "ReplyCalls":
        """Refuse the calls with mistakes."""
        refusals = [
            _refused(call, record, help_url=help_url, correlation_id=correlation_id) for call in calls
        ]
        return cls(calls, refusals)

    def submitted(self) -> list[StepCall]:
        """Return the calls to submit."""
        return [call for call in self.calls if call.asked.fault is None]

    def answered(self, results: Iterable[ToolCallResult]) -> list[StepCallResult]:
        """Return the results of all calls in order, given those of :meth:`submitted`."""
        answers = (call.answered(result) for call, result in zip(self.submitted(), results, strict=True))
        return [next(answers) if refusal is None else refusal for refusal in self.refusals]


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of a Turn; without a result it is in progress, or the result has expired."""

    call: ToolCall
    result: ToolCallResult | None


@dataclass(frozen=True, slots=True)
class TurnHistory:
    """The Turn in chronological order; only the latest part of a long Turn."""

    entries: Sequence[TurnEntry] = ()
    #: by their ids in the entries; calls that have expired or were not read are missing
    calls: Mapping[str, PastCall] = field(default_factory=dict)


def _read_history(redis: Redis, keys: Keys, call: ToolCall) -> TurnHistory:
    turn = keys.turn(call.agent_name, call.instance_key, call.turn_id)
    lines: list[bytes] = []
    end = redis.llen(turn)
    while end > 0 and sum(map(len, lines)) < MOST_BYTES:
        begin = max(0, end - AT_ONCE)
        lines = cast("list[bytes]", redis.lrange(turn, begin, end - 1)) + lines
        end = begin
    entries = _entries(lines)
    latest_first = [call_id for entry in reversed(entries) for call_id in reversed(entry.call_ids)]
    return TurnHistory(entries, dict(_past_calls(redis, keys, latest_first[:MOST_CALLS])))


def _entries(lines: Iterable[bytes]) -> list[TurnEntry]:
    """Read the lines of a Turn; a line may occur twice if the connection was lost during its write."""
    return [TurnEntry.from_wire(serializer.decode(line)) for line in dict.fromkeys(lines)]


def _past_calls(redis: Redis, keys: Keys, latest_first: Sequence[str]) -> Iterator[tuple[str, PastCall]]:
    left = MOST_BYTES
    for begin in range(0, len(latest_first), AT_ONCE):
        asked = latest_first[begin : begin + AT_ONCE]
        read: list[str] = []
        for call_id, size in zip(asked, _sizes(redis, keys, asked), strict=True):
            left -= size
            if left < 0:
                break
            read.append(call_id)
        yield from _read_calls(redis, keys, read)
        if left < 0:
            return


def _sizes(redis: Redis, keys: Keys, call_ids: Sequence[str]) -> list[int]:
    with redis.pipeline(transaction=False) as pipe:
        for call_id in call_ids:
            for field in CALL_FIELDS:
                pipe.hstrlen(keys.call(call_id), field)
        sizes: list[int | None] = rows_of(pipe)
    return [sum(size or 0 for size in part) for part in zip(*[iter(sizes)] * len(CALL_FIELDS), strict=True)]


def _read_calls(redis: Redis, keys: Keys, call_ids: Sequence[str]) -> Iterator[tuple[str, PastCall]]:
    with redis.pipeline(transaction=False) as pipe:
        for call_id in call_ids:
            pipe.hmget(keys.call(call_id), *CALL_FIELDS)
        rows: list[list[bytes | None] | None] = rows_of(pipe)
    for call_id, row in zip(call_ids, rows, strict=True):
        fields = dict(zip(CALL_FIELDS, row or (None,) * len(CALL_FIELDS), strict=True))
        if any(fields.values()):
            result = fields[b"result"]
            yield (
                call_id,
                PastCall(
                    ToolCall.from_wire(call_of(fields)),
                    None if result is None else ToolCallResult.from_json(result),
                ),
            )


_NO_TOOLS = LeftTools()


@dataclass(frozen=True, slots=True)
class KeptStep:
    """A Step with its catalog, and its expiry in ``time.monotonic()`` seconds."""

    record: StepRecord
    catalog: ToolCatalog
    until: float


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
        self.ttl_seconds = ttl_seconds
        self._catalogs: OrderedDict[str, ToolCatalog] = OrderedDict()
        self._lock = threading.Lock()

    def keep(
        self, record: StepRecord, catalog: bytes, *, message: JsonObject | None, left: LeftTools = _NO_TOOLS
    ) -> bool:
        """Store an open Step with its catalog as JSON; the record has the catalog's digest.

        ``left`` is for the next Step of the Turn. A Step that was opened before stays as it is, because its
        producer may have read it; return whether it is this one. Two runs of one call open the same Step if
        the first was taken for dead.
        """
        fields = {"step": serializer.encode(record.to_wire())}
        if message is not None:
            fields["message"] = serializer.encode(message)
        if left.registered:
            fields["registered"] = serializer.encode([tool.to_wire() for tool in left.registered])
        fields |= {f"{_UNREGISTERED}{name}": b"" for name in left.unregistered}
        key = self._keys.step(record.id)

        known: list[Any] = []

        def keep_first(pipe: Pipeline) -> None:
            known[:] = [pipe.hget(key, "step")]
            if known[0] is not None:
                return
            pipe.multi()
            pipe.set(self._keys.catalog(record.catalog), catalog, ex=self.ttl_seconds)
            pipe.hset(key, mapping=fields)  # type: ignore[arg-type]
            pipe.expire(key, self.ttl_seconds)
            if self._remembers_revisions and record.bundle_ref is not None:
                last = self._keys.step_revision(record.agent_name, record.instance_key)
                pipe.set(last, record.bundle_ref, ex=max(self.ttl_seconds, REVISION_TTL_SECONDS))
            self._append(pipe, record, message=message)

        with naming(key):
            self._redis.transaction(keep_first, key)
        return known[0] in (None, fields["step"])

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
        asked, asked_at = [step_id for step_id in step_ids if _STEP_ID.fullmatch(step_id)], monotonic()
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

    def message(self, step_id: str) -> JsonObject | None:
        """Return what a Step began with."""
        key = self._keys.step(step_id)
        with naming(key):
            stored = cast("bytes | None", self._redis.hget(key, "message"))
        return None if stored is None else cast("JsonObject", serializer.decode(stored))

    def left_by(self, step_id: str, call: ToolCall, *, bundle_ref: str | None = None) -> LeftTools:
        """Return the dynamic tools that a Step leaves to the next Step of the call's Turn.

        There are none if the bundle's revision has changed: each revision registers its own tools.
        """
        if not _STEP_ID.fullmatch(step_id):
            return _NO_TOOLS
        key = self._keys.step(step_id)
        with naming(key), self._redis.pipeline() as pipe:
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
        """Record tools that were unregistered after the Step had opened."""
        key, fields = self._keys.step(step_id), {f"{_UNREGISTERED}{name}": b"" for name in names}
        with naming(key), self._redis.pipeline() as pipe:
            pipe.hset(key, mapping=fields)  # type: ignore[arg-type]
            pipe.expire(key, self.ttl_seconds)
            pipe.execute()

    def note_calls(self, record: StepRecord, call_ids: Sequence[str]) -> None:
        with self._redis.pipeline() as pipe:
            self._append(pipe, record, call_ids=tuple(call_ids))

    def turn(self, agent: str, instance_key: str, turn_id: str) -> list[TurnEntry]:
        key = self._keys.turn(agent, instance_key, turn_id)
        with naming(key):
            return _entries(cast("list[bytes]", self._redis.lrange(key, 0, -1)))

    def history(self, call: ToolCall) -> TurnHistory:
        with naming(self._keys.turn(call.agent_name, call.instance_key, call.turn_id)):
            return _read_history(self._redis, self._keys, call)

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

    def _append(self, pipe: Pipeline, record: StepRecord, **fields: Any) -> None:
        """Run a pipeline that also appends to the record of a Turn; if only that is damaged, it is logged."""
        before = len(pipe)
        turn = self._keys.turn(record.agent_name, record.instance_key, record.turn_id)
        entry = TurnEntry(step_id=record.id, index=record.index, **fields)
        pipe.rpush(turn, serializer.encode(entry.to_wire()))
        pipe.ltrim(turn, -LONGEST_RECORD, -1)
        pipe.expire(turn, self.ttl_seconds)
        answers = answers_of(pipe)
        _require_answers(answers[:before])
        with only_advice(turn):
            _require_answers(answers[before:])


def _require_answers(answers: Iterable[Any]) -> None:
    for answer in answers:
        if isinstance(answer, RedisError):
            raise answer


def digest_of_catalog(catalog: bytes) -> str:
    """Return the digest by which Steps share a catalog, given the catalog's JSON."""
    return hashlib.sha256(catalog).hexdigest()

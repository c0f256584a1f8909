"""The history of a Turn, read from Redis."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from redis import Redis

from broker_config import serializer
from broker_config.connections import rows_of
from broker_config.keys import Keys
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.history.records import TurnEntry
from goondan_tasks.ledger.record import CALL_FIELDS, call_of

# Turns may be long and their outputs large, and one command blocks all other clients of Redis: so only the
# latest part of a Turn is read, in small commands.
#: how many of a Turn's latest calls are read
MOST_CALLS = 256
#: the limit of the calls with their results that are read, and of the Turn's lines
MOST_BYTES = 1_048_576
#: how many lines or calls one command reads
AT_ONCE = 32


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


def read_history(redis: Redis, keys: Keys, call: ToolCall) -> TurnHistory:
    """Return the latest part of the history of a call's Turn."""
    turn = keys.turn(call.agent_name, call.instance_key, call.turn_id)
    lines: list[bytes] = []
    end = redis.llen(turn)
    while end > 0 and sum(map(len, lines)) < MOST_BYTES:
        begin = max(0, end - AT_ONCE)
        lines = cast("list[bytes]", redis.lrange(turn, begin, end - 1)) + lines
        end = begin
    entries = entries_of(lines)
    latest_first = [call_id for entry in reversed(entries) for call_id in reversed(entry.call_ids)]
    return TurnHistory(entries, dict(_past_calls(redis, keys, latest_first[:MOST_CALLS])))


def entries_of(lines: Iterable[bytes]) -> list[TurnEntry]:
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

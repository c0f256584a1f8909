"""What has come of a Turn so far: its Steps, what each began with, its calls and their results.

Turns may be long, and their outputs large, while Redis serves everybody one after another: so the latest part
is read, in small commands.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.ledger.record import result_of
from goondan_tasks.messages import ToolCall, ToolCallResult
from goondan_tasks.steps.record import TurnEntry

#: the latest calls of a Turn are read, and no more
MOST_CALLS = 256

#: so many bytes of calls with their results are read; and no more lines of the record once so many have been
MOST_BYTES = 1_048_576

#: how many lines, or calls, are asked for at once
AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of the Turn; without a result it is in progress, or its result has expired."""

    call: ToolCall
    result: ToolCallResult | None


@dataclass(frozen=True, slots=True)
class TurnHistory:
    """The record of a Turn, in the order in which things happened; of a long one, how it went lately."""

    entries: Sequence[TurnEntry] = ()
    #: by their ids in the entries; those that are not kept any more, or were not read, are missing
    calls: Mapping[str, PastCall] = field(default_factory=dict)


def read_history(redis: Redis, keys: Keys, call: ToolCall) -> TurnHistory:
    """Read what has come lately of the Turn that ``call`` belongs to; this blocks.

    Raises:
        redis.exceptions.RedisError: as it comes.
        ValueError: what is kept cannot be read, or is of a newer version.
    """
    lines = _latest_lines(redis, keys.turn(call.agent_name, call.instance_key, call.turn_id))
    entries = [TurnEntry.from_wire(serializer.decode(line)) for line in lines]
    latest_first = [call_id for entry in reversed(entries) for call_id in reversed(entry.call_ids)]
    return TurnHistory(entries, dict(_past_calls(redis, keys, latest_first[:MOST_CALLS])))


def _latest_lines(redis: Redis, turn: str) -> list[bytes]:
    lines: list[bytes] = []
    end = redis.llen(turn)
    while end > 0 and sum(map(len, lines)) < MOST_BYTES:
        begin = max(0, end - AT_ONCE)
        lines = cast("list[bytes]", redis.lrange(turn, begin, end - 1)) + lines
        end = begin
    return lines


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
            pipe.hstrlen(keys.call(call_id), "call")
            pipe.strlen(keys.celery_result(call_id))
        sizes: list[int] = pipe.execute()
    return [call + result for call, result in zip(sizes[::2], sizes[1::2], strict=True)]


def _read_calls(redis: Redis, keys: Keys, call_ids: Sequence[str]) -> Iterator[tuple[str, PastCall]]:
    with redis.pipeline(transaction=False) as pipe:
        for call_id in call_ids:
            pipe.hget(keys.call(call_id), "call")
            pipe.get(keys.celery_result(call_id))
        kept: list[bytes | None] = pipe.execute()
    for call_id, call, result in zip(call_ids, kept[::2], kept[1::2], strict=True):
        if call is not None:
            yield call_id, _past_call(call, result)


def _past_call(call: bytes, result: bytes | None) -> PastCall:
    return PastCall(
        ToolCall.from_wire(serializer.decode(call)), None if result is None else result_of(result)
    )

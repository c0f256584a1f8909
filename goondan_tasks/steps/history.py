"""What has come of a Turn so far: its Steps, what each began with, its calls and their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.scripts import Errand, Script, run_errand
from goondan_tasks.ledger.record import result_of
from goondan_tasks.messages import ToolCall, ToolCallResult
from goondan_tasks.steps.record import TurnEntry

#: the latest calls of a Turn are read, and no more
MOST_CALLS = 256

_SCRIPT = Script.read(files("goondan_tasks.steps") / "scripts", "history")


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of the Turn; without a result it is in progress, or its result has expired."""

    call: ToolCall
    result: ToolCallResult | None


@dataclass(frozen=True, slots=True)
class TurnHistory:
    """The record of a Turn, in the order in which things happened."""

    entries: Sequence[TurnEntry] = ()
    #: by their ids in the entries; those that are not kept any more are missing
    calls: Mapping[str, PastCall] = field(default_factory=dict)


def read_history(redis: Redis, keys: Keys, call: ToolCall) -> TurnHistory:
    """Read what has come of the Turn that ``call`` belongs to, in one trip; this blocks.

    Raises:
        redis.exceptions.RedisError: as it comes.
        ValueError: what is kept cannot be read, or is of a newer version.
    """
    turn = keys.turn(call.agent_name, call.instance_key, call.turn_id)
    beginnings = (keys.call(""), keys.celery_result(""))
    lines, calls = run_errand(redis, Errand(_SCRIPT, [turn], [*beginnings, MOST_CALLS]))
    return TurnHistory(
        [TurnEntry.from_wire(serializer.decode(line)) for line in lines],
        {call_id.decode(): _past_call(*kept) for call_id, *kept in calls if kept[0] is not None},
    )


def _past_call(call: bytes, result: bytes | None) -> PastCall:
    return PastCall(
        ToolCall.from_wire(serializer.decode(call)), None if result is None else result_of(result)
    )

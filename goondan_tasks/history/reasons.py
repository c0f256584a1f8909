"""Why a call is not running: one sentence about what it waits for, and what ends the wait."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from broker_config.connections import rows_of
from broker_config.queues import call_queue
from goondan_tasks.contract.events import is_event, mailbox_of
from goondan_tasks.contract.table_rows import only_advice
from goondan_tasks.contract.wording import counted
from goondan_tasks.fleet.agent_registry import AgentRecord, WorkerRecord
from goondan_tasks.fleet.pauses import is_pause
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import Limiter, limit_text
from goondan_tasks.ledger.record import CallRecord

#: how many of the calls that hold a limit are named
_NAMED = 3


def read_reason(
    ledger: Ledger,
    record: CallRecord,
    agents: Callable[[], Mapping[str, AgentRecord]],
    workers: Callable[[], Sequence[WorkerRecord]],
) -> str | None:
    """Return a sentence about a call that waits; ``None`` for one that runs or has ended.

    ``agents`` and ``workers`` are asked only if they matter.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    match record.state:
        case "scheduled":
            return "Its time is to come."
        case "pending" if record.awaits == "approval":
            return "A person must approve it."
        case "pending":
            return "Its handler has begun something that ends elsewhere and is then completed."
        case "lost":
            return "Its worker is gone; a sweep ends it or queues it again when its lease is over."
        case "waiting" | "queued" if record.paused is not None:
            return f"It runs when that is resumed: goondan resume {record.call.agent_name}"
        case "waiting":
            return _at_limit(ledger, record)
        case "queued":
            return _in_queue(ledger, record, agents, workers)
    return None


def _at_limit(ledger: Ledger, record: CallRecord) -> str:
    limit, call = record.waiting_for or "", record.call
    if is_pause(limit):
        return f"It runs when its tool is resumed: goondan resume {call.agent_name} {call.tool_name}"
    state, redis, keys = Limiter(ledger).state(limit), ledger.redis, ledger.keys
    with redis.pipeline(transaction=False) as pipe:
        pipe.zrank(keys.wait_queue(limit), record.id)
        pipe.zrange(keys.holders(limit), 0, _NAMED - 1)
        pipe.hget(keys.limit(limit), "owner")
        ahead, holders, owner = rows_of(pipe)
    held = [one.decode(errors="replace") for one in ([owner] if owner else holders or [])]
    text = limit_text(limit, state)
    if held and not state.period:
        more = ", …" if not owner and state.most > len(held) >= _NAMED else ""
        text += f"; held by {', '.join(held)}{more}"
    return f"{text}; {_before(ahead or 0)}."


def _before(count: int) -> str:
    return "it is the next" if not count else f"{counted(count, 'call')} before it"


def _in_queue(
    ledger: Ledger,
    record: CallRecord,
    agents: Callable[[], Mapping[str, AgentRecord]],
    workers: Callable[[], Sequence[WorkerRecord]],
) -> str:
    agent = record.call.agent_name
    if is_event(record.call):
        known = agents().get(agent)
        if known is not None and known.unhandled is not None:
            return f"For now {known.unhandled}."
        if (first := _first_in_mailbox(ledger, record)) not in {None, record.id}:
            return f"The events of a conversation come one by one, and {first} is before it."
    serving = [worker for worker in workers() if agent in worker.agents]
    if not serving:
        return f"No worker serves {agent}: goondan worker --agent {agent}"
    with ledger.redis.pipeline(transaction=False) as pipe:
        pipe.zcard(ledger.keys.running(agent))
        pipe.llen(call_queue(agent))
        running, queued = rows_of(pipe)
    places = sum(worker.concurrency for worker in serving)
    return (
        f"Its workers have {counted(places, 'place')}; {counted(running or 0, 'call')} of {agent} "
        f"{'runs' if running == 1 else 'run'}, and {queued or 0} wait in its queue."
    )


def _first_in_mailbox(ledger: Ledger, record: CallRecord) -> str | None:
    key, first = ledger.keys.mailbox(mailbox_of(record.call)), None
    with only_advice(key):
        first = cast("bytes | None", ledger.redis.lindex(key, 0))
    return None if first is None else first.decode(errors="replace")

"""The story of one call: what the ledger keeps of it, put together for a person who asks what became of it.

Of a plain call that has succeeded the ledger keeps little, and of no call each earlier attempt: what is not
kept is absent, never guessed.
"""

from typing import Any

from broker_config import serializer
from broker_config.connections import redis_time
from goondan_tasks.errors import ToolOutcomeUnknownError, ToolPoisonedError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCallError, ToolCallResult, WireModel, iso_time
from goondan_tasks.output import Progress
from goondan_tasks.redaction import hidden_by_place, hidden_in_log
from goondan_tasks.trace import CallFacts, Trace, TraceNode, node_of, read_trace, result_of

#: how many characters of the arguments and of the output are shown
SHOWN_CHARACTERS = 500


class Excerpt(WireModel):
    """The beginning of a JSON value as text, without secrets, and how many bytes the whole takes."""

    text: str
    size: int
    is_cut: bool = False


class Attempt(WireModel):
    """One run of a call. ``ended`` is absent while it goes on; what else is absent was not kept."""

    number: int
    worker: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    ended: str | None = None


class RelatedCall(WireModel):
    """A call that has caused another one, or was caused by it."""

    id: str
    agent: str
    instance: str
    tool: str
    state: str


class CallStory(CallFacts):
    """All that is known of one call."""

    #: its state in words: where, and for how long
    summary: str
    tool_call_id: str
    turn_id: str
    step_id: str | None = None
    args: Excerpt
    attempts: tuple[Attempt, ...] = ()
    #: how many more times it may be run if its worker dies; absent if that is not kept, or not decided yet
    runs_left: int | None = None
    #: how many runs have failed and were tried again; absent of a call that has ended
    retries: int | None = None
    deadline: str | None = None
    timeout_seconds: float | None = None
    #: the limits that it must pass, while it waits, and how many calls are before it at ``waiting_for``
    limits: tuple[str, ...] = ()
    ahead: int | None = None
    is_cancelled: bool = False
    progress: Progress | None = None
    handle: str | None = None
    awaits: str | None = None
    expires_at: str | None = None
    approved_by: str | None = None
    replayed_by: str | None = None
    error: ToolCallError | None = None
    #: the process that has ended it in the place of its worker
    settled_by: str | None = None
    output: Excerpt | None = None
    output_file: str | None = None
    parent: RelatedCall | None = None
    children: tuple[RelatedCall, ...] = ()


def read_story(ledger: Ledger, record: CallRecord) -> CallStory:
    """Tell the story of a call, with what caused it and what it has caused.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    now, trace = redis_time(ledger.redis), read_trace(ledger, record.id, ())
    limits, ahead = _limits(ledger, record)
    return story_of(record, now, trace=trace, limits=limits, ahead=ahead)


def story_of(
    record: CallRecord,
    now: float,
    *,
    trace: Trace | None = None,
    limits: tuple[str, ...] = (),
    ahead: int | None = None,
) -> CallStory:
    """Tell the story of a call at ``now`` (ms, Redis time); ``trace`` is where its relatives are."""
    call, result = record.call, result_of(record)
    facts = node_of(record, result, now).model_dump(exclude={"depth", "note", "error"})
    nodes = {} if trace is None else {node.id: node for node in trace.nodes}
    parent = nodes.get(call.parent_id or "")
    settler = None if result is None else result.meta.worker
    is_open = record.finished_at is None
    deadline = call.deadline if record.deadline is None else iso_time(record.deadline)
    return CallStory(
        **facts,
        summary=record.state_text(now),
        tool_call_id=call.shown_id,
        turn_id=call.turn_id,
        step_id=call.step_id,
        args=excerpt(call.args),
        attempts=_attempts(record, result),
        runs_left=record.deadly_runs_left if is_open else None,
        retries=record.retries if is_open else None,
        deadline=deadline,
        timeout_seconds=call.timeout_seconds,
        limits=limits,
        ahead=ahead,
        is_cancelled=record.is_cancelled,
        progress=record.progress if is_open else None,
        handle=record.handle,
        awaits=record.awaits,
        expires_at=None if record.expires_at is None else iso_time(record.expires_at),
        approved_by=record.approved_by,
        replayed_by=record.replayed_by,
        error=None if result is None else result.error,
        settled_by=None if record.worker is None or settler == record.worker else settler,
        output=None if result is None or result.output is None else excerpt(result.output),
        output_file=None if result is None else result.meta.output_file,
        parent=None if parent is None else _related(parent),
        children=() if trace is None else tuple(map(_related, trace.children(record.id))),
    )


def excerpt(value: Any) -> Excerpt:
    """Return the beginning of a JSON value; secrets are hidden first, or half of one would stay."""
    text = hidden_by_place(serializer.encode(hidden_in_log(value)).decode())
    size = len(serializer.encode(value))
    return Excerpt(text=text[:SHOWN_CHARACTERS], size=size, is_cut=len(text) > SHOWN_CHARACTERS)


def _attempts(record: CallRecord, result: ToolCallResult | None) -> tuple[Attempt, ...]:
    """Return each run as far as it is kept: the last one, and when the first of retried ones began."""
    first = None if record.begun_at is None else iso_time(record.begun_at)
    earlier = [
        Attempt(number=number, started_at=first if number == 1 else None, ended="not kept")
        for number in range(1, record.attempt)
    ]
    return (*earlier, _last_attempt(record, result)) if record.attempt else ()


def _last_attempt(record: CallRecord, result: ToolCallResult | None) -> Attempt:
    ended_at, ended = record.finished_at, _ending(result)
    if record.requeued_at is not None:  # of which worker is not kept, nor when it began
        ended = "given back by its worker, or lost with it"
        return Attempt(number=record.attempt, ended_at=_iso(record.requeued_at), ended=ended)
    if record.lost_at is not None:
        ended_at, ended = record.lost_at, "its worker died"
    elif record.status == "pending":
        ended_at, ended = record.suspended_at, "its output comes later"
    return Attempt(
        number=record.attempt,
        worker=record.worker,
        started_at=_iso(record.claimed_at),
        ended_at=_iso(ended_at),
        ended=ended,
    )


def _ending(result: ToolCallResult | None) -> str | None:
    if result is None or result.error is None:
        return None if result is None else "ok"
    is_death = result.error.code in {ToolOutcomeUnknownError.code, ToolPoisonedError.code}
    return "its worker died" if is_death else result.error.code


def _iso(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else iso_time(milliseconds)


def _limits(ledger: Ledger, record: CallRecord) -> tuple[tuple[str, ...], int | None]:
    """Return the limits of a call that waits (``limits/scripts/shared.lua``), and the calls before it."""
    if record.waiting_for is None:
        return (), None
    with ledger.redis.pipeline(transaction=False) as pipe:
        pipe.hget(ledger.keys.waiter(record.id), "gates")
        pipe.zrank(ledger.keys.wait_queue(record.waiting_for), record.id)
        gates, ahead = pipe.execute()
    lines = (gates or b"").decode().splitlines()
    return tuple(line.rpartition(" ")[2] for line in lines), ahead


def _related(node: TraceNode) -> RelatedCall:
    return RelatedCall(id=node.id, agent=node.agent, instance=node.instance, tool=node.tool, state=node.state)

"""Reading a trace out of the ledger: which calls belong to it, and how each stands."""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord, result_of
from goondan_tasks.messages import ToolCallResult, epoch_milliseconds, iso_time
from goondan_tasks.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL, EVENT_TOOL
from goondan_tasks.trace.nodes import Kind, Trace, TraceError, TraceNode
from goondan_tasks.trace.tree import build_trace

#: calls that stand in no index are looked for among so many of each agent's most recent ones
SEARCHED = 1000

#: callers outside of the index are looked up one above the other, but so often only
LONGEST_WAY_UP = 100

#: so many are read in one trip: each may be as large as arguments and result are allowed to be
BATCH = 50

#: so much of an error's message is kept
MESSAGE_CHARACTERS = 500

_KINDS: dict[str, Kind] = {
    DELEGATE_TOOL: "request",
    EVENT_TOOL: "event",
    DELEGATE_RESULT_TOOL: "answer",
}


def read_trace(ledger: Ledger, name: str, agents: Iterable[str]) -> Trace | None:
    """Read the trace of a correlationId, of the call with that id, or of a traceId.

    Calls that belong to one another stand in an index; others are looked for among the recent calls of
    ``agents``. Returns ``None`` if there is nothing of that name.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    reader = _Reader(ledger)
    reader.read(_find(ledger, name, agents))
    found = list(reader.nodes.values())
    if not found:
        return None
    correlation_id = name if any(node.correlation_id == name for node in found) else found[0].correlation_id
    traces = dict.fromkeys(node.trace_id for node in found)
    reader.read([call_id for trace_id in traces for call_id in _indexed(ledger, trace_id)])
    return build_trace(correlation_id, reader.nodes.values(), expired=reader.expired)


def _find(ledger: Ledger, name: str, agents: Iterable[str]) -> list[str]:
    """Return ids of calls that are called so."""
    if ids := _indexed(ledger, name):
        return ids
    if name.isprintable() and ledger.record(name) is not None:
        return [name]
    recent = ledger.recent(agents, SEARCHED)
    return [one.id for one in recent if name in {one.call.correlation_id, one.call.trace_id}]


def _indexed(ledger: Ledger, name: str) -> list[str]:
    ids = cast("list[bytes]", ledger.redis.zrange(ledger.keys.trace(name), 0, -1))
    return [call_id.decode() for call_id in ids]


class _Reader:
    """Reads calls and what has caused them, a batch at a time: of each one only the node is kept."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.nodes: dict[str, TraceNode] = {}
        #: how many of those that were to be read have expired, or cannot be read
        self.expired = 0
        self._missing: set[str] = set()
        seconds, microseconds = ledger.redis.time()
        self._now = seconds * 1000 + microseconds / 1000

    def read(self, ids: list[str]) -> None:
        """Read ``ids``, and those outside that they name."""
        wanted = self._unknown(ids)
        known_missing = len(self._missing)
        self._read(wanted)
        self.expired += len(self._missing) - known_missing
        for _ in range(LONGEST_WAY_UP):
            wanted = self._unknown(name for call_id in wanted for name in self._named_by(call_id))
            if not wanted:
                break
            self._read(wanted)

    def _unknown(self, ids: Iterable[str]) -> list[str]:
        return [one for one in dict.fromkeys(ids) if one not in self.nodes and one not in self._missing]

    def _read(self, ids: list[str]) -> None:
        for start in range(0, len(ids), BATCH):
            self._read_batch(ids[start : start + BATCH])

    def _read_batch(self, ids: list[str]) -> None:
        records = zip(ids, self._ledger.records(ids), _results(self._ledger, ids), strict=True)
        for call_id, record, result in records:
            if record is None:
                self._missing.add(call_id)
            else:
                self.nodes[call_id] = node_of(record, result, self._now)

    def _named_by(self, call_id: str) -> list[str]:
        node = self.nodes.get(call_id)
        names = () if node is None else (node.parent_id, node.root_id, node.replay_of)
        return [name for name in names if name]


def _results(ledger: Ledger, ids: Sequence[str]) -> Iterator[ToolCallResult | None]:
    stored = ledger.redis.mget([ledger.keys.celery_result(call_id) for call_id in ids])
    return (None if one is None else _readable(one) for one in stored)


def _readable(stored: bytes | str) -> ToolCallResult | None:
    try:
        return result_of(stored)
    except ValueError:
        return None  # the record says enough


def node_of(record: CallRecord, result: ToolCallResult | None, now: float) -> TraceNode:
    """Make the node of one call at the time ``now``, in ms since the epoch."""
    call = record.call
    started, finished = _started(record, result), record.finished_at
    ended = now if finished is None else finished
    return TraceNode(
        id=record.id,
        kind=_KINDS.get(call.tool_name, "call"),
        agent=call.agent_name,
        instance=call.instance_key,
        tool=call.tool_name,
        event_type=_event_type(record),
        state=_state(record),
        worker=record.worker,
        attempt=record.attempt,
        queued_at=iso_time(record.queued_at),
        started_at=None if started is None else iso_time(started),
        finished_at=None if finished is None else iso_time(finished),
        waiting_seconds=_seconds(record.queued_at, ended if started is None else started),
        running_seconds=None if started is None else _seconds(started, ended),
        waiting_for=record.waiting_for,
        error=_error(result),
        parent_id=call.parent_id,
        root_id=call.root_id,
        replay_of=call.replay_of,
        correlation_id=call.correlation_id,
        trace_id=call.trace_id,
        span_id=call.span_id,
    )


def _started(record: CallRecord, result: ToolCallResult | None) -> int | None:
    """Return when the run began; of one that goes on only the time of its claim is known."""
    if result is not None:
        return None if result.meta.started_at is None else epoch_milliseconds(result.meta.started_at)
    return record.claimed_at if record.has_started else None


def _state(record: CallRecord) -> str:
    if record.status == "done":
        return "ok" if record.outcome == "ok" else "error"
    return record.status if record.waiting_for is None else "waiting"


def _event_type(record: CallRecord) -> str | None:
    if record.call.tool_name not in _KINDS or not isinstance(record.call.args, dict):
        return None
    payload = record.call.args.get("payload")
    kind = payload.get("type") if isinstance(payload, dict) else None
    return kind if isinstance(kind, str) else None


def _error(result: ToolCallResult | None) -> TraceError | None:
    if result is None or result.error is None:
        return None
    return TraceError(code=result.error.code, message=result.error.message[:MESSAGE_CHARACTERS])


def _seconds(start: float, end: float) -> float:
    return round(max(0.0, end - start) / 1000, 3)

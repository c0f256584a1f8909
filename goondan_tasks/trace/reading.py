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
    """Read the trace of a correlationId, or of the call with that id, or with that traceId.

    Calls that belong to others stand in an index; one that stands alone is looked for among the recent
    calls of ``agents``. Returns ``None`` if there is nothing of that name.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    correlation_id, ids = _Index(ledger, agents).find(name)
    reader = _Reader(ledger)
    reader.read(ids)
    if not reader.nodes:
        return None
    return build_trace(correlation_id, reader.nodes.values(), expired=len(reader.missing.intersection(ids)))


class _Index:
    """Finds the ids of a trace's calls."""

    def __init__(self, ledger: Ledger, agents: Iterable[str]) -> None:
        self._ledger = ledger
        self._agents = agents

    def find(self, name: str) -> tuple[str, list[str]]:
        """Return the correlationId that is meant, and ids."""
        if ids := self._indexed(name):
            return name, ids
        record = self._ledger.record(name) if name.isprintable() else None
        if record is not None:
            correlation_id = record.call.correlation_id
            return correlation_id, [*self._indexed(correlation_id), record.id]
        recent = self._ledger.recent(self._agents, SEARCHED)
        return name, [one.id for one in recent if name in {one.call.correlation_id, one.call.trace_id}]

    def _indexed(self, correlation_id: str) -> list[str]:
        ids = cast("list[bytes]", self._ledger.redis.zrange(self._ledger.keys.trace(correlation_id), 0, -1))
        return [call_id.decode() for call_id in ids]


class _Reader:
    """Reads calls and what has caused them, a batch at a time: of each one only the node is kept."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.nodes: dict[str, TraceNode] = {}
        self.missing: set[str] = set()
        seconds, microseconds = ledger.redis.time()
        self._now = seconds * 1000 + microseconds / 1000

    def read(self, ids: list[str]) -> None:
        """Read ``ids``, and those outside that they name."""
        for _ in range(LONGEST_WAY_UP):
            unknown = list(dict.fromkeys(ids))
            for start in range(0, len(unknown), BATCH):
                self._read_batch(unknown[start : start + BATCH])
            ids = [name for call_id in unknown for name in self._named_by(call_id)]
            if not ids:
                break

    def _read_batch(self, ids: list[str]) -> None:
        records = zip(ids, self._ledger.records(ids), _results(self._ledger, ids), strict=True)
        for call_id, record, result in records:
            if record is None:
                self.missing.add(call_id)
            else:
                self.nodes[call_id] = node_of(record, result, self._now)

    def _named_by(self, call_id: str) -> list[str]:
        node = self.nodes.get(call_id)
        names = () if node is None else (node.parent_id, node.root_id, node.replay_of)
        return [name for name in names if name and name not in self.nodes and name not in self.missing]


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

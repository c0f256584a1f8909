"""Traces: which calls and handoffs belong together, which caused which, and how long each waited and ran."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Literal, cast

from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCallResult, WireModel, epoch_milliseconds, iso_time
from goondan_tasks.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL, EVENT_TOOL

Kind = Literal["call", "request", "event", "answer"]


class TraceError(WireModel):
    """Why a call failed. ``message`` is cut at 500 characters; the call's result has all of it."""

    code: str
    message: str


class TraceNode(WireModel):
    """One call or handoff. ``depth`` is 0 for the roots of the trace."""

    id: str
    depth: int = 0
    kind: Kind
    agent: str
    instance: str
    tool: str
    #: the type of the AgentEvent, if this is a handoff
    event_type: str | None = None
    #: queued, waiting (for a limit), running, pending, ok, error or dead
    state: str
    worker: str | None = None
    attempt: int = 0
    queued_at: str
    started_at: str | None = None
    finished_at: str | None = None
    #: from queueing to the start of the run, or to the end without one, or until now
    waiting_seconds: float
    #: from the start of the run to its end, or until now
    running_seconds: float | None = None
    #: the limit that it is waiting for
    waiting_for: str | None = None
    error: TraceError | None = None
    #: the identities of the call that caused this one, of the root of that chain, and of the one it replays
    parent_id: str | None = None
    root_id: str | None = None
    replay_of: str | None = None
    correlation_id: str
    trace_id: str
    span_id: str
    #: what is odd about its place in the tree
    note: str | None = None


class Trace(WireModel):
    """The calls and handoffs that belong together: depth first, siblings by time."""

    #: the one that was asked for, else that of the first node
    correlation_id: str
    nodes: tuple[TraceNode, ...]
    #: how many further calls have records that have expired or cannot be read
    expired: int = 0

    @property
    def roots(self) -> tuple[TraceNode, ...]:
        """The calls without a known cause."""
        return tuple(node for node in self.nodes if node.depth == 0)

    def children(self, node_id: str) -> tuple[TraceNode, ...]:
        """Return the direct children of a node."""
        return self._children.get(node_id, ())

    @cached_property
    def _children(self) -> dict[str, tuple[TraceNode, ...]]:
        found: dict[str, list[TraceNode]] = {}
        path: list[str] = []
        for node in self.nodes:
            del path[node.depth :]
            if path:
                found.setdefault(path[-1], []).append(node)
            path.append(node.id)
        return {node_id: tuple(nodes) for node_id, nodes in found.items()}


def build_trace(correlation_id: str, nodes: Iterable[TraceNode], *, expired: int = 0) -> Trace:
    """Put ``nodes`` into the order of their tree: depth first, siblings by time.

    No node is left out: one whose parent is missing becomes a child of its chain's root, if that is known,
    and calls that form a cycle become descendants of one of them. A note says so.
    """
    return Trace(correlation_id=correlation_id, nodes=tuple(_Tree(nodes).walk()), expired=expired)


class _Tree:
    def __init__(self, nodes: Iterable[TraceNode]) -> None:
        by_time = sorted(nodes, key=lambda node: (node.queued_at, node.id))
        self._nodes = {node.id: node for node in by_time}
        self._notes: dict[str, str] = {}
        self._parents = {node.id: self._parent_of(node) for node in by_time}
        self._children: dict[str | None, list[str]] = defaultdict(list)
        for node_id, parent_id in self._parents.items():
            self._children[parent_id].append(node_id)

    def walk(self) -> Iterator[TraceNode]:
        """Yield the nodes in order, with depth and note."""
        seen: set[str] = set()
        for top in self._children[None]:
            yield from self._below(top, seen)
        for node_id in self._nodes:  # the rest is in a cycle, or below one
            if node_id not in seen:
                top = self._in_circle(node_id)
                self._notes[top] = "the calls that caused it form a circle"
                yield from self._below(top, seen)

    def _parent_of(self, node: TraceNode) -> str | None:
        if node.parent_id is None or node.parent_id in self._nodes:
            return node.parent_id
        self._notes[node.id] = f"caused by {node.parent_id}, which is unknown or has expired"
        return node.root_id if node.root_id in self._nodes else None

    def _below(self, top: str, seen: set[str]) -> Iterator[TraceNode]:
        waiting = [(0, top)]
        while waiting:
            depth, node_id = waiting.pop()
            if node_id in seen:
                continue
            seen.add(node_id)
            yield self._nodes[node_id].model_copy(update={"depth": depth, "note": self._notes.get(node_id)})
            waiting += [(depth + 1, child) for child in reversed(self._children[node_id])]

    def _in_circle(self, node_id: str) -> str:
        """Climb from a node that no root leads to until a node repeats."""
        passed: set[str] = set()
        while node_id not in passed:
            passed.add(node_id)
            node_id = self._parents[node_id] or node_id
        return node_id


#: how many of each agent's most recent calls are searched for calls that are in no index
SEARCHED = 1000

#: how many generations of callers that are in no index are read
LONGEST_WAY_UP = 100

#: how many calls one trip reads: each may be as large as the limits of arguments and result allow
BATCH = 50

#: how much of an error's message is kept
MESSAGE_CHARACTERS = 500

_KINDS: dict[str, Kind] = {
    DELEGATE_TOOL: "request",
    EVENT_TOOL: "event",
    DELEGATE_RESULT_TOOL: "answer",
}


def read_trace(ledger: Ledger, name: str, agents: Iterable[str]) -> Trace | None:
    """Read the trace of a correlationId, of the call with that id, or of a traceId.

    Related calls are in an index; others are searched for among the recent calls of ``agents``. ``None`` if
    nothing has that name.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    reader = _Reader(ledger)
    reader.read(_find(ledger, name, agents))
    found = list(reader.nodes.values())
    if not found:
        return None
    # calls submitted within one millisecond stand in the index in the order of their ids
    first = reader.nodes.get(name) or next((node for node in found if node.parent_id is None), found[0])
    correlation_id = name if any(node.correlation_id == name for node in found) else first.correlation_id
    traces = dict.fromkeys(node.trace_id for node in found)
    reader.read([call_id for trace_id in traces for call_id in _indexed(ledger, trace_id)])
    return build_trace(correlation_id, reader.nodes.values(), expired=reader.expired)


def _find(ledger: Ledger, name: str, agents: Iterable[str]) -> list[str]:
    """Return the ids of the calls with that name."""
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
    """Reads calls and their callers in batches, and keeps only the nodes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.nodes: dict[str, TraceNode] = {}
        #: how many of the requested calls have expired or cannot be read
        self.expired = 0
        self._missing: set[str] = set()
        seconds, microseconds = ledger.redis.time()
        self._now = seconds * 1000 + microseconds / 1000

    def read(self, ids: list[str]) -> None:
        """Read ``ids`` and the calls that they refer to."""
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
        for call_id, record in zip(ids, self._ledger.records(ids), strict=True):
            if record is None:
                self._missing.add(call_id)
            else:
                self.nodes[call_id] = node_of(record, _result_of(record), self._now)

    def _named_by(self, call_id: str) -> list[str]:
        node = self.nodes.get(call_id)
        names = () if node is None else (node.parent_id, node.root_id, node.replay_of)
        return [name for name in names if name]


def _result_of(record: CallRecord) -> ToolCallResult | None:
    try:
        return None if record.result is None else ToolCallResult.from_json(record.result)
    except ValueError:
        return None  # the record alone makes a node


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
    """Return when the run began, for a running call the time of its claim."""
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

"""Traces: related calls and handoffs, their causes, and how long each waited and ran."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Unpack, cast

from broker_config import serializer
from broker_config.connections import redis_time, rows_of
from goondan_tasks.contract.messages import (
    ToolCallError,
    ToolCallResult,
    WireModel,
    epoch_milliseconds,
    iso_time,
)
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL, EVENT_TOOL
from goondan_tasks.contract.output import Progress
from goondan_tasks.contract.redaction import beginning_of, hidden_by_place, hidden_in_log
from goondan_tasks.contract.wording import member
from goondan_tasks.history.attempts import Attempt, attempts_of, end_of_run, time_of
from goondan_tasks.ledger.call_filter import CallFilter, moments
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.losses import with_losses
from goondan_tasks.ledger.record import CallRecord

Kind = Literal["call", "request", "event", "answer"]

#: how many recent calls of each agent are searched for calls that are in no index
SEARCHED = 1000
#: how many generations of callers are read that are in no index
LONGEST_WAY_UP = 100
#: how many calls are read at once, since each may be as large as the limits of arguments and result
BATCH = 50
#: how much of an error's message is kept
MESSAGE_CHARACTERS = 500
#: how many characters of the arguments and of the output are shown
SHOWN_CHARACTERS = 500
#: the states of calls that have not ended, in the order of importance
_OPEN = ("lost", "running", "pending", "waiting", "queued", "scheduled")

_KINDS: dict[str, Kind] = {DELEGATE_TOOL: "request", EVENT_TOOL: "event", DELEGATE_RESULT_TOOL: "answer"}


class TraceError(WireModel):
    """Why a call failed. ``message`` has at most 500 characters; the call's result has all of it."""

    code: str
    message: str


class CallFacts(WireModel):
    """The facts about a call or handoff, shown in a trace and alone."""

    id: str
    kind: Kind
    agent: str
    instance: str
    tool: str
    #: the type of the AgentEvent, if this is a handoff
    event_type: str | None = None
    #: queued, waiting (for a limit), running, lost (its worker is dead), pending, ok, error or dead
    state: str
    worker: str | None = None
    attempt: int = 0
    queued_at: str
    started_at: str | None = None
    finished_at: str | None = None
    #: the last sign of life of the worker with which the call was lost
    lost_at: str | None = None
    #: from queueing to the start of the run, or to the end without one, or until now; without earlier runs
    waiting_seconds: float
    #: from the start of the run to its end, to the last sign of life of its dead worker, or until now
    running_seconds: float | None = None
    #: tokens of a request to a model, or of all requests of a Turn: ``input``, which includes ``cached``, and
    #: ``output``, which includes ``reasoning``
    usage: dict[str, int] | None = None
    #: the limit that it is waiting for
    waiting_for: str | None = None
    #: of a pending call: ``approval`` or ``completion``; who approved the call, and whether they changed it
    awaits: str | None = None
    approved_by: str | None = None
    is_edited: bool = False
    #: the identities of the call that caused this one, of the first in that chain, and of the replayed call
    parent_id: str | None = None
    root_id: str | None = None
    replay_of: str | None = None
    correlation_id: str
    trace_id: str
    span_id: str


class TraceNode(CallFacts):
    """One call or handoff. ``depth`` is 0 for the roots of the trace."""

    depth: int = 0
    error: TraceError | None = None
    #: why its place in the tree is not certain
    note: str | None = None


class Trace(WireModel):
    """Related calls and handoffs: depth first, siblings by time."""

    #: the requested one, else that of the first node
    correlation_id: str
    nodes: tuple[TraceNode, ...]
    #: how many more calls have expired or cannot be read
    expired: int = 0

    @property
    def roots(self) -> tuple[TraceNode, ...]:
        """The calls without a known cause."""
        return tuple(node for node in self.nodes if node.depth == 0)

    def children(self, node_id: str) -> tuple[TraceNode, ...]:
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


class TraceSummary(WireModel):
    """A trace in one line: its first call, the number of calls, and its state."""

    trace_id: str
    correlation_id: str
    #: of the first call that has not expired
    id: str
    kind: Kind
    agent: str
    instance: str
    tool: str
    event_type: str | None = None
    #: when the first call was queued, and when the last one
    began_at: str
    latest_at: str
    #: calls and handoffs
    calls: int
    #: the state of a recent call that has not ended, else of the first call
    state: str


def build_trace(correlation_id: str, nodes: Iterable[TraceNode], *, expired: int = 0) -> Trace:
    """Order ``nodes`` as a tree: depth first, siblings by time.

    No node is left out. A node without its parent becomes a child of its chain's root, if that is known, and
    the nodes of a cycle become descendants of one of them. A note says so.
    """
    known = {node.id: node for node in sorted(nodes, key=lambda node: (node.queued_at, node.id))}
    notes: dict[str, str] = {}
    parents: dict[str, str | None] = {}
    children: dict[str | None, list[str]] = defaultdict(list)
    for node in known.values():
        parent = node.parent_id
        if parent is not None and parent not in known:
            notes[node.id] = f"caused by {parent}, which is unknown or has expired"
            parent = node.root_id if node.root_id in known else None
        parents[node.id] = parent
        children[parent].append(node.id)
    depths: dict[str, int] = {}  # in the order of the tree

    def place(top: str) -> None:
        waiting = [(0, top)]
        while waiting:
            depth, node_id = waiting.pop()
            if node_id not in depths:
                depths[node_id] = depth
                waiting += [(depth + 1, child) for child in reversed(children[node_id])]

    for top in children[None]:
        place(top)
    for top in known:
        if top not in depths:  # in a cycle, or below one: climb until a node repeats
            passed: set[str] = set()
            while top not in passed:
                passed.add(top)
                top = parents[top] or top
            notes[top] = "the calls that caused it form a circle"
            place(top)
    placed = (
        known[node_id].model_copy(update={"depth": depth, "note": notes.get(node_id)})
        for node_id, depth in depths.items()
    )
    return Trace(correlation_id=correlation_id, nodes=tuple(placed), expired=expired)


def read_trace(ledger: Ledger, name: str, agents: Callable[[], Iterable[str]] = tuple) -> Trace | None:
    """Read the trace with a correlationId, a call's id, or a traceId; ``None`` if nothing has that name.

    Related calls are in an index. A name that is in none is searched among the recent calls of ``agents``,
    which are asked for only then.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    reader = _Reader(ledger)
    reader.read(_find(ledger, name, agents))
    found = list(reader.nodes.values())
    if not found:
        return None
    # the index orders calls of the same millisecond by their ids
    first = reader.nodes.get(name) or next((node for node in found if node.parent_id is None), found[0])
    correlation_id = name if any(node.correlation_id == name for node in found) else first.correlation_id
    traces = dict.fromkeys(node.trace_id for node in found)
    reader.read([call_id for trace_id in traces for call_id in _indexed(ledger, trace_id)])
    return build_trace(correlation_id, reader.nodes.values(), expired=reader.expired)


def read_traces(
    ledger: Ledger, agents: Iterable[str], limit: int, **ages: Unpack[CallFilter]
) -> list[TraceSummary]:
    """Read the latest traces of ``agents``, those with the newest calls first.

    Redis has no list of traces, which would cost each call a command. So the SEARCHED most recent calls in
    the time range are grouped by traceId, and each trace's index has its first call and the number of its
    calls.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    traces: dict[str, dict[str, CallRecord]] = defaultdict(dict)
    for record in with_losses(ledger, ledger.recent(agents, SEARCHED, moments(ledger.redis, ages))):
        traces[record.call.trace_id][record.id] = record
    latest = dict(islice(traces.items(), limit))
    with ledger.redis.pipeline(transaction=False) as pipe:
        for trace_id in latest:
            pipe.zrange(ledger.keys.trace(trace_id), 0, 0)
        heads = rows_of(pipe)
    _add(ledger, latest, {name: head[0].decode() for name, head in zip(latest, heads, strict=True) if head})
    firsts = {trace_id: _first(known).call.root_id for trace_id, known in latest.items()}
    _add(ledger, latest, {trace_id: root_id for trace_id, root_id in firsts.items() if root_id})
    with ledger.redis.pipeline(transaction=False) as pipe:
        for trace_id, known in latest.items():
            pipe.zcard(ledger.keys.trace(trace_id))
            pipe.zmscore(ledger.keys.trace(trace_id), list(known))
        rows = rows_of(pipe)
    return [
        _summary(known, (indexed or 0) + sum(score is None for score in scores or [None] * len(known)))
        for known, indexed, scores in zip(latest.values(), rows[::2], rows[1::2], strict=True)
    ]


def _add(ledger: Ledger, traces: Mapping[str, dict[str, CallRecord]], wanted: Mapping[str, str]) -> None:
    """Read one more call of each trace, unless it is known."""
    missing = {call_id: trace_id for trace_id, call_id in wanted.items() if call_id not in traces[trace_id]}
    for record in with_losses(ledger, filter(None, ledger.records(list(missing)))):
        traces[missing[record.id]][record.id] = record


def _first(known: Mapping[str, CallRecord]) -> CallRecord:
    """Return the earliest call, preferably one without a cause."""
    return min(
        known.values(), key=lambda record: (record.call.parent_id is not None, record.queued_at, record.id)
    )


def _summary(known: Mapping[str, CallRecord], calls: int) -> TraceSummary:
    first = _first(known)
    states = {record.state for record in known.values()}
    return TraceSummary(
        trace_id=first.call.trace_id,
        correlation_id=first.call.correlation_id,
        id=first.id,
        kind=_KINDS.get(first.call.tool_name, "call"),
        agent=first.call.agent_name,
        instance=first.call.instance_key,
        tool=first.call.tool_name,
        event_type=_event_type(first),
        began_at=iso_time(first.queued_at),
        latest_at=iso_time(max(record.queued_at for record in known.values())),
        calls=calls,
        state=next((state for state in _OPEN if state in states), first.state),
    )


def _find(ledger: Ledger, name: str, agents: Callable[[], Iterable[str]]) -> list[str]:
    if ids := _indexed(ledger, name):
        return ids
    if name.isprintable() and ledger.record(name) is not None:
        return [name]
    recent = ledger.recent(agents(), SEARCHED)
    return [one.id for one in recent if name in {one.call.correlation_id, one.call.trace_id}]


def _indexed(ledger: Ledger, name: str) -> list[str]:
    ids = cast("list[bytes]", ledger.redis.zrange(ledger.keys.trace(name), 0, -1))
    return [call_id.decode(errors="replace") for call_id in ids]


class _Reader:
    """Reads calls and their callers in batches; keeps only the nodes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.nodes: dict[str, TraceNode] = {}
        #: how many of the requested calls have expired or cannot be read
        self.expired = 0
        self._missing: set[str] = set()
        self._now = redis_time(ledger.redis)

    def read(self, ids: list[str]) -> None:
        """Read calls and the calls that they refer to."""
        wanted = self._unknown(ids)
        known_missing = len(self._missing)
        self._read(wanted)
        self.expired += len(self._missing) - known_missing
        for _ in range(LONGEST_WAY_UP):
            nodes = [self.nodes[call_id] for call_id in wanted if call_id in self.nodes]
            named = (name for node in nodes for name in (node.parent_id, node.root_id, node.replay_of))
            wanted = self._unknown(filter(None, named))
            if not wanted:
                break
            self._read(wanted)

    def _unknown(self, ids: Iterable[str]) -> list[str]:
        return [one for one in dict.fromkeys(ids) if one not in self.nodes and one not in self._missing]

    def _read(self, ids: list[str]) -> None:
        for start in range(0, len(ids), BATCH):
            batch = ids[start : start + BATCH]
            known = [record for record in self._ledger.records(batch) if record is not None]
            for record in with_losses(self._ledger, known):
                self.nodes[record.id] = node_of(record, record.known_result, self._now)
            self._missing.update(one for one in batch if one not in self.nodes)


def node_of(record: CallRecord, result: ToolCallResult | None, now: float) -> TraceNode:
    """Make the node of one call at the time ``now``, in ms since the epoch."""
    call = record.call
    error = None if result is None else result.error
    started, ended = _run_of(record, result, now)
    waited_until = ended if started is None else started
    return TraceNode(
        id=record.id,
        kind=_KINDS.get(call.tool_name, "call"),
        agent=call.agent_name,
        instance=call.instance_key,
        tool=call.tool_name,
        event_type=_event_type(record),
        state=record.state,
        worker=record.worker,
        attempt=record.attempt,
        queued_at=iso_time(record.queued_at),
        started_at=time_of(started),
        finished_at=time_of(record.finished_at),
        lost_at=time_of(record.lost_at),
        waiting_seconds=_seconds(record.queued_at + _lost_time(record, waited_until), waited_until),
        running_seconds=None if started is None else _seconds(started, ended),
        usage=None if result is None else result.meta.usage,
        waiting_for=record.waiting_for,
        awaits=record.awaits,
        approved_by=record.approved_by,
        error=error and TraceError(code=error.code, message=error.message[:MESSAGE_CHARACTERS]),
        parent_id=call.parent_id,
        root_id=call.root_id,
        replay_of=call.replay_of,
        is_edited=call.edited is not None,
        correlation_id=call.correlation_id,
        trace_id=call.trace_id,
        span_id=call.span_id,
    )


def _run_of(record: CallRecord, result: ToolCallResult | None, now: float) -> tuple[float | None, float]:
    """Return when the last run began, if it did, and when it ended or the wait for it did; else now.

    Of a running call, and of one whose worker died, the time of the claim is known, and of the latter when
    its worker was last seen.
    """
    end = end_of_run(record, result)
    ended = now if end is None else end
    if result is None:
        return record.claimed_at if record.has_started else None, ended
    if result.meta.started_at is not None:
        return epoch_milliseconds(result.meta.started_at), ended
    last = record.former[-1] if record.former else None
    if last is not None and last.attempt == record.attempt and last.has_started:
        return last.claimed_at, last.ended_at
    return None, ended


def _lost_time(record: CallRecord, until: float) -> float:
    """Return how long the runs before that time took that ended without a result, in ms."""
    return sum(
        run.ended_at - run.claimed_at for run in record.former if run.has_started and run.claimed_at < until
    )


def _event_type(record: CallRecord) -> str | None:
    if record.call.tool_name not in _KINDS or not isinstance(record.call.args, dict):
        return None
    event_type = member(record.call.args.get("payload"), "type")
    return event_type if isinstance(event_type, str) else None


def _seconds(start: float, end: float) -> float:
    return round(max(0.0, end - start) / 1000, 3)


class Excerpt(WireModel):
    """The beginning of a JSON value as text without secrets, and the size of the whole in bytes."""

    text: str
    size: int
    is_cut: bool = False


class RelatedCall(WireModel):
    """A call that caused another one, or was caused by it."""

    id: str
    agent: str
    instance: str
    tool: str
    state: str


class CallStory(CallFacts):
    """Everything that is known about a call."""

    #: its state in words: where, and for how long
    summary: str
    #: what a call that does not run waits for, and what ends that; absent if it runs, or has ended
    why: str | None = None
    tool_call_id: str
    turn_id: str
    step_id: str | None = None
    args: Excerpt
    attempts: tuple[Attempt, ...] = ()
    #: how often it may be run again if its worker dies; absent if unknown or not decided yet
    runs_left: int | None = None
    #: how many runs failed and were retried; absent for a call that has ended
    retries: int | None = None
    deadline: str | None = None
    timeout_seconds: float | None = None
    #: while it waits: the limits that it must pass, and how many calls are before it at ``waiting_for``
    limits: tuple[str, ...] = ()
    ahead: int | None = None
    is_cancelled: bool = False
    progress: Progress | None = None
    handle: str | None = None
    expires_at: str | None = None
    #: when a person changed the arguments, and the arguments that were asked for
    edited_at: str | None = None
    asked_args: Excerpt | None = None
    replayed_by: str | None = None
    error: ToolCallError | None = None
    #: the end of the traceback of the handler's exception, without secrets
    traceback: str | None = None
    #: the process that ended it in place of its worker
    settled_by: str | None = None
    output: Excerpt | None = None
    output_file: str | None = None
    parent: RelatedCall | None = None
    children: tuple[RelatedCall, ...] = ()


def read_story(ledger: Ledger, record: CallRecord, why: str | None = None) -> CallStory:
    """Collect the story of a call, with its cause and the calls that it caused; ``why`` it does not run.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    now, trace = redis_time(ledger.redis), read_trace(ledger, record.id)
    limits, ahead = _limits(ledger, record)
    return story_of(record, now, trace=trace, limits=limits, ahead=ahead, why=why)


def story_of(
    record: CallRecord,
    now: float,
    *,
    trace: Trace | None = None,
    limits: tuple[str, ...] = (),
    ahead: int | None = None,
    why: str | None = None,
) -> CallStory:
    """Make the story of a call at ``now`` (ms, Redis time); ``trace`` has its cause and effects."""
    call, result = record.call, record.known_result
    facts = node_of(record, result, now).model_dump(exclude={"depth", "note", "error"})
    nodes = {} if trace is None else {node.id: node for node in trace.nodes}
    parent = nodes.get(call.parent_id or "")
    settler = None if result is None else result.meta.worker
    is_open = record.finished_at is None
    deadline = call.deadline if record.deadline is None else iso_time(record.deadline)
    return CallStory(
        **facts,
        summary=record.state_text(now),
        why=why,
        tool_call_id=call.shown_id,
        turn_id=call.turn_id,
        step_id=call.step_id,
        args=excerpt(call.args),
        attempts=attempts_of(record, result),
        runs_left=record.deadly_runs_left if is_open else None,
        retries=record.retries if is_open else None,
        deadline=deadline,
        timeout_seconds=call.timeout_seconds,
        limits=limits,
        ahead=ahead,
        is_cancelled=record.is_cancelled,
        progress=record.progress if is_open else None,
        handle=record.handle,
        expires_at=time_of(record.expires_at),
        edited_at=None if call.edited is None else call.edited.at,
        asked_args=None if call.edited is None else excerpt(call.edited.asked),
        replayed_by=record.replayed_by,
        error=None if result is None else result.error,
        traceback=record.traceback,
        settled_by=None if record.worker is None or settler == record.worker else settler,
        output=None if result is None or result.output is None else excerpt(result.output),
        output_file=None if result is None else result.meta.output_file,
        parent=None if parent is None else _related(parent),
        children=() if trace is None else tuple(map(_related, trace.children(record.id))),
    )


def excerpt(value: Any) -> Excerpt:
    """Return the beginning of a JSON value. Secrets are hidden before the cut, or half of one could stay."""
    beginning, is_whole = beginning_of(value, SHOWN_CHARACTERS)
    text = hidden_by_place(serializer.encode(hidden_in_log(beginning)).decode())
    is_cut = not is_whole or len(text) > SHOWN_CHARACTERS
    return Excerpt(text=text[:SHOWN_CHARACTERS], size=len(serializer.encode(value)), is_cut=is_cut)


def _limits(ledger: Ledger, record: CallRecord) -> tuple[tuple[str, ...], int | None]:
    """Return the limits of a waiting call (``permits.lua``), and the calls before it."""
    if record.waiting_for is None:
        return (), None
    with ledger.redis.pipeline(transaction=False) as pipe:
        pipe.hget(ledger.keys.waiter(record.id), "gates")
        pipe.zrank(ledger.keys.wait_queue(record.waiting_for), record.id)
        gates, ahead = rows_of(pipe)
    lines = (gates or b"").decode().splitlines()
    return tuple(line.rpartition(" ")[2] for line in lines), ahead


def _related(node: TraceNode) -> RelatedCall:
    return RelatedCall(id=node.id, agent=node.agent, instance=node.instance, tool=node.tool, state=node.state)

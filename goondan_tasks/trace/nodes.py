"""A trace as others get it: its calls in the order of the tree, each with its depth."""

from functools import cached_property
from typing import Literal

from goondan_tasks.messages import WireModel

Kind = Literal["call", "request", "event", "answer"]


class TraceError(WireModel):
    """Why a call failed. ``message`` is cut at 500 characters; the call's result has all of it."""

    code: str
    message: str


class TraceNode(WireModel):
    """One call or handoff. ``depth`` is 0 for what nobody in the trace has caused."""

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
    #: the limit that it waits for
    waiting_for: str | None = None
    error: TraceError | None = None
    #: the identities of the call that caused this one, of the first of them all, and of the one it replays
    parent_id: str | None = None
    root_id: str | None = None
    replay_of: str | None = None
    correlation_id: str
    trace_id: str
    span_id: str
    #: what is odd about its place in the tree
    note: str | None = None


class Trace(WireModel):
    """The calls and handoffs that belong together, each behind what caused it, siblings by time."""

    #: by which they were asked for; else that of the first of them
    correlation_id: str
    nodes: tuple[TraceNode, ...]
    #: how many more there were, whose records have expired or cannot be read
    expired: int = 0

    @property
    def roots(self) -> tuple[TraceNode, ...]:
        """What nobody in the trace has caused."""
        return tuple(node for node in self.nodes if node.depth == 0)

    def children(self, node_id: str) -> tuple[TraceNode, ...]:
        """Return what stands right below a node in the tree."""
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

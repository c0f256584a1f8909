"""From single calls to the tree of a trace. Nothing is left out, and damaged data cannot make it endless."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from goondan_tasks.trace.nodes import Trace, TraceNode


def build_trace(correlation_id: str, nodes: Iterable[TraceNode], *, expired: int = 0) -> Trace:
    """Put ``nodes`` into the order of their tree: each behind its parent, siblings by time.

    One whose parent is missing stands below the first call of its chain, if that is there; calls that have
    caused each other stand below one of them. A note says so.
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
        for node_id in self._nodes:  # what is still unseen is in a circle, or comes from one
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
        """Climb from a node that no root leads to until one comes again."""
        passed: set[str] = set()
        while node_id not in passed:
            passed.add(node_id)
            node_id = self._parents[node_id] or node_id
        return node_id

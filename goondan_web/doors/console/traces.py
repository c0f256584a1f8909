"""The page of a trace: its calls as a tree, along one axis of time, and what its whole time was spent on."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.contract.names import MODEL_TOOLS
from goondan_tasks.history.trace import Trace, TraceNode
from goondan_web.doors.console.asking import Asking, View
from goondan_web.doors.console.filters import link
from goondan_web.doors.console.rendering import PATH, Shown, at

#: how many calls are shown at once: a trace with more is shown by parts
_MOST_ROWS = 45
#: what a call waits for, and what it is when it runs: the words of the legend, by the classes of the bars
LEGEND = {
    "queue": "waits in a queue",
    "limit": "waits for a limit",
    "approval": "waits for a person",
    "model": "model",
    "tool": "tool",
    "handoff": "hand-off",
}


def show_trace(asking: Asking) -> Shown:
    """Show the calls of a trace; ``fold`` in its address has the ids of calls whose effects are left out.

    Of a large one, a part is shown: the effects of the call ``top``, or all, as deep as there is room for,
    from the row ``from`` on.
    """
    trace = asking.client.trace(asking.path["id"])
    folded = list(filter(None, (asking.chosen("fold") or "").split(",")))
    top = asking.chosen("top")
    visible = list(_visible(_below(trace.nodes, top), set(folded)))
    shallow, below = _shallow(visible)
    first = asking.number("from", 1, 10**6) - 1
    nodes = shallow[first : first + _MOST_ROWS]
    part = partial(link, "traces", trace.correlation_id, fold=",".join(folded))
    following = first + _MOST_ROWS
    data = {
        "correlationId": trace.correlation_id,
        "rows": _rows(trace, nodes, folded),
        "below": {one: (count, part(top=one)) for one, count in below.items()},
        "count": len(trace.nodes),
        "seconds": (_end(trace.nodes) - _begin(trace.nodes)) / 1_000,
        "whole": at("traces", trace.correlation_id) if top or first else None,
        "next": part(top=top, **{"from": str(following + 1)}) if len(shallow) > following else None,
        "hidden": max(0, len(shallow) - following),
        "expired": trace.expired,
        "usage": dict(sum((Counter(node.usage) for node in trace.nodes if node.kind == "call"), Counter())),
        "legend": LEGEND,
    }
    return Shown("trace.html", "Trace", data)


def _below(nodes: Sequence[TraceNode], top: str | None) -> Sequence[TraceNode]:
    """Return a call and all that it has caused; all calls if there is no such one."""
    first = next((number for number, node in enumerate(nodes) if node.id == top), None)
    if first is None:
        return nodes
    after = range(first + 1, len(nodes))
    end = next((number for number in after if nodes[number].depth <= nodes[first].depth), len(nodes))
    return nodes[first:end]


def _shallow(nodes: Sequence[TraceNode]) -> tuple[list[TraceNode], dict[str, int]]:
    """Return the calls as deep as a page has room for, and how many each of the last ones has below it."""
    if len(nodes) <= _MOST_ROWS:
        return list(nodes), {}
    depths = Counter(node.depth for node in nodes)
    deepest = min(depths) + 1
    rows = depths[deepest - 1] + depths[deepest]
    while depths[deepest + 1] and rows + depths[deepest + 1] <= _MOST_ROWS:
        deepest += 1
        rows += depths[deepest]
    shown: list[TraceNode] = []
    below = Counter[str]()
    for node in nodes:
        if node.depth <= deepest:
            shown.append(node)
        else:
            below[shown[-1].id] += 1
    return shown, dict(below)


def _visible(nodes: Iterable[TraceNode], folded: set[str]) -> Iterable[TraceNode]:
    """Yield the calls that no folded call has caused."""
    depth = None
    for node in nodes:
        if depth is not None and node.depth > depth:
            continue
        depth = node.depth if node.id in folded else None
        yield node


def _rows(trace: Trace, nodes: Sequence[TraceNode], folded: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows; places are parts of a thousand of the trace's whole time."""
    begin = _begin(trace.nodes)
    whole, critical = max(1.0, _end(trace.nodes) - begin), critical_path(trace)

    def place(time: float) -> float:
        return round(1_000 * (time - begin) / whole, 1)

    def folding(node: TraceNode) -> dict[str, Any] | None:
        if not trace.children(node.id):
            return None
        is_folded = node.id in folded
        ids = [one for one in folded if one != node.id] if is_folded else [*folded, node.id]
        return {"isFolded": is_folded, "address": link("traces", trace.correlation_id, fold=",".join(ids))}

    return [
        {
            "node": node,
            "isCritical": node.id in critical,
            "folding": folding(node),
            "waitKind": _wait(node),
            "runKind": _run(trace, node),
            "waitAt": place(_queued(node)),
            "waits": max(0.0, place(_started(node)) - place(_queued(node))),
            "runAt": place(_started(node)),
            "runs": max(2.0, place(_ended(node)) - place(_started(node))),
        }
        for node in nodes
    ]


def critical_path(trace: Trace) -> set[str]:
    """Return the ids of the calls that the end of a trace waited for.

    Backwards from the end of a call, the call that it has caused and that ended last is one of them, then the
    one that ended last before that one was queued, and so on.
    """
    found: set[str] = set()
    latest = max(trace.roots, key=_ended, default=None)
    left = [] if latest is None else [latest]
    while left:
        node = left.pop()
        found.add(node.id)
        until = _ended(node)
        for child in sorted(trace.children(node.id), key=_ended, reverse=True):
            if _ended(child) <= until:
                left.append(child)
                until = _queued(child)
    return found


def _wait(node: TraceNode) -> str:
    """Return what a call waits for, or has waited for, as far as its record tells."""
    if node.waiting_for is not None:
        return "limit"
    return "approval" if node.approved_by is not None or node.awaits == "approval" else "queue"


def _run(trace: Trace, node: TraceNode) -> str:
    if node.kind != "call" or any(child.kind != "call" for child in trace.children(node.id)):
        return "handoff"
    return "model" if node.tool.startswith(MODEL_TOOLS) else "tool"


def _queued(node: TraceNode) -> float:
    return epoch_milliseconds(node.queued_at)


def _started(node: TraceNode) -> float:
    return _queued(node) + 1_000 * node.waiting_seconds


def _ended(node: TraceNode) -> float:
    return _started(node) + 1_000 * (node.running_seconds or 0)


def _begin(nodes: Iterable[TraceNode]) -> float:
    return min(map(_queued, nodes), default=0)


def _end(nodes: Iterable[TraceNode]) -> float:
    return max(map(_ended, nodes), default=0)


PAGES = (View(f"{PATH}/traces/{{id}}", show_trace),)

"""A trace for people: its tree, with state, times and worker of each call."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from goondan_tasks.cli.call_view import duration_text
from goondan_tasks.cli.printable import on_one_line
from goondan_tasks.cli.trace_bar import TraceBar
from goondan_tasks.cli.trace_guides import guides
from goondan_tasks.trace import Trace, TraceNode

#: so much of a line is for the tree at least; a wider call has its columns in the next line
TREE_WIDTH = 36
#: the wanted width of the timeline, and what a name in the headline may take
BAR_WIDTH, NAME_WIDTH = 20, 60

#: what an event is called if nobody gives it a type: its kind says the same
_PLAIN_TYPES = {None, "agent.request", "agent.send"}

_STYLES = {
    "ok": "green",
    "error": "red",
    "dead": "bold red",
    "running": "cyan",
    "pending": "yellow",
    "waiting": "yellow",
    "queued": "dim",
}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the columns stand, and what the workers are called in theirs."""

    width: int
    tree: int
    bar: TraceBar | None
    workers: Mapping[str, str]

    @classmethod
    def of(cls, nodes: Sequence[TraceNode], longest: int, width: int) -> "_Layout":
        names = dict.fromkeys(node.worker for node in nodes if node.worker is not None)
        workers = {name: f"w{number}" for number, name in enumerate(names, start=1)}
        room = width - _columns("", "", "", "", "").cell_len - 2
        bar = TraceBar(nodes, BAR_WIDTH) if room - BAR_WIDTH - 2 >= TREE_WIDTH else None
        room -= 0 if bar is None else BAR_WIDTH + 2
        return cls(width, max(TREE_WIDTH, min(room, longest)), bar, workers)

    def line(self, left: Text, right: Text, below: str = "") -> Text:
        """Put a call and its columns into one line, or into two if the call is too long."""
        gap = self.tree - left.cell_len
        if gap < 0:
            left.append(f"\n{below:{self.tree}}", style="dim")
        line = left.append(" " * (max(gap, 0) + 2)).append_text(right)
        line.rstrip()
        return line


def trace_text(trace: Trace, *, width: int, limit: int) -> Text:
    """Draw at most ``limit`` calls in lines of ``width`` characters; only a long name makes one longer."""
    nodes = trace.nodes[:limit]
    drawn = list(zip(nodes, guides([node.depth for node in trace.nodes]), _labels(nodes), strict=False))
    longest = max(cell_len(before + label) for _, (before, _), label in drawn)
    layout = _Layout.of(nodes, longest, width)
    lines = [_headline(trace), layout.line(Text(), _columns("state", "waited", "ran", "on", "id"))]
    for node, (before, below), label in drawn:
        call = Text().append(before, style="dim").append(label)
        lines.append(layout.line(call, _facts(node, layout), below))
        for text, style in _notes(node):
            lines.append(Text().append(below, style="dim").append(_cut(text, width - cell_len(below)), style))
    return Text("\n").join([*lines, *_footer(trace, len(nodes), layout.workers)])


def _headline(trace: Trace) -> Text:
    states = Counter(node.state for node in trace.nodes)
    calls = sum(node.kind == "call" for node in trace.nodes)
    counts = {"calls": calls, "handoffs": len(trace.nodes) - calls}
    line = Text().append(_cut(trace.correlation_id, NAME_WIDTH), style="bold")
    line.append(" · " + ", ".join(f"{what} {count}" for what, count in counts.items() if count))
    for state, style in _STYLES.items():
        if states[state]:
            line.append(" · ").append(f"{states[state]} {state}", style=style)
    return line


def _labels(nodes: Iterable[TraceNode]) -> Iterator[str]:
    """Name what was called; a tool that an agent calls itself needs not say whose it is."""
    path: list[TraceNode] = []
    for node in nodes:
        del path[node.depth :]
        whose = f"{node.agent}@{node.instance}"
        is_own = bool(path) and node.kind == "call" and whose == f"{path[-1].agent}@{path[-1].instance}"
        yield on_one_line(_what(node) if is_own else f"{whose} {_what(node)}")
        path.append(node)


def _what(node: TraceNode) -> str:
    if node.kind == "call":
        return node.tool or "(no tool)"
    return node.kind if node.event_type in _PLAIN_TYPES else f"{node.kind} {node.event_type}"


def _facts(node: TraceNode, layout: _Layout) -> Text:
    ran = "" if node.running_seconds is None else duration_text(node.running_seconds)
    worker = "" if node.worker is None else layout.workers[node.worker]
    facts = _columns(node.state, duration_text(node.waiting_seconds), ran, worker, on_one_line(node.id)[:8])
    facts.stylize(_STYLES.get(node.state, "none"), 0, len(node.state))
    return facts if layout.bar is None else facts.append(f"  {layout.bar.draw(node)}", style="blue")


def _columns(state: str, waited: str, ran: str, worker: str, call_id: str) -> Text:
    return Text(f"{state:<7} {waited:>8} {ran:>8}  {worker:<4} {call_id:<8}")


def _notes(node: TraceNode) -> Iterator[tuple[str, str]]:
    """Yield what else is to be said of a call, each with its style."""
    if node.error is not None:
        yield f"{node.error.code}: {node.error.message}", "red"
    facts = [
        f"attempt {node.attempt}" if node.attempt > 1 else None,
        None if node.waiting_for is None else f"waits for {node.waiting_for}",
        None if node.replay_of is None else f"replays {node.replay_of}",
        node.note,
    ]
    if said := " · ".join(fact for fact in facts if fact is not None):
        yield said, "yellow"


def _footer(trace: Trace, shown: int, workers: Mapping[str, str]) -> Iterator[Text]:
    more = len(trace.nodes) - shown
    if more:
        yield Text(f"… and {more:,} more; --limit shows more of them, --json all")
    if trace.expired:
        yield Text(f"{trace.expired:,} more have expired", style="dim")
    for name, label in workers.items():
        yield Text(f"{label} is {on_one_line(name)}", style="dim")


def _cut(text: str, width: int) -> str:
    line = on_one_line(text)
    return line if cell_len(line) <= width else set_cell_size(line, width - 1).rstrip() + "…"

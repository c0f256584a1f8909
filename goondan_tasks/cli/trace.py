"""``goondan trace``: the tree of calls and handoffs that belong together."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from goondan_tasks.cli.calls import whole_id
from goondan_tasks.cli.options import Watch, argument, option
from goondan_tasks.cli.output import STATE_STYLES, Answer, Screen, on_one_line
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.waiting import give
from goondan_tasks.client import Client
from goondan_tasks.errors import CallNotFoundError
from goondan_tasks.messages import epoch_milliseconds
from goondan_tasks.trace import Trace, TraceNode
from goondan_tasks.wording import duration_text

#: the least width of the tree; a wider call has its columns on the next line
_TREE_WIDTH = 36
#: the wanted width of the timeline, and what a name in the headline may take
_BAR_WIDTH, _NAME_WIDTH = 20, 60
#: deeper calls have their depth as a number instead: lines would take the whole screen
DEEPEST = 12

_GOES_ON, _ENDS = "│  ", "   "

#: names of an event without a type of its own: its kind says the same
_PLAIN_TYPES = {None, "agent.request", "agent.send"}


@takes_session
def trace(
    session: Session,
    correlation_id: Annotated[
        str,
        argument(
            "CORRELATION_ID",
            "The correlationId; or the id of a call, its first 8 characters or more, or a traceId.",
        ),
    ],
    limit: Annotated[int, option("N", "Draw at most N calls.", min=1)] = 200,
    watch: Watch = None,
) -> None:
    """Draw the tree of calls and handoffs that caused one another, with states and times."""

    def look() -> Answer:
        found = next(traces)
        return Answer(found.to_wire(), trace_text(found, width=Screen().width, limit=limit))

    with session.client() as client:
        name, first = _found(client, correlation_id)
        traces = itertools.chain([first], iter(lambda: client.trace(name), None))
        return give(look, session.output, watch)


def trace_text(trace: Trace, *, width: int, limit: int) -> Text:
    """Draw at most ``limit`` calls in lines of ``width`` characters; only a long name makes one longer."""
    nodes = trace.nodes[:limit]
    drawn = list(zip(nodes, _guides([node.depth for node in trace.nodes]), _labels(nodes), strict=False))
    longest = max(cell_len(before + label) for _, (before, _), label in drawn)
    layout = _Layout.of(nodes, longest, width)
    lines = [_headline(trace), layout.line(Text(), _columns("state", "waited", "ran", "on", "id"))]
    for node, (before, below), label in drawn:
        lines.append(layout.line(Text().append(before, style="dim").append(label), layout.facts(node), below))
        for text, style in _notes(node):
            lines.append(Text().append(below, style="dim").append(_cut(text, width - cell_len(below)), style))
    return Text("\n").join([*lines, *_footer(trace, len(nodes), layout.workers)])


@dataclass(frozen=True, slots=True)
class _Layout:
    """The width of the columns, the short names of the workers, and the time axis of the bars."""

    tree: int
    has_bars: bool
    workers: Mapping[str, str]
    first: float
    scale: float

    @classmethod
    def of(cls, nodes: Sequence[TraceNode], longest: int, width: int) -> "_Layout":
        names = dict.fromkeys(node.worker for node in nodes if node.worker is not None)
        workers = {name: f"w{number}" for number, name in enumerate(names, start=1)}
        room = width - _columns("", "", "", "", "").cell_len - 2
        has_bars = room - _BAR_WIDTH - 2 >= _TREE_WIDTH
        room -= _BAR_WIDTH + 2 if has_bars else 0
        spans = [_span(node) for node in nodes]
        first = min(queued for queued, _, _ in spans)
        scale = _BAR_WIDTH / max(1.0, max(ended for _, _, ended in spans) - first)
        return cls(max(_TREE_WIDTH, min(room, longest)), has_bars, workers, first, scale)

    def line(self, left: Text, right: Text, below: str = "") -> Text:
        """Put a call and its columns on one line, or on two if the call is too long."""
        gap = self.tree - left.cell_len
        if gap < 0:
            left.append(f"\n{below:{self.tree}}", style="dim")
        line = left.append(" " * (max(gap, 0) + 2)).append_text(right)
        line.rstrip()
        return line

    def facts(self, node: TraceNode) -> Text:
        ran = "" if node.running_seconds is None else duration_text(node.running_seconds)
        worker = "" if node.worker is None else self.workers[node.worker]
        waited, call_id = duration_text(node.waiting_seconds), on_one_line(node.id)[:8]
        facts = _columns(node.state, waited, ran, worker, call_id)
        facts.stylize(STATE_STYLES.get(node.state, "none"), 0, len(node.state))
        return facts.append(f"  {self._bar(node)}", style="blue") if self.has_bars else facts

    def _bar(self, node: TraceNode) -> str:
        """Draw ``·`` for waiting, ``█`` for running: at least one character."""
        queued, started, ended = (round((moment - self.first) * self.scale) for moment in _span(node))
        begin = min(queued, _BAR_WIDTH - 1)
        run = max(0 if node.running_seconds is None else 1, ended - started)
        wait = max(started - queued, 0 if run else 1)
        return (" " * begin + "·" * wait + "█" * run)[:_BAR_WIDTH].ljust(_BAR_WIDTH)


def _found(client: Client, text: str) -> tuple[str, Trace]:
    """Find a trace by its correlationId or traceId, or by the id of a call or its beginning."""
    try:
        return text, client.trace(text)
    except CallNotFoundError:
        call_id = whole_id(client, text)
        if call_id == text:
            raise
        return call_id, client.trace(call_id)


def _span(node: TraceNode) -> tuple[float, float, float]:
    """Return when a call was queued, began to run and ended, in ms; until now if it goes on."""
    queued = epoch_milliseconds(node.queued_at)
    started = queued + node.waiting_seconds * 1000
    return queued, started, started + (node.running_seconds or 0) * 1000


def _guides(depths: Sequence[int]) -> list[tuple[str, str]]:
    """Return for each entry, given by its depth, what stands before it and before the lines below it.

    The tree is walked from its end, where it is known which lines go on.
    """
    found = []
    goes_on: list[bool] = []
    for depth in reversed(depths):
        inner = _GOES_ON if len(goes_on) > depth + 1 else _ENDS
        goes_on += [False] * (depth + 1 - len(goes_on))
        if depth == 0:
            found.append(("", inner))
        elif depth > DEEPEST:
            number = f"[{depth}] "
            found.append((number, " " * len(number)))
        else:
            upper = "".join(_GOES_ON if line else _ENDS for line in goes_on[1:depth])
            branch, trunk = ("├─ ", _GOES_ON) if goes_on[depth] else ("└─ ", _ENDS)
            found.append((upper + branch, upper + trunk + inner))
        del goes_on[depth + 1 :]
        goes_on[depth] = True
    return found[::-1]


def _headline(trace: Trace) -> Text:
    states = Counter(node.state for node in trace.nodes)
    calls = sum(node.kind == "call" for node in trace.nodes)
    counts = {"calls": calls, "handoffs": len(trace.nodes) - calls}
    line = Text().append(_cut(trace.correlation_id, _NAME_WIDTH), style="bold")
    line.append(" · " + ", ".join(f"{what} {count}" for what, count in counts.items() if count))
    for state, style in STATE_STYLES.items():
        if states[state]:
            line.append(" · ").append(f"{states[state]} {state}", style=style)
    return line


def _labels(nodes: Iterable[TraceNode]) -> Iterator[str]:
    """Name what was called; a tool that an agent calls itself is shown without the agent."""
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


def _columns(state: str, waited: str, ran: str, worker: str, call_id: str) -> Text:
    return Text(f"{state:<7} {waited:>8} {ran:>8}  {worker:<4} {call_id:<8}")


def _notes(node: TraceNode) -> Iterator[tuple[str, str]]:
    """Yield what else is to be said of a call, each with its style."""
    if node.error is not None:
        yield f"{node.error.code}: {node.error.message}", "red"
    facts = [
        f"attempt {node.attempt}" if node.attempt > 1 else None,
        None if node.waiting_for is None else f"waits for {node.waiting_for}",
        None if node.lost_at is None else f"lost with {node.worker} {_ago(node)} ago",
        None if node.replay_of is None else f"replays {node.replay_of}",
        node.note,
    ]
    if said := " · ".join(fact for fact in facts if fact is not None):
        yield said, "yellow"


def _ago(node: TraceNode) -> str:
    """Return how long ago the worker of a lost call was heard of."""
    _, _, until = _span(node)
    return duration_text(max(0.0, until - epoch_milliseconds(node.lost_at or node.queued_at)) / 1000)


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

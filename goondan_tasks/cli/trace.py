"""Commands that show calls: ``calls`` and ``traces`` list, ``show`` describes one, ``trace`` draws a tree."""

import itertools
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from goondan_tasks.cli.calls import CALL_COLUMNS, styled_state, whole_id
from goondan_tasks.cli.live_output import write_or_watch
from goondan_tasks.cli.options import (
    CallId,
    OfAgent,
    Watch,
    argument,
    complete_call,
    name_option,
    option,
    seconds_option,
)
from goondan_tasks.cli.output import (
    STATE_STYLES,
    Answer,
    Columns,
    Output,
    Screen,
    error_text,
    listing,
    local_time,
    make_table,
    named_message,
)
from goondan_tasks.cli.session import Session, require_agent, takes_client, takes_filter, takes_session
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.contract.names import MODEL_TOOLS
from goondan_tasks.contract.wording import counted, duration_text, on_one_line, tokens_text
from goondan_tasks.history.attempts import DIED, Attempt
from goondan_tasks.history.trace import (
    CallStory,
    Excerpt,
    RelatedCall,
    Trace,
    TraceNode,
    TraceSummary,
    node_of,
)
from goondan_tasks.ledger.call_filter import CallFilter, CallStatus
from goondan_tasks.ledger.call_search import CallPage
from goondan_tasks.ledger.record import CallRecord

#: the least width of the tree; a call that is wider has its columns on the next line
_TREE_WIDTH = 36
#: the widths of the timeline, and of the name in the headline
_BAR_WIDTH, _NAME_WIDTH = 20, 60
_TOKENS = "tokens"
#: how many calls a list shows
MOST_ROWS = 1_000
#: deeper calls show their depth as a number: their lines would fill the screen
DEEPEST = 12

#: the most children that ``show`` lists; ``goondan trace`` draws all
MOST_CHILDREN = 20

_GOES_ON, _ENDS = "│  ", "   "

#: types of an event that say no more than its kind
_PLAIN_TYPES = {None, "agent.request", "agent.send"}

Fact = tuple[str, object]
Since = Annotated[float | None, seconds_option("Only calls of the last S seconds, or 10m, 2h.")]
Until = Annotated[float | None, seconds_option("Only calls queued at least S seconds ago, or 10m, 2h.")]


@takes_client
@takes_filter("tool", "instance", "code", "text", "subject", "fingerprint")
def calls(
    session: Session,
    client: Client,
    agent: OfAgent = None,
    limit: Annotated[int, option("N", "Show at most N calls.", min=1, max=MOST_ROWS)] = 20,
    *,
    wanted: CallFilter,
    since: Since = None,
    until: Until = None,
    status: Annotated[CallStatus | None, typer.Option(help="Only calls with this status.")] = None,
    cursor: Annotated[str | None, name_option("C", "Go on where an earlier search stopped.")] = None,
    watch: Watch = None,
) -> None:
    """List the most recent calls, newest first; `goondan show ID` shows everything about one.

    A filter looks at 20,000 calls between --since and --until, and says how to go on. A call takes one
    line: cells that do not fit are cut, and a narrow terminal omits year, instance and worker.
    """
    wanted = CallFilter(**{**wanted, "status": status, "older_than": until, "newer_than": since})
    columns: Columns[CallRecord] = {
        "queued": lambda record: session.output.time(record.queued_at),
        **CALL_COLUMNS,
        "status": lambda record: styled_state(record.state),
        "code": lambda record: None if record.error is None else record.error.code,
        "took": _duration_of,
        "worker": lambda record: record.worker,
        "id": lambda record: session.output.call_id(record.id),
    }

    def look() -> Answer:
        require_agent(client, agent)
        page = client.call_page(agent, limit, cursor=cursor, **wanted)
        is_part = any(one is not None for one in (agent, cursor, *wanted.values()))
        if is_part and watch is None:
            _note_rest(page, session.output)
        none = "There are no such calls." if is_part else "There are no calls."
        return listing(
            page.calls,
            columns,
            wire=CallRecord.to_wire,
            none=none,
            unbroken={"queued", "status", "id"},
            spare={"instance", "worker"},
            is_cut=True,
        )

    return write_or_watch(look, session.output, watch)


def _note_rest(page: CallPage, output: Output) -> None:
    """Say how much was searched, and how to go on."""
    if page.cursor is not None:
        how = f"--cursor {shlex.quote(page.cursor)}"
        output.note(f"Searched {page.searched:,} of {page.total:,} calls. Go on with {how}")


def _duration_of(record: CallRecord) -> str | None:
    """Return how long the call's last run took, if the call has ended."""
    if record.finished_at is None:
        return None
    took = node_of(record, record.known_result, record.finished_at).running_seconds
    return None if took is None else duration_text(took)


@takes_client
def show(session: Session, client: Client, call_id: CallId) -> None:
    """Show everything about one call: its arguments, state, attempts, error, log lines, and what it caused.

    The exit code is 0 whatever the call's state; that of `goondan result ID` is 1 for an error.
    """
    story = client.describe(whole_id(client, call_id))
    output = session.output
    if output.as_json:
        return output.document(story.to_wire())
    output.print(make_table(("call", story.id), [*_facts(story)]))
    if story.attempts:
        output.print("")
        output.write(_attempts(story))
    if (error := story.error) is not None:
        output.print("")
        output.print(error_text(error.code, named_message(error), error.suggestion, error.help_url))
        where = f"the log of {on_one_line(story.worker)}" if story.worker else "the worker's log"
        kept = story.traceback or f"Traceback: none is kept with the call. See {where}."
        output.print(kept.rstrip())
    _show_lines(story, output)
    if story.children:
        output.print("")
        _show_children(story, output)
    return None


@takes_session
def trace(
    session: Session,
    correlation_id: Annotated[
        str,
        argument(
            "CORRELATION_ID",
            "A correlationId, a traceId, or a call's id or at least its first 8 characters.",
            autocompletion=complete_call,
        ),
    ],
    limit: Annotated[int, option("N", "Draw at most N calls.", min=1)] = 200,
    watch: Watch = None,
) -> None:
    """Draw the tree of calls and handoffs that caused each other, with states and times."""

    def look() -> Answer:
        found = next(found_traces)
        return Answer(found.to_wire(), trace_text(found, width=Screen().width, limit=limit))

    with session.client() as client:
        name, first = _find_trace(client, correlation_id)
        found_traces = itertools.chain([first], iter(lambda: client.trace(name), None))
        return write_or_watch(look, session.output, watch)


@takes_client
def traces(
    session: Session,
    client: Client,
    limit: Annotated[int, option("N", "Show at most N traces.", min=1, max=MOST_ROWS)] = 20,
    since: Since = None,
    until: Until = None,
    watch: Watch = None,
) -> None:
    """List the traces of the most recent calls, newest first; `goondan trace ID` draws one.

    The 1000 most recent calls between --since and --until are grouped by their traceId. A trace has the state
    of a call that has not ended, or else that of its first call.
    """
    columns: Columns[TraceSummary] = {
        "began": lambda one: session.output.time(epoch_milliseconds(one.began_at)),
        "agent": lambda one: one.agent,
        "instance": lambda one: one.instance,
        "first call": _what,
        "calls": lambda one: one.calls,
        "state": lambda one: styled_state(one.state),
        "id": lambda one: session.output.call_id(one.id),
        "trace": lambda one: one.trace_id,
    }

    def look() -> Answer:
        return listing(
            client.traces(limit, older_than=until, newer_than=since),
            columns,
            wire=TraceSummary.to_wire,
            none="There are no calls." if since is until is None else "There are no such calls.",
            unbroken={"began", "calls", "state", "id"},
            spare={"instance", "trace"},
            is_cut=True,
        )

    return write_or_watch(look, session.output, watch)


def trace_text(trace: Trace, *, width: int, limit: int) -> Text:
    """Draw at most ``limit`` calls in lines of ``width`` characters; only a long name makes a line longer."""
    nodes = trace.nodes[:limit]
    drawn = list(zip(nodes, _guides([node.depth for node in trace.nodes]), _labels(nodes), strict=False))
    longest = max(cell_len(before + label) for _, (before, _), label in drawn)
    layout = _Layout.of(nodes, longest, width)
    lines = [_headline(trace, width), layout.line(Text(), layout.titles())]
    for node, (before, below), label in drawn:
        lines.append(layout.line(Text().append(before, style="dim").append(label), layout.facts(node), below))
        for text, style in _notes(node):
            lines.append(Text().append(below, style="dim").append(_cut(text, width - cell_len(below)), style))
    return Text("\n").join([*lines, *_footer(trace, len(nodes), layout.workers)])


@dataclass(frozen=True, slots=True)
class _Layout:
    """The width of the columns, the short names of the workers, and the time axis of the bars."""

    tree: int
    #: the width of that column; 0 if no model was asked
    tokens: int
    has_bars: bool
    workers: Mapping[str, str]
    first: float
    scale: float

    @classmethod
    def of(cls, nodes: Sequence[TraceNode], longest: int, width: int) -> "_Layout":
        names = dict.fromkeys(node.worker for node in nodes if node.worker is not None)
        workers = {name: f"w{number}" for number, name in enumerate(names, start=1)}
        tokens = max((len(tokens_text(node.usage)) for node in nodes if node.usage), default=0)
        tokens = max(tokens, len(_TOKENS)) if tokens else 0
        room = width - _columns("", "", "", "", "").cell_len - 2 - (tokens and tokens + 1)
        has_bars = room - _BAR_WIDTH - 2 >= _TREE_WIDTH
        room -= _BAR_WIDTH + 2 if has_bars else 0
        spans = [_span(node) for node in nodes]
        first = min(queued for queued, _, _ in spans)
        scale = _BAR_WIDTH / max(1.0, max(ended for _, _, ended in spans) - first)
        least = _TREE_WIDTH - (tokens and tokens + 1)
        return cls(max(least, min(room, longest)), tokens, has_bars, workers, first, scale)

    def titles(self) -> Text:
        return self._with_tokens(_columns("state", "waited", "ran", "on", "id"), _TOKENS)

    def _with_tokens(self, columns: Text, tokens: str) -> Text:
        return columns.append(f" {tokens:>{self.tokens}}") if self.tokens else columns

    def line(self, left: Text, right: Text, below: str = "") -> Text:
        """Write a call and its columns on one line, or on two if the call is too long."""
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
        facts = _columns(on_one_line(node.state), waited, ran, worker, call_id)
        facts.stylize(STATE_STYLES.get(node.state, "none"), 0, len(node.state))
        facts = self._with_tokens(facts, "" if node.usage is None else tokens_text(node.usage))
        return facts.append(f"  {self._bar(node)}", style="blue") if self.has_bars else facts

    def _bar(self, node: TraceNode) -> str:
        """Draw waiting as ``·`` and running as ``█``; at least one character."""
        queued, started, ended = (round((moment - self.first) * self.scale) for moment in _span(node))
        begin = min(queued, _BAR_WIDTH - 1)
        run = max(0 if node.running_seconds is None else 1, ended - started)
        wait = max(started - queued, 0 if run else 1)
        return (" " * begin + "·" * wait + "█" * run)[:_BAR_WIDTH].ljust(_BAR_WIDTH)


def _find_trace(client: Client, text: str) -> tuple[str, Trace]:
    """Find a trace by its correlationId or traceId, or by a call's id or its beginning."""
    try:
        return text, client.trace(text)
    except CallNotFoundError:
        call_id = whole_id(client, text)
        if call_id == text:
            raise
        return call_id, client.trace(call_id)


def _span(node: TraceNode) -> tuple[float, float, float]:
    """Return when a call was queued, began to run and ended, in ms; now if it has not ended."""
    queued = epoch_milliseconds(node.queued_at)
    started = queued + node.waiting_seconds * 1000
    if node.started_at is not None:
        started = max(started, epoch_milliseconds(node.started_at))  # runs that were lost came before
    return queued, started, started + (node.running_seconds or 0) * 1000


def _guides(depths: Sequence[int]) -> list[tuple[str, str]]:
    """Return, for each entry's depth, the lines of the tree before the entry and before its notes.

    The tree is walked backwards: only from its end is it known which lines go on.
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


def _headline(trace: Trace, width: int) -> Text:
    states = Counter(node.state for node in trace.nodes)
    calls = sum(node.kind == "call" for node in trace.nodes)
    counts = {"calls": calls, "handoffs": len(trace.nodes) - calls}
    line = Text().append(_cut(trace.correlation_id, _NAME_WIDTH), style="bold")
    line.append(" · " + ", ".join(f"{what} {count}" for what, count in counts.items() if count))
    for state, style in STATE_STYLES.items():
        if states[state]:
            line.append(" · ").append(f"{states[state]} {state}", style=style)
    # an event has the sum of its requests to models, which may have expired
    usage = sum((Counter(node.usage) for node in trace.nodes if node.kind == "call"), Counter[str]())
    if usage:
        tokens = f"tokens {tokens_text(usage)}"
        line.append(f" · {tokens}" if line.cell_len + len(tokens) + 3 <= width else f"\n{tokens}")
    return line


def _labels(nodes: Iterable[TraceNode]) -> Iterator[str]:
    """Name what was called; an agent's own tool call is shown without the agent."""
    path: list[TraceNode] = []
    for node in nodes:
        del path[node.depth :]
        whose = f"{node.agent}@{node.instance}"
        is_own = bool(path) and node.kind == "call" and whose == f"{path[-1].agent}@{path[-1].instance}"
        yield on_one_line(_what(node) if is_own else f"{whose} {_what(node)}")
        path.append(node)


def _what(node: TraceNode | TraceSummary) -> str:
    if node.kind == "call":
        is_model = node.tool.startswith(MODEL_TOOLS)
        return f"model {node.tool.removeprefix(MODEL_TOOLS)}" if is_model else node.tool or "(no tool)"
    return node.kind if node.event_type in _PLAIN_TYPES else f"{node.kind} {node.event_type}"


def _columns(state: str, waited: str, ran: str, worker: str, call_id: str) -> Text:
    return Text(f"{state:<7} {waited:>8} {ran:>8}  {worker:<4} {call_id:<8}")


def _notes(node: TraceNode) -> Iterator[tuple[str, str]]:
    """Yield the notes on a call, each with its style."""
    if node.error is not None:
        yield f"{node.error.code}: {node.error.message}", "red"
    lost = None
    if node.lost_at is not None:
        seconds = (_span(node)[2] - epoch_milliseconds(node.lost_at)) / 1000
        lost = f"lost with {node.worker} {duration_text(max(0.0, seconds))} ago"
    facts = [
        f"attempt {node.attempt}" if node.attempt > 1 else None,
        None if node.waiting_for is None else f"waits for {node.waiting_for}",
        lost,
        None if node.replay_of is None else f"replays {node.replay_of}",
        f"with arguments that {node.approved_by or 'the approver'} has changed" if node.is_edited else None,
        node.note,
    ]
    if said := " · ".join(fact for fact in facts if fact is not None):
        yield said, "yellow"


def _footer(trace: Trace, shown: int, workers: Mapping[str, str]) -> Iterator[Text]:
    more = len(trace.nodes) - shown
    if more:
        yield Text(f"… and {more:,} more; see them with --limit, or all with --json")
    if trace.expired:
        yield Text(f"{trace.expired:,} more have expired", style="dim")
    for name, label in workers.items():
        yield Text(f"{label} is {on_one_line(name)}", style="dim")


def _cut(text: str, width: int) -> str:
    line = on_one_line(text)
    return line if cell_len(line) <= width else set_cell_size(line, width - 1).rstrip() + "…"


def _facts(story: CallStory) -> Iterator[Fact]:
    yield "state", Text(story.summary, style=STATE_STYLES.get(story.state, ""))
    yield from _waiting_facts(story)
    yield "agent", story.agent
    yield "instance", story.instance
    yield "tool", story.tool if story.event_type is None else f"{story.tool} ({story.event_type})"
    yield "arguments", _excerpt_text(story.args)
    yield from _edit(story)
    yield "queued", _time(story.queued_at)
    yield "waited", duration_text(story.waiting_seconds)
    if story.running_seconds is not None and story.lost_at is None:
        yield "ran", duration_text(story.running_seconds)
    yield "runs left", _runs_left(story)
    if story.retries:
        yield "failed and retried", story.retries
    if story.deadline is not None:
        yield "deadline", _time(story.deadline)
    if story.timeout_seconds is not None:
        yield "time limit per run", duration_text(story.timeout_seconds)
    if story.output is not None:
        yield "output", _excerpt_text(story.output)
    if story.output_file is not None:
        yield "whole output", f"goondan output {story.id}"
    caused_by = story.parent_id and f"{story.parent_id}, which is unknown or has expired"
    if (parent := story.parent) is not None:
        caused_by = f"{parent.agent}@{parent.instance} {parent.tool}, {parent.state}, {parent.id}"
    usage = ", ".join(f"{count:,} {kind}" for kind, count in (story.usage or {}).items())
    for name, value in (
        ("tokens", usage or None),
        ("handle", story.handle),
        ("approved by", story.approved_by),
        ("ended for its worker by", story.settled_by),
        ("replays", story.replay_of),
        ("replayed as", story.replayed_by),
        ("caused by", caused_by),
        ("turn", story.turn_id),
        ("correlation", story.correlation_id),
        ("trace", story.trace_id),
    ):
        if value is not None:
            yield name, value


def _edit(story: CallStory) -> Iterator[Fact]:
    """Yield what was asked for, if a person has changed the arguments."""
    if story.asked_args is not None:
        yield "asked for", _excerpt_text(story.asked_args)
        yield "changed by", f"{story.approved_by or 'the approver'}, {_time(story.edited_at)}"


def _waiting_facts(story: CallStory) -> Iterator[Fact]:
    """Yield what an open call waits for, or its progress."""
    if story.why is not None:
        yield "why", story.why
    if story.limits:
        yield "limits", ", ".join(story.limits)
    if story.ahead is not None:
        yield "ahead of it there", counted(story.ahead, "call")
    if story.progress is not None:
        yield "progress", on_one_line(story.progress.text)
    if story.expires_at is not None:
        yield "expires", _time(story.expires_at)
    if story.awaits == "approval":
        yield "to let it run", f"goondan approvals approve {story.id}"
    elif story.awaits == "completion":
        yield "to complete it", f"goondan resolve {story.id} VALUE"


def _runs_left(story: CallStory) -> str:
    if story.finished_at is not None:
        return "not kept of a call that has ended"
    if story.runs_left is None:
        return "not known before it has started"
    if not story.runs_left:
        return "0: it is not run again if its worker dies"
    return f"{story.runs_left}, if its worker dies"


def _attempts(story: CallStory) -> Answer:
    columns: Columns[Attempt] = {
        "attempt": lambda one: one.number,
        "worker": lambda one: one.worker or "not kept",
        "started": lambda one: _time(one.started_at) or "not kept",
        "ended": lambda one: _time(one.ended_at),
        "with": lambda one: one.ended,
    }
    return listing(story.attempts, columns)


def _show_lines(story: CallStory, output: Output) -> None:
    for attempt in story.attempts:
        if attempt.log is not None:
            output.print(f"\nThe last lines that attempt {attempt.number} logged:\n{attempt.log}")
        elif attempt.ended == DIED:
            where = f"the log of {on_one_line(attempt.worker)}" if attempt.worker else "its log"
            output.print(f"\nThe lines of attempt {attempt.number} died with its worker. See {where}.")


def _show_children(story: CallStory, output: Output) -> None:
    columns: Columns[RelatedCall] = {
        "caused": lambda one: f"{one.agent}@{one.instance} {one.tool}",
        "state": lambda one: styled_state(one.state),
        "id": lambda one: output.call_id(one.id),
    }
    output.write(listing(story.children[:MOST_CHILDREN], columns, unbroken="id", is_cut=True))
    if (more := len(story.children) - MOST_CHILDREN) > 0:
        output.note(f"… and {more:,} more: goondan trace {story.id}")


def _excerpt_text(excerpt: Excerpt) -> str:
    return f"{excerpt.text}… ({excerpt.size:,} bytes)" if excerpt.is_cut else excerpt.text


def _time(text: str | None) -> str | None:
    return None if text is None else local_time(epoch_milliseconds(text))

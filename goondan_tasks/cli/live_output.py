"""What the terminal shows while a call or a Turn runs, and while ``--watch`` repeats an answer."""

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from broker_config.connections import reporting_outages, retrying
from broker_config.queues import events_queue
from goondan_tasks.cli.output import (
    STATE_STYLES,
    Answer,
    Output,
    Screen,
    describe_failure,
    failure_text,
    local_time,
    named_message,
    write_failure,
)
from goondan_tasks.client import (
    AnswerRestarted,
    Client,
    PendingCall,
    ReasoningDelta,
    TextDelta,
    ToolAnswered,
    ToolCalled,
    ToolEmitted,
    ToolRestarted,
    TurnAccepted,
    TurnEnded,
    TurnEvent,
)
from goondan_tasks.client.following import TurnFollower
from goondan_tasks.client.status import AgentStatus
from goondan_tasks.contract.errors import BrokerUnreachableError, CallNotFoundError, HandoffError, WaitTimeout
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import ToolCallResult, wall_clock
from goondan_tasks.contract.wording import counted, duration_text, on_one_line, printable
from goondan_tasks.ledger.record import CallRecord

if TYPE_CHECKING:
    from rich.status import Status


#: how often the line on the terminal is updated
TICK_SECONDS = 0.5
#: how long a call waits before a note says that it cannot run
PATIENCE_SECONDS = 1.0
_BAR_WIDTH = 24

_Answers = Iterator[Answer | BrokerUnreachableError]


def wait_for_result(
    client: Client, pending: PendingCall, *, agent: str, timeout: float | None
) -> ToolCallResult:
    """Wait for the result, through outages of Redis too, and show the call's state on stderr.

    A terminal gets one line that is updated; anything else gets one note, if the call cannot run yet.

    Raises:
        BrokerUnreachableError: Redis cannot be reached after ``timeout`` seconds.
        WaitTimeout: there is no result after ``timeout`` seconds; the call goes on.
    """
    began, line = monotonic(), WaitingLine(client, agent)
    try:
        with retrying(began + (math.inf if timeout is None else timeout)):
            while (result := _result_in_time(pending, began, timeout)) is None:
                line.show(pending.id)
    except (KeyboardInterrupt, BrokerUnreachableError):
        line.stop()
        note_stopped_waiting(pending.id)
        raise
    finally:
        line.stop()
    return result


def note_stopped_waiting(call_id: str) -> None:
    """Say that the call goes on, though this command no longer waits for it."""
    Output().note(
        f"Stopped waiting; the call goes on. See it with: goondan result {call_id}, "
        f"end it with: goondan cancel {call_id}"
    )


class WaitingLine:
    """Shows on stderr what a call waits for, and how long this command has waited."""

    def __init__(self, client: Client, agent: str) -> None:
        self._client = client
        self._agent = agent
        self._began = monotonic()
        self._is_noted = False
        self._is_on_terminal = sys.stderr.isatty()
        self._status: Status | None = None

    def show(self, call_id: str) -> None:
        """Update the line on a terminal; elsewhere write one note, if the call cannot run yet."""
        waited = monotonic() - self._began
        if self._is_on_terminal:
            self.write(_status_line(self._client, self._client.record(call_id), self._agent, waited))
        elif not self._is_noted and waited >= PATIENCE_SECONDS:
            self._is_noted, record = True, self._client.record(call_id)
            missing = _missing(_status_of(self._client, self._agent), record, self._agent) or _limit(record)
            if missing and record.worker is None:
                Output().note(missing)

    def write(self, content: RenderableType) -> None:
        """Show something else on the line, if there is a terminal."""
        if self._is_on_terminal:
            self._status = self._status or _status()
            self._status.update(content)
            self._status.start()

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            # not reused: started again it would erase as many lines as it had, also those written since
            self._status = None


def write_or_watch(look: Callable[[], Answer], output: Output, every: float | None) -> None:
    """Write what ``look`` finds: once, or every ``every`` seconds until Ctrl-C.

    A terminal shows the newest answer in place; anything else gets one answer after the other, programs one
    line of JSON each. Errors of the first look are raised. A later outage of Redis is reported, and the watch
    goes on after it. SIGTERM, which ``timeout`` sends, ends a watch like Ctrl-C and restores the cursor.
    """
    first = look()
    if every is None:
        return output.write(first)
    answers = _answers(first, look, every)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            if Screen().is_terminal and not output.as_json:
                return _draw(answers, every)
            return _write(answers, output)
    finally:
        signal.signal(signal.SIGTERM, before)


def _status() -> "Status":
    from rich.status import Status  # slow to import, and a pipe does not need it

    return Status("", console=Screen(stderr=True))


def _result_in_time(pending: PendingCall, began: float, timeout: float | None) -> ToolCallResult | None:
    """Wait for one tick; return ``None`` if there is no result yet."""
    rest = TICK_SECONDS if timeout is None else min(TICK_SECONDS, timeout - (monotonic() - began))
    try:
        return pending.result(max(0.0, rest))
    except WaitTimeout:
        if timeout is not None and monotonic() - began >= timeout:
            raise WaitTimeout(pending.id, timeout) from None
        return None


def _status_line(client: Client, record: CallRecord, agent: str, waited: float) -> RenderableType:
    """Write a call's state and its progress, with a bar if there is a total."""
    line = f"{_state_text(client, record, agent)} · {waited:.0f} s"
    if (progress := record.progress) is None:
        return line
    row = Table.grid(padding=(0, 1))
    cells: list[RenderableType] = [Text(line)]
    if progress.total is not None:
        from rich.progress_bar import ProgressBar

        # with a total of 0 the bar would never be full
        completed = progress.done if progress.total else 1
        cells.append(ProgressBar(total=progress.total or 1, completed=completed, width=_BAR_WIDTH))
    row.add_row(*cells, Text(on_one_line(progress.text)))
    return row


def _state_text(client: Client, record: CallRecord, agent: str) -> str:
    if record.worker is not None:
        return record.state_text(wall_clock())
    status = _status_of(client, agent)
    missing = _missing(status, record, agent)
    if status is None or missing:
        return missing
    queue = status.queue
    if record.waiting_for is not None:
        return f"{_limit(record)}: {queue.waiting_for_limit} wait for limits"
    name = events_queue(agent) if is_event(record.call) else queue.queue
    load = f"{queue.backlog} waiting, {queue.running} running, {counted(len(status.workers), 'worker')}"
    return f"queued on {name}: {load}"


def _status_of(client: Client, agent: str) -> AgentStatus | None:
    return next((status for status in client.agent_statuses() if status.record.name == agent), None)


def _limit(record: CallRecord) -> str:
    return "" if record.waiting_for is None else f"queued, waits for {record.waiting_for}"


def _missing(status: AgentStatus | None, record: CallRecord, agent: str) -> str:
    """Return what the call lacks to run; empty if nothing."""
    if status is not None and is_event(record.call) and not status.record.has_entry:
        return f"no producer has fetched it yet: {agent} has no entry, so a producer must call Client.receive"
    if status is not None and status.workers:
        return ""
    if status is not None and status.is_orchestrated:
        start = "`goondan dev` or `goondan orchestrator` starts one, and this waits (see `goondan agents`)"
        return f"no worker serves agent {agent!r} yet; {start}"
    return f"no worker serves agent {agent!r}; start one with: goondan worker --agent {agent}"


def _answers(first: Answer, look: Callable[[], Answer], every: float) -> _Answers:
    yield first
    while True:
        time.sleep(every)
        try:
            with reporting_outages():
                found: Answer | BrokerUnreachableError = look()
        except BrokerUnreachableError as error:
            found = error
        yield found


def _write(answers: _Answers, output: Output) -> None:
    lines = replace(output, is_compact=True)
    for number, answer in enumerate(answers):
        if isinstance(answer, BrokerUnreachableError):
            write_failure(describe_failure(answer), lines)
            continue
        if number and answer.content is not None and not output.as_json:
            output.print("")
        lines.write(answer)


def _draw(answers: _Answers, every: float) -> None:
    """Draw the newest answer; during an outage show the reason above it."""
    from rich.live import Live

    screen = Screen()
    drawn, content, seen_at = Group(), None, ""
    with Live(console=screen, auto_refresh=False) as live:
        for answer in answers:
            trouble: tuple[Text, ...] = ()
            if isinstance(answer, Answer):
                drawn, content = answer.drawn(), answer.content
                seen_at = local_time(round(wall_clock())).partition(" ")[2]
            else:
                trouble = (failure_text(describe_failure(answer)),)
            screen.columns = Screen().columns  # the window may have been resized
            screen.fit(content)
            # the heading comes first: what does not fit is cut off at the end
            heading = Text(f"as of {seen_at} · every {every:g} s · Ctrl-C ends", style="dim")
            live.update(Group(heading, *trouble, drawn), refresh=True)


#: the most characters of a call's arguments, and of its error, that are shown
LONGEST_ARGS = 80
LONGEST_ERROR = 200


class TurnView:
    """Shows one Turn: text on ``live`` as it comes, or with ``None`` on stdout when it is complete.

    Everything else goes to stderr: a line for each tool call that has ended, and on a terminal what the Turn
    waits for.
    """

    def __init__(
        self,
        client: Client,
        agent: str,
        *,
        live: Screen | None,
        is_answer: bool = True,
        reasoning: bool = False,
    ) -> None:
        self._output = Output()
        self._line = WaitingLine(client, agent)
        self._live = live
        #: whether the answer goes to ``live`` too
        self._is_answer = is_answer
        self._reasoning = reasoning
        self._columns = Screen(stderr=True).columns
        self._call_id = ""
        #: what the model has said in this Step
        self._said = ""
        #: the style of the text on the line that has begun; ``None`` at the beginning of a line
        self._written: str | None = None
        #: the running calls, and when they began
        self._calls: dict[str, tuple[ToolCalled, float]] = {}

    def show(self, event: TurnEvent | None) -> None:
        """Show an event; ``None`` means that none has come for a while."""
        match event:
            case None:
                self._wait()
            case TurnAccepted():
                self._call_id = event.id
            case TextDelta():
                self._said += event.text
                self._write(event.text, style="" if self._is_answer else "dim")
            case ReasoningDelta() if self._reasoning:
                self._write(event.text, style="dim italic")
            case AnswerRestarted():
                self._said = ""
                self._note(Text("the answer starts over:", style="dim"))
            case ToolCalled():
                self._end_text()
                self._calls[event.call_id] = event, time.monotonic()
                self._wait()
            case ToolEmitted() | ToolRestarted():
                self._emitted(event)
            case ToolAnswered():
                self._answered(event)
            case TurnEnded():
                self.close()

    def has_shown(self, answer: Any) -> bool:
        """Return whether all of an answer was shown where answers go; parts are lost while Redis is away."""
        if self._live is None or not self._is_answer:
            return False
        if isinstance(answer, str):
            return self._said.strip() == answer.strip()
        with suppress(ValueError):
            return bool(json.loads(self._said) == answer)
        return False

    def close(self) -> None:
        """End what has begun on the screen."""
        self._line.stop()
        self._end_line()

    def _write(self, text: str, style: str) -> None:
        """Write text as it comes; text in another style begins a new line."""
        if self._live is None:
            return
        self._line.stop()
        if self._written not in (None, style):
            self._end_line()
        self._live.out(printable(text), end="", style=style)
        self._written = None if text.endswith("\n") else style

    def _end_line(self) -> None:
        if self._written is not None and self._live is not None:
            self._live.out("")
        self._written = None

    def _end_text(self) -> None:
        """End the text of a Step that continues with tool calls."""
        self._end_line()
        if self._live is None and self._said.strip():
            self._output.print(self._said)
        self._said = ""

    def _note(self, content: Text) -> None:
        self._line.stop()
        self._end_line()
        self._output.note(content)

    def _wait(self) -> None:
        """Show on the line what the Turn waits for."""
        if self._written is not None:
            return None
        if not self._calls:
            try:
                return self._line.show(self._call_id)
            except CallNotFoundError:  # after an approved call, its Turn has not begun yet
                return self._line.stop()
        call, began = next(iter(self._calls.values()))
        more = f" and {len(self._calls) - 1} more" if len(self._calls) > 1 else ""
        waited = duration_text(time.monotonic() - began)
        return self._line.write(Text(f"{call_text(call.tool, call.args)}{more} · {waited}"))

    def _emitted(self, event: ToolEmitted | ToolRestarted) -> None:
        """Write what a tool shows while it runs: text as it comes, each other value on a line."""
        if isinstance(event, ToolRestarted):
            self._note(Text(on_one_line(f"{event.tool} starts over:"), style="dim"))
        elif event.truncated:
            self._note(Text(on_one_line(f"{event.tool} emits more than is shown"), style="dim"))
        elif isinstance(event.chunk, str):
            self._write(event.chunk, style="dim")
        else:
            self._write(json.dumps(event.chunk, ensure_ascii=False) + "\n", style="dim")

    def _answered(self, event: ToolAnswered) -> None:
        call, began = self._calls.pop(event.call_id, (None, time.monotonic()))
        took = time.monotonic() - began if event.duration_ms is None else event.duration_ms / 1000
        ending = duration_text(took)
        if event.status == "pending":
            ending = "waits for an approval" if event.awaits == "approval" else "its result comes later"
        room = self._columns - len(f"{event.status}    · {ending}") - cell_len(event.tool)
        facts = [call_text(event.tool, None if call is None else call.args, room), ending]
        if event.error is not None:
            facts.append(on_one_line(f"{event.error.code}: {named_message(event.error)}")[:LONGEST_ERROR])
        line = Text().append(on_one_line(event.status), style=f"bold {STATE_STYLES.get(event.status, '')}")
        self._note(line.append("  " + " · ".join(facts)))
        if self._calls:
            self._wait()


def show_turn(client: Client, follower: TurnFollower, agent: str) -> tuple[ToolCallResult, bool]:
    """Show a Turn on the terminal; return its result, and whether its answer is on stdout already.

    Raises:
        HandoffTimeoutError: it has not ended in time.
        BrokerUnreachableError: Redis could not be reached in that time.
    """
    is_answer = sys.stdout.isatty()
    view = TurnView(client, agent, live=Screen(stderr=not is_answer), is_answer=is_answer)
    try:
        with closing(view):
            for event in follower.events(ticks=True):
                with retrying(math.inf):
                    view.show(event)
    except (KeyboardInterrupt, BrokerUnreachableError):
        note_stopped_waiting(follower.event_id)
        raise
    except HandoffError:
        if follower.result is None:
            raise
    result = cast(ToolCallResult, follower.result)
    return result, view.has_shown(result.output)


def call_text(tool: str, args: Any, room: int = LONGEST_ARGS) -> str:
    """Write a tool call in one line, with its arguments cut to at most ``room`` columns of a terminal."""
    text = Text("" if args in (None, {}) else on_one_line(json.dumps(args, ensure_ascii=False)))
    text.truncate(min(max(room, 1), LONGEST_ARGS), overflow="ellipsis")
    return f"{on_one_line(tool)} {text.plain}".rstrip()


def ending_text(event: TurnEnded) -> str | None:
    """Write a Turn's tokens, duration and the reason for its end; ``None`` if it used no tokens."""
    usage = event.usage
    if not usage:
        return None
    counts = [
        f"{usage.get(kind, 0):,} {kind}" + (f" ({usage[part]:,} {part})" if usage.get(part) else "")
        for kind, part in (("input", "cached"), ("output", "reasoning"))
    ]
    took = None if event.duration_ms is None else duration_text(event.duration_ms / 1000)
    reason = None if event.finish_reason == "text_response" else f"ended by {event.finish_reason}"
    return on_one_line(" · ".join(filter(None, [f"tokens: {', '.join(counts)}", took, reason])))

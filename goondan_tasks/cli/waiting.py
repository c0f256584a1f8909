"""What the terminal shows while a call is awaited, and while ``--watch`` renews an answer."""

import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from broker_config.connections import reporting_outages, retrying
from broker_config.queues import events_queue
from goondan_tasks.cli.output import (
    Answer,
    Output,
    Screen,
    describe_failure,
    failure_text,
    local_time,
    on_one_line,
    tell,
)
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.client.status import AgentStatus
from goondan_tasks.errors import BrokerUnreachableError, WaitTimeout
from goondan_tasks.events import is_event
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCallResult, wall_clock
from goondan_tasks.output import Progress

if TYPE_CHECKING:
    from rich.status import Status

#: how often the line on the terminal is renewed
TICK_SECONDS = 0.5
#: how long a call may wait without workers before a note says so
PATIENCE_SECONDS = 1.0
_BAR_WIDTH = 24

_Found = Iterator[Answer | BrokerUnreachableError]


def wait_for_result(
    client: Client, pending: PendingCall, *, agent: str, timeout: float | None
) -> ToolCallResult:
    """Wait for the result, also through an outage of Redis, and show the call's state on stderr.

    A terminal gets one line that is renewed; anything else one note, if the call cannot run yet.

    Raises:
        BrokerUnreachableError: Redis cannot be reached after ``timeout`` seconds.
        WaitTimeout: it did not come within ``timeout`` seconds; the call goes on.
    """
    began, line = monotonic(), WaitingLine(client, agent)
    try:
        with retrying(began + (math.inf if timeout is None else timeout)):
            while (result := _result_in_time(pending, began, timeout)) is None:
                line.show(pending.id)
    except (KeyboardInterrupt, BrokerUnreachableError):
        line.stop()
        tell_of_stop(pending.id)
        raise
    finally:
        line.stop()
    return result


def tell_of_stop(call_id: str) -> None:
    """Say that a call goes on that is no longer waited for."""
    Output().note(
        f"Stopped waiting; the call goes on. See it with: goondan result {call_id}, "
        f"end it with: goondan cancel {call_id}"
    )


class WaitingLine:
    """Shows on stderr what a call waits for, and for how long this was made."""

    def __init__(self, client: Client, agent: str) -> None:
        self._client = client
        self._agent = agent
        self._began = monotonic()
        self._is_noted = False
        self._is_on_terminal = sys.stderr.isatty()
        self._status: Status | None = None

    def show(self, call_id: str) -> None:
        """Renew the line on a terminal; elsewhere write one note, if the call cannot run yet."""
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
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
            # one that is started again would erase as many lines as it had, whatever was written since
            self._status = None


def give(look: Callable[[], Answer], output: Output, every: float | None) -> None:
    """Write what ``look`` finds: once, or again every so many seconds until Ctrl-C.

    A terminal shows the newest answer in place; anything else gets them one after the other, programs
    as one line of JSON each. The first look raises as it would alone. A later outage of the broker is
    reported, and the watch goes on when it is over. SIGTERM, as ``timeout`` sends it, ends a watch as
    Ctrl-C does: with the cursor back.
    """
    first = look()
    if every is None:
        return output.write(first)
    show = _draw if Screen().is_terminal and not output.as_json else _write
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            return show(_found(first, look, every), output, every)
    finally:
        signal.signal(signal.SIGTERM, before)


def progress_text(progress: Progress) -> str:
    """Write the numbers and the message: ``3/10 · reading page 3``."""
    numbers = f"{progress.done:g}" if progress.total is None else f"{progress.done:g}/{progress.total:g}"
    return numbers if progress.message is None else f"{numbers} · {on_one_line(progress.message)}"


def _status() -> "Status":
    from rich.status import Status  # rich's live displays are slow to import, and a pipe has none

    return Status("", console=Screen(stderr=True))


def _result_in_time(pending: PendingCall, began: float, timeout: float | None) -> ToolCallResult | None:
    """Wait for one tick; ``None`` if there is no result yet."""
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

        # without a total above 0 the bar would never be full
        completed = progress.done if progress.total else 1
        cells.append(ProgressBar(total=progress.total or 1, completed=completed, width=_BAR_WIDTH))
    row.add_row(*cells, Text(progress_text(progress)))
    return row


def _state_text(client: Client, record: CallRecord, agent: str) -> str:
    if record.worker is not None:
        return record.state_text(wall_clock())
    status = _status_of(client, agent)
    missing = _missing(status, record, agent)
    if status is None or missing:
        return missing
    queue, workers = status.queue, len(status.workers)
    if record.waiting_for is not None:
        return f"{_limit(record)}: {queue.waiting_for_limit} wait for limits"
    name = events_queue(agent) if is_event(record.call) else queue.queue
    count = f"{workers} worker{'' if workers == 1 else 's'}"
    return f"queued on {name}: {queue.backlog} waiting, {queue.running} running, {count}"


def _status_of(client: Client, agent: str) -> AgentStatus | None:
    return next((status for status in client.agent_statuses() if status.record.name == agent), None)


def _limit(record: CallRecord) -> str:
    return "" if record.waiting_for is None else f"queued, waits for {record.waiting_for}"


def _missing(status: AgentStatus | None, record: CallRecord, agent: str) -> str:
    """Say what is missing before the call goes on; empty if nothing is."""
    if status is not None and is_event(record.call) and not status.record.has_entry:
        return f"no producer has fetched it yet: {agent} has no entry, so one has to call Client.receive"
    if status is not None and status.workers:
        return ""
    if status is not None and status.is_orchestrated:
        return f"no worker serves agent {agent!r} yet; an orchestrator looks after it (`goondan agents`)"
    return f"no worker serves agent {agent!r}; start one with: goondan worker --agent {agent}"


def _found(first: Answer, look: Callable[[], Answer], every: float) -> _Found:
    yield first
    while True:
        time.sleep(every)
        try:
            with reporting_outages():
                found: Answer | BrokerUnreachableError = look()
        except BrokerUnreachableError as error:
            found = error
        yield found


def _write(answers: _Found, output: Output, _every: float) -> None:
    lines = replace(output, is_compact=True)
    for number, answer in enumerate(answers):
        if isinstance(answer, BrokerUnreachableError):
            tell(describe_failure(answer), lines)
            continue
        if number and answer.content is not None and not output.as_json:
            output.print("")
        lines.write(answer)


def _draw(answers: _Found, _output: Output, every: float) -> None:
    """Draw the newest answer; during an outage, above it, the reason why there is no newer one."""
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
            screen.columns = Screen().columns  # the window may have been made larger
            screen.fit(content)
            # what does not fit is cut off below
            heading = Text(f"as of {seen_at} · every {every:g} s · Ctrl-C ends", style="dim")
            live.update(Group(heading, *trouble, drawn), refresh=True)

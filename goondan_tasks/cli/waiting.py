"""What a person sees while time passes: where an awaited call stands, and answers renewed by ``--watch``."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

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
from goondan_tasks.errors import BrokerUnreachableError, WaitTimeout
from goondan_tasks.events import is_event
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCallResult, wall_clock
from goondan_tasks.output import Progress

#: how often the line on the terminal is renewed
TICK_SECONDS = 0.5
#: how long a call may wait without workers before a note says so
PATIENCE_SECONDS = 2.0
_BAR_WIDTH = 24

_Found = Iterator[Answer | BrokerUnreachableError]


def wait_for_result(
    client: Client, pending: PendingCall, *, agent: str, timeout: float | None
) -> ToolCallResult:
    """Wait for the result, and tell on stderr how it stands.

    Raises:
        WaitTimeout: it did not come within ``timeout`` seconds; the call goes on.
    """
    with contextlib.ExitStack() as screen:
        show = _status_line if sys.stderr.isatty() else _warning
        try:
            return _wait(pending, timeout, show(client, pending, agent, screen))
        except (KeyboardInterrupt, BrokerUnreachableError):
            screen.close()
            Output().note(
                f"Stopped waiting; the call goes on. See it with: goondan result {pending.id}, "
                f"end it with: goondan cancel {pending.id}"
            )
            raise


def give(look: Callable[[], Answer], output: Output, every: float | None) -> None:
    """Write what ``look`` finds: once, or again every so many seconds until Ctrl-C.

    A terminal shows the newest answer in place; anything else gets them one after the other, programs
    as one line of JSON each. The first look raises as it would alone. A later outage of the broker is
    reported, and the watch goes on when it is over.
    """
    first = look()
    if every is None:
        return output.write(first)
    show = _draw if Screen().is_terminal and not output.as_json else _write
    with contextlib.suppress(KeyboardInterrupt), _ended_like_ctrl_c():
        return show(_found(first, look, every), output, every)


def progress_text(progress: Progress) -> str:
    """Write the numbers and the message: ``3/10 · reading page 3``."""
    numbers = f"{progress.done:g}" if progress.total is None else f"{progress.done:g}/{progress.total:g}"
    return numbers if progress.message is None else f"{numbers} · {on_one_line(progress.message)}"


def _wait(pending: PendingCall, timeout: float | None, show: Callable[[float], None]) -> ToolCallResult:
    began = monotonic()
    while True:
        waited = monotonic() - began
        rest = TICK_SECONDS if timeout is None else min(TICK_SECONDS, timeout - waited)
        try:
            return pending.result(max(0.0, rest))
        except WaitTimeout:
            waited = monotonic() - began
            if timeout is not None and waited >= timeout:
                raise WaitTimeout(pending.id, timeout) from None
            show(waited)


def _status_line(
    client: Client, pending: PendingCall, agent: str, screen: contextlib.ExitStack
) -> Callable[[float], None]:
    """Return what renews one line with a spinner; the line comes with the first tick."""
    status = Status("", console=Screen(stderr=True))
    is_shown = False

    def show(waited: float) -> None:
        nonlocal is_shown
        record = client.record(pending.id)
        line = f"{_standing(client, record, agent)} · {waited:.0f} s"
        status.update(line if record.progress is None else _with_bar(line, record.progress))
        if not is_shown:
            is_shown = True
            screen.enter_context(status)

    return show


def _warning(
    client: Client, pending: PendingCall, agent: str, _screen: contextlib.ExitStack
) -> Callable[[float], None]:
    """Return what notes once, if that is so, what is missing before the call can run."""
    told = False

    def show(waited: float) -> None:
        nonlocal told
        if not told and waited >= PATIENCE_SECONDS:
            told = True
            record = client.record(pending.id)
            if record.worker is None and (missing := _missing(client, record, agent) or _limit(record)):
                Output().note(missing)

    return show


def _standing(client: Client, record: CallRecord, agent: str) -> str:
    if record.worker is not None:
        return f"{record.status} on {record.worker}, attempt {record.attempt}"
    if missing := _missing(client, record, agent):
        return missing
    workers = _worker_count(client, agent)
    queue = next(row for row in client.queues() if row.agent == agent)
    if record.waiting_for is not None:
        return f"{_limit(record)}: {queue.waiting_for_limit} wait for limits"
    name = events_queue(agent) if is_event(record.call) else queue.queue
    count = f"{workers} worker{'' if workers == 1 else 's'}"
    return f"queued on {name}: {queue.backlog} waiting, {queue.running} running, {count}"


def _limit(record: CallRecord) -> str | None:
    return None if record.waiting_for is None else f"queued, waits for {record.waiting_for}"


def _worker_count(client: Client, agent: str) -> int:
    return sum(agent in worker.agents for worker in client.workers())


def _missing(client: Client, record: CallRecord, agent: str) -> str | None:
    """Say what is missing before the call goes on; ``None`` if nothing is."""
    known = client.agents().get(agent)
    if known is not None and is_event(record.call) and not known.has_entry:
        return f"no producer has fetched it yet: {agent} has no entry, so one has to call Client.receive"
    if _worker_count(client, agent):
        return None
    if any(one.record.name == agent and one.is_orchestrated for one in client.agent_statuses()):
        return f"no worker serves agent {agent!r} yet; an orchestrator looks after it (`goondan agents`)"
    return f"no worker serves agent {agent!r}; start one with: goondan worker --agent {agent}"


def _with_bar(line: str, progress: Progress) -> RenderableType:
    """Put a call's progress behind ``line``: a bar if there is a total, else only the numbers."""
    row = Table.grid(padding=(0, 1))
    cells: list[RenderableType] = [Text(line)]
    if progress.total is not None:
        # without a total above 0 the bar would never be full
        completed = progress.done if progress.total else 1
        cells.append(ProgressBar(total=progress.total or 1, completed=completed, width=_BAR_WIDTH))
    row.add_row(*cells, Text(progress_text(progress)))
    return row


def _found(first: Answer, look: Callable[[], Answer], every: float) -> _Found:
    yield first
    while True:
        time.sleep(every)
        try:
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
    """Draw the newest answer; above it, while the broker is away, why there is none that is newer."""
    screen = Screen()
    drawn, seen_at = Group(), ""
    with Live(console=screen, auto_refresh=False) as live:
        for answer in answers:
            trouble: tuple[Text, ...] = ()
            if isinstance(answer, Answer):
                drawn, seen_at = answer.drawn(), local_time(round(wall_clock())).partition(" ")[2]
            else:
                trouble = (failure_text(describe_failure(answer)),)
            screen.width = Screen().width  # the window may have been made larger
            # what does not fit is cut off below
            heading = Text(f"as of {seen_at} · every {every:g} s · Ctrl-C ends", style="dim")
            live.update(Group(heading, *trouble, drawn), refresh=True)


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM, as ``timeout`` sends it, end a watch as Ctrl-C does: with the cursor back."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

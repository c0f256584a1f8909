"""Looking again and again, for commands with ``--watch``."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from goondan_tasks.cli.answer import Answer
from goondan_tasks.cli.call_view import local_time
from goondan_tasks.cli.error_text import error_text
from goondan_tasks.cli.failures import describe_failure, tell
from goondan_tasks.cli.output import Output, Screen
from goondan_tasks.cli.seconds_argument import parse_seconds
from goondan_tasks.clocks import wall_clock
from goondan_tasks.errors import BrokerUnreachableError

DEFAULT_SECONDS = 2.0
SHORTEST_SECONDS = 0.1
LONGEST_SECONDS = 86_400.0


def parse_interval(given: str | float) -> float:
    """Read how long to wait between two looks; nothing at all stands for the default.

    Raises:
        typer.BadParameter: it is no such time.
    """
    seconds = parse_seconds(given) if given != "" else DEFAULT_SECONDS
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise typer.BadParameter(f"must be from {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g} seconds (a day).")
    return seconds


Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        parser=parse_interval,
        metavar="[SECONDS]",
        help=f"Look again every so many seconds, {DEFAULT_SECONDS:g} if none are given, until Ctrl-C.",
    ),
]


def give(look: Callable[[], Answer], output: Output, every: float | None) -> None:
    """Write what ``look`` finds: once, or again every so many seconds until Ctrl-C.

    A terminal shows the newest answer in place; anything else gets them one after the other, programs
    as one line of JSON each. The first look raises as it would alone; later on, an outage of the broker
    is told, and ended by no more than its end.
    """
    first = look()
    if every is None:
        return first.write(output)
    show = _draw if Screen().is_terminal and not output.as_json else _write
    with contextlib.suppress(KeyboardInterrupt), _ended_like_ctrl_c():
        return show(_found(first, look, every), output, every)


_Found = Iterator[Answer | BrokerUnreachableError]


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
        answer.write(lines)


def _draw(answers: _Found, _output: Output, every: float) -> None:
    """Draw the newest answer; above it, while the broker is away, why there is none that is newer."""
    screen = Screen()
    drawn, seen_at = Group(), ""
    with Live(console=screen, auto_refresh=False) as live:
        for answer in answers:
            trouble: tuple[Text, ...] = ()
            if isinstance(answer, Answer):
                drawn, seen_at = answer.drawn(), _time_of_day()
            else:
                trouble = (_trouble_text(answer),)
            screen.width = Screen().width  # whoever watches makes the window larger
            # what does not fit is cut off below
            heading = Text(f"as of {seen_at} · every {every:g} s · Ctrl-C ends", style="dim")
            live.update(Group(heading, *trouble, drawn), refresh=True)


def _trouble_text(error: BrokerUnreachableError) -> Text:
    told = describe_failure(error)
    return error_text("Error", told["message"], told.get("suggestion"), told.get("helpUrl"))


def _time_of_day() -> str:
    return local_time(round(wall_clock())).partition(" ")[2]


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM, as ``timeout`` sends it, end a watch as Ctrl-C does: with the cursor back."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

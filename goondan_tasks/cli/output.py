"""The output and exit codes of commands: answers and errors, for people and for programs.

An answer goes to stdout, everything else to stderr. With ``--json`` stdout gets one JSON document, for an
error ``{"error": {"code", "message", "suggestion", "helpUrl"}}``. Two codes exist only on the command line
and have no page: ``E_USAGE``.
"""

import codecs
import functools
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, NoReturn, TypeVar

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from broker_config.embedded import EmbeddedRedisError
from broker_config.settings import Settings, SettingsError
from goondan_tasks.contract.errors import ConfigError, GoondanError, HandoffError, ToolError, WaitTimeout
from goondan_tasks.contract.failure import error_pages, has_page
from goondan_tasks.contract.messages import JsonObject, ToolCallError, epoch_milliseconds
from goondan_tasks.contract.wording import on_one_line, printable

# Exit codes (DESIGN "Commands", frozen).
#: also for a call that is queued, running or pending
OK = 0
#: the tool answered with an error
FAILED = 1
#: the command line or what it names: an unknown or ended call, arguments too large, a conflict
USAGE = 2
#: an invalid bundle or setting, or an unknown agent
CONFIGURATION = 3
WAIT_TIMED_OUT = 4
BROKER_UNREACHABLE = 5
INTERRUPTED = 130
#: the reader of our output is gone; the status that a shell reports for SIGPIPE
BROKEN_PIPE = 141

_BY_CODE = {
    code: exit_code
    for exit_code, codes in {
        # E_TOOL_INVALID_ARGS as an exception; in a result it is a tool's error like any other
        USAGE: "E_USAGE E_CALL_NOT_FOUND E_CALL_NOT_REPLAYABLE E_CALL_CLOSED E_CALL_NOT_PENDING "
        "grant_not_found E_INSTANCE_NOT_FOUND E_INSTANCE_BUSY E_PAYLOAD_TOO_LARGE E_TOOL_CALL_CONFLICT "
        "E_SCHEDULE_NOT_FOUND E_SCHEDULE_OF_BUNDLE "
        "E_TOOL_INVALID_ARGS CHANGESET_NOT_FOUND",
        CONFIGURATION: "E_AGENT_NOT_FOUND E_OAUTH_STORE E_RECORD_DAMAGED oauthAppNotFound configurationError "
        "BUNDLE_INVALID",
        WAIT_TIMED_OUT: "E_WAIT_TIMEOUT E_HANDOFF_TIMEOUT",
        BROKER_UNREACHABLE: "E_BROKER_UNREACHABLE E_NOT_CONFIRMED",
    }.items()
    for code in codes.split()
}

#: characters of a call's id that a command takes in place of the whole id
SHORTEST_ID = 8
#: a table in a pipe or a file is as wide as its content
_UNLIMITED = 10_000
#: on a narrower terminal we do not wrap: it wraps lines itself
_NARROWEST = 80
#: a narrower terminal gets shortened ids and times
_ROOMY = 120
#: what a column that may be left out must have room for, if its cells are as long
_SPARE_WIDTH = 20

_EXPECTED = (GoondanError, SettingsError, EmbeddedRedisError)
_REMEDY = "Correct it in the environment, or give the option of that name."

#: the code at the end of the URL of an error's page
_CODE_AT_END = re.compile(r"(?<![A-Z_])[A-Z]+(_[A-Z]+)+$")

#: what may be unprintable; the rest of ASCII is printable, or escaped by JSON
_UNPRINTABLE = re.compile(r"[^ -~\n]+")

_GENERAL = (HandoffError, ToolError)
#: for exceptions without a code of their own; their message alone may be just a key's name
_GENERAL_CODES, _GENERAL_NAMES = {kind.code for kind in _GENERAL}, {kind.__name__ for kind in _GENERAL}

#: by the state of a call
STATE_STYLES = {
    "ok": "green",
    "error": "red",
    "dead": "bold red",
    "lost": "bold red",
    "running": "cyan",
    "pending": "yellow",
    "waiting": "yellow",
    "queued": "dim",
    "scheduled": "dim",
}

Command = Callable[..., None]
Content = Table | Text | str
Item = TypeVar("Item")
#: by heading, what reads a cell: a function, or the name of a JSON field
Columns = Mapping[str, Callable[[Item], object] | str]


def exit_code_of(error_code: str) -> int:
    return CONFIGURATION if error_code.startswith("E_CONFIG_") else _BY_CODE.get(error_code, FAILED)


class Screen(Console):
    """A console for plain text, without markup or highlighting; off a terminal as wide as its content.

    Whatever it shows is printable: names, codes and texts come from calls, tools and models.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)
        self.columns = self.width if self.is_terminal else _UNLIMITED
        self.width = max(self.columns, _NARROWEST)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render something with control characters escaped, except those of this console."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def say(self, content: Content) -> None:
        """Write text unwrapped and safe for the terminal, or a table as wide as the screen."""
        if not isinstance(content, Table):
            return self.print(content, soft_wrap=True)
        self.fit(content)
        with self.capture() as table:
            self.print(content)
        # rich pads the last column
        self.file.write("".join(f"{line.rstrip()}\n" for line in table.get().splitlines()))
        return self.file.flush()

    def fit(self, content: object) -> None:
        """Use the terminal's own width, however narrow, if the rows of a table take one line each."""
        is_cut = isinstance(content, Table) and all(one.overflow == "ellipsis" for one in content.columns)
        self.width = self.columns if is_cut else max(self.columns, _NARROWEST)

    def on_broken_pipe(self) -> NoReturn:
        """Raise it to :func:`reported`, which ends the program quietly."""
        raise


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has found, for programs and for people; with ``--watch`` there are many."""

    document: Any
    #: ``None`` if there is nothing to show
    content: Content | None
    #: notes for people, on stderr
    notes: tuple[str, ...] = ()

    def drawn(self) -> Group:
        """Return content and notes as one thing to draw on a terminal."""
        content = () if self.content is None else (self.content,)
        return Group(*content, *map(Text, self.notes))


@dataclass(frozen=True, slots=True)
class Output:
    """The answer as a table or text for people, or as one JSON document for programs."""

    as_json: bool = False
    #: whether each document takes one line
    is_compact: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether stdout is a terminal that is too narrow for whole ids."""
        return Screen().width < _ROOMY

    def write(self, answer: Answer) -> None:
        """Write an answer: its document for programs, or its content and notes for people."""
        if self.as_json:
            return self.document(answer.document)
        if answer.content is not None:
            self.print(answer.content)
        for note in answer.notes:
            self.note(note)
        return None

    def give(self, document: Any, content: Content | None, *notes: str) -> None:
        self.write(Answer(document, content, notes))

    def document(self, document: Any) -> None:
        """Write a JSON document, in which escapes stand for what could control a terminal."""
        # a stdout that cannot encode every character gets escapes
        is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        indent = None if self.is_compact else 2
        text = json.dumps(document, indent=indent, ensure_ascii=not is_unicode)
        sys.stdout.write(_UNPRINTABLE.sub(_escape_in_json, text) + "\n")
        sys.stdout.flush()

    def stream(self, parts: Iterable[bytes]) -> None:
        """Write UTF-8 text to stdout byte by byte; a terminal gets it with escapes."""
        raw: BinaryIO | None = getattr(sys.stdout, "buffer", None)
        if raw is None or sys.stdout.isatty():
            for text in codecs.iterdecode(parts, "utf-8", "replace"):
                sys.stdout.write(printable(text))
            sys.stdout.write("\n")
        else:
            for part in parts:
                raw.write(part)
        sys.stdout.flush()

    def print(self, content: Content) -> None:
        """Write a part of the answer."""
        Screen().say(content)

    def note(self, content: Content) -> None:
        """Write a note, which is not part of the answer, to stderr."""
        Screen(stderr=True).say(content)

    def time(self, milliseconds: int | None) -> str | None:
        """Write a time for a table; on a narrow screen without the year."""
        text = None if milliseconds is None else local_time(milliseconds)
        return text and text.partition("-")[2] if self.is_narrow else text

    def call_id(self, text: str | None) -> str | None:
        """Write a call's id for a table; on a narrow screen its first characters."""
        return text and text[: SHORTEST_ID if self.is_narrow else None]


def listing(
    items: Iterable[Item],
    columns: Columns[Item],
    *,
    wire: Callable[[Item], Any] | None = None,
    none: str | None = None,
    unbroken: str | Collection[str] = (),
    spare: Collection[str] = (),
    is_cut: bool = False,
) -> Answer:
    """Return a list as an answer: a table (see :func:`make_table`), or the note ``none`` if it is empty.

    ``wire`` converts an item for programs; by default they get the item itself.
    """
    found = list(items)
    document = found if wire is None else [wire(item) for item in found]
    if not found and none is not None:
        return Answer(document, None, (none,))
    reads = [_field(read) if isinstance(read, str) else read for read in columns.values()]
    rows = ([read(item) for read in reads] for item in found)
    table = make_table(list(columns), rows, unbroken=unbroken, spare=spare, is_cut=is_cut)
    return Answer(document, table)


def _field(name: str) -> Callable[[Any], object]:
    """Return a function that reads a JSON field for people: lists as words, times as local time."""

    def read(item: JsonObject) -> object:
        value = item.get(name)
        if name.endswith("At") and isinstance(value, str):
            return Output().time(epoch_milliseconds(value))
        return " ".join(map(str, value)) if isinstance(value, list | tuple) else value

    return read


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    unbroken: str | Collection[str] = (),
    spare: Collection[str] = (),
    is_cut: bool = False,
) -> Table:
    """Make a table: numbers are right-aligned, ``None`` is a dash.

    On a narrow screen ``spare`` columns are left out, and cells wrap, except in ``unbroken`` columns, such as
    ids that are to be copied. With ``is_cut`` each row takes one line, and cells that do not fit end with an
    ellipsis; ``spare`` columns are then left out on a wide screen too, rather than that others are cut.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    given = [list(row) for row in rows]
    has_room = not Output().is_narrow and not (
        is_cut and _needed_width(columns, given, spare) > Screen().width
    )
    whole = {unbroken} if isinstance(unbroken, str) else unbroken
    kept = [number for number, column in enumerate(columns) if has_room or column not in spare]
    filled = [[row[number] for number in kept] for row in given]
    for place, number in enumerate(kept):
        values = [row[place] for row in filled if row[place] is not None]
        is_number = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
        is_whole = columns[number] in whole
        widest = max((_cell(value).cell_len for value in values), default=0)
        table.add_column(
            columns[number],
            justify="right" if values and is_number else "left",
            overflow="ellipsis" if is_cut else "fold",
            no_wrap=is_whole,
            min_width=widest if is_whole else None,
        )
    for row in filled:
        cells = [_cell(value) for value in row]
        for cell in cells if is_cut else ():
            cell.no_wrap = True  # the column may still be narrowed
        table.add_row(*cells)
    return table


def _needed_width(columns: Sequence[str], rows: Sequence[Sequence[object]], spare: Collection[str]) -> int:
    """Return the width that a table needs if long cells of its ``spare`` columns are cut, but no others."""
    cells = ([_cell(name), *(_cell(row[number]) for row in rows)] for number, name in enumerate(columns))
    widths = (max(cell.cell_len for cell in column) for column in cells)
    return sum(
        2 + (min(width, _SPARE_WIDTH) if name in spare else width)
        for name, width in zip(columns, widths, strict=True)
    )


def pretty(value: Any) -> str:
    """Write a string as it is, anything else as indented JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def local_time(milliseconds: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime(form)


def show_progress(done: int, total: int, unit: str = "", *, is_last: bool) -> None:
    """Update a line with numbers on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{done:,} of {total:,}{unit}{chr(10) if is_last else chr(13)}")
        sys.stderr.flush()


def error_text(label: str, message: str, suggestion: str | None, help_url: str | None = None) -> Text:
    """Write an error after its label, with each hint on its own line."""
    text = Text().append(f"{on_one_line(label)}: ", style="bold red").append(message)
    for hint, value in (("What to do", suggestion), ("More", help_url and on_one_line(_more(help_url)))):
        if value is not None:
            text.append(f"\n{hint}: ", style="bold").append(value)
    return text


def _more(url: str) -> str:
    """Name the page about an error; our own pages are installed too."""
    code = _CODE_AT_END.search(url)
    return f"goondan explain {code[0]}, or {url}" if code and code[0] in error_pages() else url


def named_message(error: ToolCallError) -> str:
    """Return the message, prefixed with the class of an exception without a code: ``KeyError: 'path'``."""
    is_named = error.code in _GENERAL_CODES and error.name not in _GENERAL_NAMES
    return f"{error.name}: {error.message}" if is_named else error.message


class ScreenHandler(logging.Handler):
    """Shows warnings of our library as notes; a command configures no logging."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log line to stderr."""
        Screen(stderr=True).say(on_one_line(record.getMessage()))


def reported(command: Command) -> Command:
    """Make ``command`` report its expected failures as messages, with the right exit code."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        logging.lastResort = ScreenHandler()
        try:
            command(**arguments)
        except BrokenPipeError:
            # the interpreter flushes stdout at exit, which must not fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except _EXPECTED as error:
            failure = describe_failure(error)
            write_failure(failure, Output(as_json=bool(arguments.get("as_json"))))
            raise typer.Exit(exit_code_of(failure["code"])) from error

    return run


def describe_failure(error: Exception) -> JsonObject:
    """Return an expected error as its JSON: code, message and hints."""
    known = ConfigError(str(error), suggestion=_REMEDY) if isinstance(error, SettingsError) else error
    code: str = getattr(known, "code", GoondanError.code)
    described = {"code": code, "message": str(known)}
    if suggestion := getattr(known, "suggestion", None):
        described["suggestion"] = suggestion
    if isinstance(known, GoondanError) and (known.help_url or has_page(code, known)):
        described["helpUrl"] = known.help_url or help_url() + code
    if isinstance(known, WaitTimeout):
        described["callId"] = known.call_id
    return described


def failure_text(failure: JsonObject, label: str = "Error") -> Text:
    return error_text(label, failure["message"], failure.get("suggestion"), failure.get("helpUrl"))


def write_failure(failure: JsonObject, output: Output, *, label: str = "Error") -> None:
    """Write a failure: for people to stderr after its label, for programs to stdout."""
    output.document({"error": failure}) if output.as_json else output.note(failure_text(failure, label))


def help_url() -> str:
    """Return the URL of the pages about errors, even if other settings are invalid."""
    try:
        return Settings.load().help_url
    except SettingsError:
        return str(Settings.model_fields["help_url"].default)


def _escape_in_json(found: re.Match[str]) -> str:
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in found[0])


def _cell(value: object) -> Text:
    if isinstance(value, Text):  # the state of a call, in one style
        return value if value.plain.isprintable() else Text(on_one_line(value.plain), value.style)
    return Text("-" if value is None else on_one_line(str(value)))

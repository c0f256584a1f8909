"""What a command writes and how it ends: one renderer for answers and errors, for people and for programs.

An answer goes to stdout, everything else to stderr. With ``--json`` stdout gets one JSON document, for an
error ``{"error": {"code", "message", "suggestion", "helpUrl"}}``. Two failures belong to the command line
alone and have no page: ``E_USAGE`` and ``E_WAIT_TIMEOUT``.
"""

import codecs
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, NoReturn, TypeVar

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from broker_config.embedded import EmbeddedRedisError
from broker_config.settings import Settings, SettingsError
from goondan_tasks.errors import ConfigError, GoondanError, HandoffError, ToolError, WaitTimeout
from goondan_tasks.failure import error_pages, has_page
from goondan_tasks.messages import JsonObject, ToolCallError, epoch_milliseconds

# Exit codes (DESIGN "Commands", frozen).
#: also for a call that is queued, running or pending
OK = 0
#: the tool answered with an error
FAILED = 1
#: the command line, or what it names: no such call, one that has ended, arguments too large, a conflict
USAGE = 2
#: the bundle, a setting, or an unknown agent
CONFIGURATION = 3
WAIT_TIMED_OUT = 4
BROKER_UNREACHABLE = 5
INTERRUPTED = 130
#: the reader of our output is gone; what a shell reports for a program that SIGPIPE ended
BROKEN_PIPE = 141

_BY_CODE = {
    code: exit_code
    for exit_code, codes in {
        # E_TOOL_INVALID_ARGS as an exception; a result with this code is a tool's error as any other
        USAGE: "E_USAGE E_CALL_NOT_FOUND E_CALL_NOT_REPLAYABLE E_CALL_CLOSED E_CALL_NOT_PENDING "
        "grant_not_found E_INSTANCE_NOT_FOUND E_INSTANCE_BUSY E_PAYLOAD_TOO_LARGE E_TOOL_CALL_CONFLICT "
        "E_TOOL_INVALID_ARGS CHANGESET_NOT_FOUND",
        CONFIGURATION: "E_AGENT_NOT_FOUND E_OAUTH_STORE oauthAppNotFound configurationError BUNDLE_INVALID",
        WAIT_TIMED_OUT: "E_WAIT_TIMEOUT E_HANDOFF_TIMEOUT",
        BROKER_UNREACHABLE: "E_BROKER_UNREACHABLE",
    }.items()
    for code in codes.split()
}

#: the beginning of a call's id that a command takes for the whole one
SHORTEST_ID = 8
#: a table in a pipe or a file is as wide as its content
_UNLIMITED = 10_000
#: a narrower terminal wraps lines itself
_NARROWEST = 80
#: a narrower terminal gets shortened ids and times
_ROOMY = 120

_EXPECTED = (GoondanError, WaitTimeout, SettingsError, EmbeddedRedisError)
_REMEDY = "Correct it in the environment, or give the option of that name."

#: the page that a URL leads to
_CODE_AT_END = re.compile(r"[A-Z]+(_[A-Z]+)+$")

_GENERAL = (HandoffError, ToolError)
#: codes of exceptions without a code of their own, whose message alone may be no more than a key's name
_GENERAL_CODES, _GENERAL_NAMES = {kind.code for kind in _GENERAL}, {kind.__name__ for kind in _GENERAL}

#: of a call's state, wherever it is shown
STATE_STYLES = {
    "ok": "green",
    "error": "red",
    "dead": "bold red",
    "lost": "bold red",
    "running": "cyan",
    "pending": "yellow",
    "waiting": "yellow",
    "queued": "dim",
}

Command = Callable[..., None]
Content = Table | Text | str
Item = TypeVar("Item")
#: the headings of a table, and how each cell is read: a function, or the name of a field of JSON
Columns = Mapping[str, Callable[[Item], object] | str]


def exit_code_of(error_code: str) -> int:
    return CONFIGURATION if error_code.startswith("E_CONFIG_") else _BY_CODE.get(error_code, FAILED)


class Screen(Console):
    """A console for plain text: no markup, no guessed highlights; off a terminal as wide as the content."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)
        self.columns = self.width if self.is_terminal else _UNLIMITED
        self.width = max(self.columns, _NARROWEST)

    def say(self, content: Content) -> None:
        """Write text unwrapped and safe for the terminal; a table as wide as the screen."""
        if not isinstance(content, Table):
            return self.print(_safe(content), soft_wrap=True)
        self.fit(content)
        with self.capture() as table:
            self.print(content)
        # rich fills the last column up with blanks
        return self.out("\n".join(line.rstrip() for line in table.get().splitlines()))

    def fit(self, content: object) -> None:
        """Take the width of the terminal, however narrow, for a table whose rows take one line each."""
        is_cut = isinstance(content, Table) and all(one.overflow == "ellipsis" for one in content.columns)
        self.width = self.columns if is_cut else max(self.columns, _NARROWEST)

    def on_broken_pipe(self) -> NoReturn:
        """Leave it to :func:`reported`, which ends the program quietly."""
        raise


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has found, for programs and for people; a command with ``--watch`` gives many."""

    document: Any
    #: ``None`` where there is nothing to show
    content: Content | None
    #: notes for people, on stderr
    notes: tuple[str, ...] = ()

    def drawn(self) -> Group:
        """Return all of it as one thing to draw on a terminal."""
        content = () if self.content is None else (_safe(self.content),)
        return Group(*content, *(Text(printable(note)) for note in self.notes))


@dataclass(frozen=True, slots=True)
class Output:
    """The answer as a table or text for people, or as one JSON document for programs."""

    as_json: bool = False
    #: each document on a line of its own, for a reader of several
    is_compact: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether stdout is a terminal on which whole ids leave too little room beside them."""
        return Screen().width < _ROOMY

    def write(self, answer: Answer) -> None:
        """Write an answer as a document for programs, or as content and notes for people."""
        if self.as_json:
            return self.document(answer.document)
        if answer.content is not None:
            self.print(answer.content)
        for note in answer.notes:
            self.note(note)
        return None

    def give(self, document: Any, content: Content | None, *notes: str) -> None:
        """Write an answer that is made for this one purpose."""
        self.write(Answer(document, content, notes))

    def document(self, document: Any) -> None:
        # a stdout that cannot hold every character gets escapes, which say the same
        is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        indent = None if self.is_compact else 2
        sys.stdout.write(json.dumps(document, indent=indent, ensure_ascii=not is_unicode) + "\n")
        sys.stdout.flush()

    def stream(self, parts: Iterable[bytes]) -> None:
        """Write UTF-8 text to stdout byte by byte; on a terminal, made safe for it."""
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
        """Write something on stderr that is not part of the answer."""
        Screen(stderr=True).say(content)

    def time(self, milliseconds: int | None) -> str | None:
        """Write a time for a table: without its year where the screen is narrow."""
        text = None if milliseconds is None else local_time(milliseconds)
        return text and text.partition("-")[2] if self.is_narrow else text

    def call_id(self, text: str | None) -> str | None:
        """Write a call's id for a table: as much of it as a command takes where the screen is narrow."""
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
    """Answer with a list: a table (see :func:`make_table`), or the note ``none`` if it is empty.

    A program gets what ``wire`` makes of each item, by default the item itself.
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
    """Return what writes a field of JSON for people: a list's items in a row, a time by the local clock."""

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

    Where the screen is narrow, ``spare`` columns are left out, and cells continue on the next line, except
    those of columns that are ``unbroken``: an id, say, is to be copied. With ``is_cut`` each row takes one
    line, and what has no room in it ends with an ellipsis.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    is_narrow = Output().is_narrow
    whole = {unbroken} if isinstance(unbroken, str) else unbroken
    kept = [number for number, column in enumerate(columns) if column not in spare or not is_narrow]
    filled = [[row[number] for number in kept] for row in rows]
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
            cell.no_wrap = True  # the column may still become narrower
        table.add_row(*cells)
    return table


def printable(text: str) -> str:
    """Write control characters, bidi overrides and lone surrogates as escapes; line breaks and tabs stay.

    The output of a tool or of another program must not control the reader's terminal.
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def on_one_line(text: str) -> str:
    """Escape line breaks too: a name in a row must not forge another row."""
    return printable(text.replace("\n", "\\n"))


def pretty(value: Any) -> str:
    """Write a text as it is, anything else as indented JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def local_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def show_progress(done: int, total: int, unit: str = "", *, is_last: bool) -> None:
    """Renew a line with numbers on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{done:,} of {total:,}{unit}{chr(10) if is_last else chr(13)}")
        sys.stderr.flush()


def error_text(label: str, message: str, suggestion: str | None, help_url: str | None = None) -> Text:
    """Write an error behind its label, each hint on a line of its own."""
    text = Text().append(printable(f"{label}: "), style="bold red").append(printable(message))
    for hint, value in (("What to do", suggestion), ("More", help_url and _more(help_url))):
        if value is not None:
            text.append(f"\n{hint}: ", style="bold").append(printable(value))
    return text


def _more(url: str) -> str:
    """Say where more is told: a page of ours is here, too."""
    code = _CODE_AT_END.search(url)
    return f"goondan explain {code[0]}, or {url}" if code and code[0] in error_pages() else url


def named_message(error: ToolCallError) -> str:
    """Return the message, behind the class of an exception without a code: ``KeyError: 'path'``."""
    is_named = error.code in _GENERAL_CODES and error.name not in _GENERAL_NAMES
    return f"{error.name}: {error.message}" if is_named else error.message


def reported(command: Command) -> Command:
    """Make ``command`` report its failures in words and with the right exit code, never with a traceback."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        try:
            command(**arguments)
        except BrokenPipeError:
            # the interpreter flushes stdout again at exit: nothing more may fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except _EXPECTED as error:
            failure = describe_failure(error)
            tell(failure, Output(as_json=bool(arguments.get("as_json"))))
            raise typer.Exit(exit_code_of(failure["code"])) from error

    return run


def describe_failure(error: Exception) -> JsonObject:
    """Return ``code`` and ``message`` of an expected error, and what helps."""
    if isinstance(error, WaitTimeout):
        return {"code": "E_WAIT_TIMEOUT", "message": str(error), "callId": error.call_id}
    known = ConfigError(str(error), suggestion=_REMEDY) if isinstance(error, SettingsError) else error
    code: str = getattr(known, "code", GoondanError.code)
    described = {"code": code, "message": str(known)}
    if suggestion := getattr(known, "suggestion", None):
        described["suggestion"] = suggestion
    if isinstance(known, GoondanError) and (known.help_url or has_page(code, known)):
        described["helpUrl"] = known.help_url or help_url() + code
    return described


def failure_text(failure: JsonObject, label: str = "Error") -> Text:
    return error_text(label, failure["message"], failure.get("suggestion"), failure.get("helpUrl"))


def tell(failure: JsonObject, output: Output, *, label: str = "Error") -> None:
    """Write a failure: for people to stderr behind its label, for programs to stdout."""
    output.document({"error": failure}) if output.as_json else output.note(failure_text(failure, label))


def help_url() -> str:
    """Return where the pages about errors are, even if the other settings are wrong."""
    try:
        return Settings.load().help_url
    except SettingsError:
        return str(Settings.model_fields["help_url"].default)


def _safe(content: Content) -> Content:
    return printable(content) if isinstance(content, str) else content


def _cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    return Text("-" if value is None else on_one_line(str(value)))

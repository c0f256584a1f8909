"""Where a command writes: its answer to stdout, everything else to stderr."""

import codecs
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from goondan_tasks.cli.printable import on_one_line, printable

#: a table in a pipe or a file is as wide as its content
UNLIMITED = 10_000
#: a terminal that is narrower wraps what it gets by itself
NARROWEST = 80
#: a terminal that is narrower gets the beginnings of ids
ROOMY = 120


class Screen(Console):
    """A console for plain text: no markup, no guessed highlights; as wide as need be off a terminal."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)
        self.width = max(self.width, NARROWEST) if self.is_terminal else UNLIMITED

    def on_broken_pipe(self) -> NoReturn:
        """Leave it to the one place that ends the program quietly."""
        raise


@dataclass(frozen=True, slots=True)
class Output:
    """The answer as a table or text for people, or as one JSON document for programs."""

    as_json: bool = False
    #: each document on a line of its own, for whoever reads several
    is_compact: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether stdout is a terminal on which whole ids leave too little room beside them."""
        return _is_narrow()

    def document(self, document: Any) -> None:
        """Write the JSON document."""
        # a stdout that cannot hold every character gets escapes, which say the same
        is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        indent = None if self.is_compact else 2
        text = json.dumps(document, indent=indent, ensure_ascii=not is_unicode)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        unbroken: str | None = None,
        spare: Collection[str] = (),
        none: str | None = None,
    ) -> None:
        """Write rows under their headings (see :func:`make_table`); if there are none, note ``none``."""
        filled = list(rows)
        if not filled and none is not None:
            return self.note(none)
        return self.print(make_table(columns, filled, unbroken=unbroken, spare=spare))

    def stream(self, parts: Iterable[bytes]) -> None:
        """Write UTF-8 text to stdout byte by byte; on a terminal, made safe for it."""
        raw: BinaryIO | None = getattr(sys.stdout, "buffer", None)
        if raw is None or sys.stdout.isatty():
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            for part in parts:
                sys.stdout.write(printable(decoder.decode(part)))
            sys.stdout.write(printable(decoder.decode(b"", final=True)) + "\n")
        else:
            for part in parts:
                raw.write(part)
        sys.stdout.flush()

    def print(self, content: Table | Text | str) -> None:
        """Write a part of the answer."""
        _write(Screen(), content)

    def note(self, content: Table | Text | str) -> None:
        """Tell the person something that is no part of the answer."""
        _write(Screen(stderr=True), content)


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    unbroken: str | None = None,
    spare: Collection[str] = (),
) -> Table:
    """Make a table: numbers stand to the right, ``None`` is a dash, nothing is cut off.

    Where the screen is narrow, ``spare`` columns are left out, and cells go on in the next line, but for
    those of the column ``unbroken``, which are to be copied.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    kept = [number for number, column in enumerate(columns) if column not in spare or not _is_narrow()]
    filled = [[row[number] for number in kept] for row in rows]
    for number, column in enumerate(columns[number] for number in kept):
        are_numbers = any(_is_number(row[number]) for row in filled) and all(
            row[number] is None or _is_number(row[number]) for row in filled
        )
        table.add_column(
            column,
            justify="right" if are_numbers else "left",
            overflow="fold",
            no_wrap=column == unbroken,
            min_width=_width(row[number] for row in filled) if column == unbroken else None,
        )
    for row in filled:
        table.add_row(*(_cell(value) for value in row))
    return table


def safe(content: Table | Text | str) -> Table | Text | str:
    """Make a string safe for the terminal; what is made of cells already is."""
    return printable(content) if isinstance(content, str) else content


def _write(screen: Screen, content: Table | Text | str) -> None:
    if not isinstance(content, Table):
        return screen.print(safe(content), soft_wrap=True)
    with screen.capture() as table:
        screen.print(content)
    # rich fills the last column up with blanks
    lines = [line.rstrip() for line in table.get().splitlines()]
    return screen.out("\n".join(lines))


def _is_narrow() -> bool:
    return Screen().width < ROOMY


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _width(values: Iterable[object]) -> int:
    return max((_cell(value).cell_len for value in values), default=0)


def _cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    return Text("-" if value is None else on_one_line(str(value)))

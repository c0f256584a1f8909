"""What a Turn shows on a terminal of 80 columns."""

import io
import re
import sys
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from goondan_tasks.cli.live_output import TurnView, WaitingLine
from goondan_tasks.cli.output import Screen
from goondan_tasks.client import TextDelta, ToolAnswered, ToolCalled, ToolEmitted, ToolRestarted
from tests.unit.goondan_tasks.cli.fake_client import FakeClient

CURSOR_UP = "\x1b[1A"
SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A terminal that remembers what was written."""

    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    for name, value in {"TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    return terminal


def view(client: FakeClient) -> TurnView:
    return TurnView(client, "coder", live=Screen())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "args", [{"path": "notes.md", "content": "x" * 500}, {"내용": "가" * 500}, {"path": "a", "number": 1}]
)
def test_tool_call_takes_one_row_with_its_duration(
    args: dict[str, Any], client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = a_terminal(monkeypatch)
    shown, ids = view(client), {"step": 1, "id": "call_1", "call_id": "c-1", "tool": "file-system__write"}

    shown.show(ToolCalled(**ids, args=args))
    shown.show(ToolAnswered(**ids, status="ok", duration_ms=3.0))

    rows = SEQUENCE.sub("", terminal.getvalue()).replace("\r", "\n").splitlines()
    [row] = [row for row in rows if row.startswith("ok")]
    assert row.startswith("ok  file-system__write {")
    assert row.endswith(" · 3 ms")
    assert cell_len(row) <= 80


def test_redrawn_line_erases_nothing_above(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    line = WaitingLine(client, "coder")  # type: ignore[arg-type]
    line.write(Text("a row and a half " * 7))
    line.stop()
    written = len(terminal.getvalue())

    line.write(Text("short"))
    line.stop()

    again = terminal.getvalue()[written:]
    assert "short" in again
    assert again.count(CURSOR_UP) == 1  # for its own row


@pytest.mark.parametrize(
    ("said", "answer", "is_shown"),
    [
        ('{"tests": 2}', {"tests": 2}, True),
        ('{"tests": 2}', {"tests": 3}, False),
        ("Done.\n", "Done.", True),
        ("Do", "Done.", False),
        ("Do", {"tests": 2}, False),
        ("12", "12", True),
    ],
)
def test_answer_that_was_said_is_not_written_twice(
    said: str, answer: Any, is_shown: bool, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_terminal(monkeypatch)
    shown = view(client)
    shown.show(TextDelta(step=1, text=said))
    assert shown.has_shown(answer) is is_shown


def test_output_of_tool_is_shown_as_it_comes(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    shown = view(client)
    ids: dict[str, Any] = {"tool_call_id": "call_1", "call_id": "c-1", "tool": "build__all"}

    for chunk in ("compi", "ling\n", {"warnings": 0}):
        shown.show(ToolEmitted(**ids, attempt=1, chunk=chunk))
    shown.show(ToolRestarted(**ids, attempt=2))
    shown.show(ToolEmitted(**ids, attempt=2, chunk="again \x1b[2J"))
    shown.show(ToolEmitted(**ids, attempt=2, truncated=True))

    rows = SEQUENCE.sub("", terminal.getvalue()).replace("\r", "\n").splitlines()
    assert [row for row in rows if row.strip()] == [
        "compiling",
        '{"warnings": 0}',
        "build__all starts over:",
        "again \\x1b[2J",
        "build__all emits more than is shown",
    ]

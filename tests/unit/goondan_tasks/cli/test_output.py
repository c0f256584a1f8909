"""What commands write."""

import io
import json
import re
import sys

import pytest

from goondan_tasks.cli.output import Output

STRANGE = {"emoji": "😀", "lone": "\ud800", "control": "\x1b[31m", "big": 2**70}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_document_survives_every_encoding_of_stdout(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stdout)

    Output(as_json=True).document(STRANGE)

    assert json.loads(written.getvalue().decode(encoding)) == STRANGE


def test_a_table_shows_every_cell_whole_and_ends_without_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name", "calls", "note"), [("coder", 12, "x" * 300), ("a", 3, None)])

    assert capsys.readouterr().out.splitlines() == [
        "name   calls  note",
        f"coder     12  {'x' * 300}",
        "a          3  -",
    ]


def test_a_column_that_holds_more_than_numbers_stands_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("field", "value"), [("id", "0b7c7a1e"), ("attempt", 2), ("cancelled", False)])

    assert capsys.readouterr().out.splitlines()[2:] == ["attempt    2", "cancelled  False"]


def test_cells_and_lines_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name",), [("\x1b[2J[bold]",)])
    Output().print("\x1b[2J[bold]")
    Output().note("\x1b[2J[bold]")

    captured = capsys.readouterr()
    assert captured.out == "name\n\\x1b[2J[bold]\n\\x1b[2J[bold]\n"
    assert captured.err == "\\x1b[2J[bold]\n"


@pytest.mark.parametrize(("columns", "cells"), [(119, ["x", "z"]), (120, ["x", "y", "z"])])
def test_a_spare_column_is_left_out_where_there_is_little_room(
    columns: int, cells: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    Output().table(("a", "b", "c"), [("x", "y", "z")], spare={"b"})

    assert capsys.readouterr().out.splitlines()[1].split() == cells


@pytest.mark.parametrize("columns", [40, 80])
def test_on_a_narrow_terminal_one_column_stays_whole_and_the_others_fold(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(sys, "stdout", stdout := io.StringIO())
    call_id = "0b7c7a1e-0000-5000-8000-000000000001"
    names = ("queued", "agent", "tool", "instance", "status", "took", "worker", "id")

    Output().table(names, [(*["x" * 20] * 7, call_id)], unbroken="id")

    lines = re.sub(r"\x1b\[\d*m", "", stdout.getvalue()).splitlines()
    assert [call_id in line for line in lines].count(True) == 1
    assert "".join(lines).count("x") == 7 * 20
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_stream_is_exact_and_on_a_terminal_harmless(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding="utf-8")
    monkeypatch.setattr(stdout, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", stdout)
    data = '"한\u009b31m"'.encode()

    Output().stream([data[:2], data[2:5], data[5:]])

    assert written.getvalue() == ('"한\\x9b31m"\n'.encode() if is_terminal else data)

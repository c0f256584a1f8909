"""What commands write."""

import io
import json
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


def test_cells_and_lines_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name",), [("\x1b[2J[bold]",)])
    Output().print("\x1b[2J[bold]")
    Output().note("\x1b[2J[bold]")

    captured = capsys.readouterr()
    assert captured.out == "name\n\\x1b[2J[bold]\n\\x1b[2J[bold]\n"
    assert captured.err == "\\x1b[2J[bold]\n"

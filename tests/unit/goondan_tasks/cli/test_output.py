"""What commands write."""

import io
import json
import re
import sys
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from broker_config.embedded import PortInUse
from broker_config.settings import SettingsError
from goondan_tasks.cli.output import (
    Command,
    Output,
    describe_failure,
    exit_code_of,
    listing,
    reported,
)
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    CallNotFoundError,
    ConfigError,
    GoondanError,
    HandoffError,
    WaitTimeout,
)
from goondan_tasks.contract.wording import printable

STRANGE = {"emoji": "😀", "lone": "\ud800", "control": "\x1b[31m", "big": 2**70}


def show(columns: Sequence[str], rows: Sequence[Sequence[object]], **options: Any) -> None:
    """Write a list for people."""
    cells = {column: itemgetter(number) for number, column in enumerate(columns)}
    Output().write(listing(rows, cells, **options))


def test_empty_list_is_noted_only_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = listing([], {"name": str}, none="There are none.")
    Output().write(answer)
    Output(as_json=True).write(answer)

    assert capsys.readouterr() == ("[]\n", "There are none.\n")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_document_survives_every_encoding_of_stdout(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stdout)

    Output(as_json=True).document(STRANGE)

    assert json.loads(written.getvalue().decode(encoding)) == STRANGE


def test_table_shows_cells_whole_without_trailing_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    show(("name", "calls", "note"), [("coder", 12, "x" * 300), ("a", 3, None)])

    assert capsys.readouterr().out.splitlines() == [
        "name   calls  note",
        f"coder     12  {'x' * 300}",
        "a          3  -",
    ]


def test_column_with_non_numbers_is_left_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show(("field", "value"), [("id", "0b7c7a1e"), ("attempt", 2), ("cancelled", False)])

    assert capsys.readouterr().out.splitlines()[2:] == ["attempt    2", "cancelled  False"]


def test_cells_and_lines_cannot_steer_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(("name",), [("\x1b[2J[bold]",)])
    Output().print("\x1b[2J[bold]")
    Output().note("\x1b[2J[bold]")

    captured = capsys.readouterr()
    assert captured.out == "name\n\\x1b[2J[bold]\n\\x1b[2J[bold]\n"
    assert captured.err == "\\x1b[2J[bold]\n"


@pytest.mark.parametrize(("columns", "cells"), [(119, ["x", "z"]), (120, ["x", "y", "z"])])
def test_spare_column_needs_enough_room(
    columns: int, cells: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    show(("a", "b", "c"), [("x", "y", "z")], spare={"b"})

    assert capsys.readouterr().out.splitlines()[1].split() == cells


@pytest.mark.parametrize("columns", [40, 80])
def test_narrow_terminal_folds_all_columns_but_one(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(sys, "stdout", stdout := io.StringIO())
    call_id = "0b7c7a1e-0000-5000-8000-000000000001"
    names = ("queued", "agent", "tool", "instance", "status", "took", "worker", "id")

    show(names, [(*["x" * 20] * 7, call_id)], unbroken="id")

    lines = re.sub(r"\x1b\[\d*m", "", stdout.getvalue()).splitlines()
    assert [call_id in line for line in lines].count(True) == 1
    assert "".join(lines).count("x") == 7 * 20
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("is_terminal", [True, False])
def test_stream_is_exact_and_on_terminal_harmless(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding="utf-8")
    monkeypatch.setattr(stdout, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", stdout)
    data = '"한\u009b31m"'.encode()

    Output().stream([data[:2], data[2:5], data[5:]])

    assert written.getvalue() == ('"한\\x9b31m"\n'.encode() if is_terminal else data)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("한국어 😀", "한국어 😀"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("back\r\x08", "back\\r\\x08"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
    ],
)
def test_terminal_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_shown_text_is_encodable_without_control_characters(text: str) -> None:
    shown = printable(text)

    shown.encode("utf-8")
    assert all(char.isprintable() or char in "\n\t" for char in shown)


@pytest.mark.parametrize(
    ("error_code", "exit_code"),
    [
        ("E_USAGE", 2),
        ("E_CALL_NOT_FOUND", 2),
        ("E_PAYLOAD_TOO_LARGE", 2),
        ("E_TOOL_CALL_CONFLICT", 2),
        ("E_CONFIG_SCHEMA_INVALID", 3),
        ("E_CONFIG_REF_NOT_FOUND", 3),
        ("E_AGENT_NOT_FOUND", 3),
        ("E_WAIT_TIMEOUT", 4),
        ("E_BROKER_UNREACHABLE", 5),
        ("E_GOONDAN", 1),
    ],
)
def test_error_code_has_its_exit_code(error_code: str, exit_code: int) -> None:
    assert exit_code_of(error_code) == exit_code


def failing(error: Exception) -> Command:
    """Make a command that raises ``error`` and reports it."""

    def command(as_json: bool = False) -> None:
        raise error

    return reported(command)


def test_failure_has_code_message_suggestion_and_page() -> None:
    assert describe_failure(BrokerUnreachableError("Redis is away.")) == {
        "code": "E_BROKER_UNREACHABLE",
        "message": "Redis is away.",
        "suggestion": BrokerUnreachableError.suggestion,
        "helpUrl": "https://docs.goondan.ai/errors/E_BROKER_UNREACHABLE",
    }


def test_page_is_below_configured_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_HELP_URL", "https://help.example/")

    assert describe_failure(CallNotFoundError())["helpUrl"] == "https://help.example/E_CALL_NOT_FOUND"


def test_wrong_setting_is_reported_without_readable_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_LEASE_SECONDS", "soon")

    failure = describe_failure(SettingsError("GOONDAN_LEASE_SECONDS: no number"))

    assert failure["code"] == "E_CONFIG_SCHEMA_INVALID"
    assert failure["helpUrl"] == "https://docs.goondan.ai/errors/E_CONFIG_SCHEMA_INVALID"


def test_error_without_page_of_its_own_names_none() -> None:
    for error in (GoondanError("no"), PortInUse(5), HandoffError("no", code="ENOENT")):
        assert "helpUrl" not in describe_failure(error)


def test_timeout_names_call() -> None:
    failure = describe_failure(WaitTimeout("the-id", 3))

    assert (failure["code"], failure["callId"]) == ("E_WAIT_TIMEOUT", "the-id")
    assert "goondan result the-id" in failure["message"]


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (BrokerUnreachableError(), 5),
        (ConfigError(), 3),
        (SettingsError("no"), 3),
        (WaitTimeout("id", 3), 4),
        (CallNotFoundError(), 2),
        (PortInUse(5), 5),
        (GoondanError(), 1),
    ],
)
def test_failure_ends_command_with_its_exit_code(error: Exception, exit_code: int) -> None:
    with pytest.raises(typer.Exit) as ended:
        failing(error)()

    assert ended.value.exit_code == exit_code


def test_people_read_failures_on_stderr_programs_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for as_json in (False, True):
        with pytest.raises(typer.Exit):
            failing(CallNotFoundError("No call \x1b[2J."))(as_json=as_json)
        told.append(capsys.readouterr())

    for_people, for_programs = told
    assert for_people.err.startswith("Error: No call \\x1b[2J.\nWhat to do: Check the id")
    assert for_people.out == for_programs.err == ""
    assert json.loads(for_programs.out) == {"error": describe_failure(CallNotFoundError("No call \x1b[2J."))}


def test_defect_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())()

"""JSON as text, file or stdin."""

import io
import sys
from pathlib import Path

import pytest
import typer

from goondan_tasks.cli import options
from goondan_tasks.cli.options import parse_json, parse_positive_seconds, parse_seconds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"command": "ls"}', {"command": "ls"}),
        ("[1, 2]", [1, 2]),
        ('{"__type__": "uuid", "__value__": "x"}', {"__type__": "uuid", "__value__": "x"}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ('{"s": "😀\\u0000"}', {"s": "😀\0"}),
    ],
)
def test_text_is_read_as_it_stands(text: str, value: object) -> None:
    assert parse_json(text) == value


def test_file_may_begin_with_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "args.json"
    for start in (b"", b"\xef\xbb\xbf"):
        file.write_bytes(start + b'{"a": 1}')

        assert parse_json(f"@{file}") == {"a": 1}


def test_dash_reads_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}'), encoding="utf-8"))

    assert parse_json("-") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON .line 1, column 2: a name in double quotes is expected here"),
        ("{a: 1}", "line 1, column 2: a name in double quotes is expected here"),
        ("", "is not JSON .it is empty"),
        ("[1 2]", "line 1, column 4: a comma is expected here"),
        ("ls -l", "line 1, column 1: a value is expected here"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "is not JSON"),
        ("@/no/such/file", "'/no/such/file' cannot be read: No such file"),
        ("@/", "cannot be read: Is a directory"),
        ("@", "cannot be read"),
    ],
)
def test_invalid_json_is_refused_with_reason(text: str, reason: str) -> None:
    with pytest.raises(typer.BadParameter, match=reason):
        parse_json(text)


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(typer.BadParameter, match="is not UTF-8 text"):
        parse_json(f"@{tmp_path / 'binary'}")


def test_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "MAX_BYTES", 1024)

    with pytest.raises(typer.BadParameter, match="'/dev/zero' is larger than"):
        parse_json("@/dev/zero")


@pytest.mark.parametrize("stdin", [None, io.TextIOWrapper(io.BytesIO(), encoding="utf-8")])
def test_closed_stdin_is_refused(stdin: io.TextIOWrapper | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if stdin is not None:
        stdin.close()
    monkeypatch.setattr(sys, "stdin", stdin)

    with pytest.raises(typer.BadParameter, match="stdin is closed"):
        parse_json("-")


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("1.5", 1.5), ("1e3", 1000.0), (60.0, 60.0)])
def test_seconds_are_numbers_from_zero_on(text: str | float, value: float) -> None:
    assert parse_seconds(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("0.5d", 43_200)]
)
def test_time_may_have_unit(text: str, value: float) -> None:
    assert parse_seconds(text) == value


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "nan", "inf", "infd", "-7d", "d", "7w", "7D", "1h30m", "7dd", "1e999s"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is neither a number of seconds"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["0", "0s", 0.0])
def test_required_wait_of_zero_seconds_is_refused(text: str | float) -> None:
    with pytest.raises(typer.BadParameter, match="above 0"):
        parse_positive_seconds(text)


def test_any_other_time_can_be_waited_for() -> None:
    assert parse_positive_seconds("2m") == 120

"""Seconds on the command line."""

import pytest
import typer

from goondan_tasks.cli.seconds_argument import parse_seconds, parse_some_seconds


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("1.5", 1.5), ("1e3", 1000.0), (60.0, 60.0)])
def test_seconds_are_numbers_from_zero_on(text: str | float, value: float) -> None:
    assert parse_seconds(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("0.5d", 43_200)]
)
def test_a_time_may_have_a_unit(text: str, value: float) -> None:
    assert parse_seconds(text) == value


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "nan", "inf", "infd", "-7d", "d", "7w", "7D", "1h30m", "7dd", "1e999s"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no number of seconds"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["0", "0s", 0.0])
def test_who_must_wait_cannot_wait_for_no_time_at_all(text: str | float) -> None:
    with pytest.raises(typer.BadParameter, match="above 0"):
        parse_some_seconds(text)


def test_any_other_time_can_be_waited_for() -> None:
    assert parse_some_seconds("2m") == 120

"""Seconds on the command line."""

import pytest
import typer

from goondan_tasks.cli.seconds_argument import parse_seconds


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("1.5", 1.5), ("1e3", 1000.0)])
def test_seconds_are_numbers_from_zero_on(text: str, value: float) -> None:
    assert parse_seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf", "1s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no number of seconds"):
        parse_seconds(text)

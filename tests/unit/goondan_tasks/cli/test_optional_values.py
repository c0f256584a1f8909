"""Options whose value may be missing."""

from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.cli.optional_values import with_values


def option(name: str, metavar: str | None) -> Any:
    """Make an option as typer describes it."""
    return SimpleNamespace(param_type_name="option", opts=[name], metavar=metavar)


WATCH, AGENT = option("--watch", "[SECONDS]"), option("--agent", "A")
ARGUMENT = SimpleNamespace(param_type_name="argument", opts=["key"], metavar="[KEY]")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("--watch", "--watch="),
        ("--watch 5", "--watch=5"),
        ("--watch=5", "--watch=5"),
        ("--watch -1", "--watch=-1"),
        ("--watch --json", "--watch= --json"),
        ("--agent a --watch 5 --json", "--agent a --watch=5 --json"),
        ("--agent", "--agent"),
        ("-- --watch 5", "-- --watch 5"),
        ("", ""),
    ],
)
def test_an_option_has_the_value_behind_it_or_an_empty_one(given: str, read: str) -> None:
    assert with_values(given.split(), [WATCH, AGENT]) == read.split()


def test_an_argument_is_no_value() -> None:
    assert with_values(["--watch", "order-7"], [WATCH, ARGUMENT]) == ["--watch=", "order-7"]
    assert with_values(["order-7", "--watch=5"], [WATCH, ARGUMENT]) == ["order-7", "--watch=5"]

"""Seconds on the command line."""

import math
from typing import Annotated

import typer


def parse_seconds(text: str) -> float:
    """Read a number of seconds from 0 on.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"{text!r} is no number of seconds from 0 on.")
    return value


Timeout = Annotated[
    float | None,
    typer.Option(
        parser=parse_seconds, metavar="S", help="Wait S seconds at most; the call goes on after that."
    ),
]

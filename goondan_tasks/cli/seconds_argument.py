"""Seconds on the command line."""

import math
from typing import Annotated

import typer

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_seconds(given: str | float) -> float:
    """Read a number of seconds from 0 on; with a unit also ``90s``, ``15m``, ``12h``, ``7d``.

    Raises:
        typer.BadParameter: it is none.
    """
    text = str(given)  # an option's default comes as the number that it is
    factor = _UNITS.get(text[-1:])
    try:
        value = float(text if factor is None else text[:-1]) * (factor or 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(
            f"{text!r} is no number of seconds from 0 on, nor a time such as 90s, 15m, 12h or 7d."
        )
    return value


def parse_some_seconds(given: str | float) -> float:
    """Read seconds as :func:`parse_seconds` does, but above 0.

    Raises:
        typer.BadParameter: it is none.
    """
    value = parse_seconds(given)
    if value == 0:
        raise typer.BadParameter("must be above 0.")
    return value


Timeout = Annotated[
    float | None,
    typer.Option(
        parser=parse_seconds, metavar="S", help="Wait S seconds at most; the call goes on after that."
    ),
]

"""How words of the command line are read, and the options that commands share."""

import math
import sys
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from broker_config import serializer
from goondan_tasks.errors import ConfigError
from goondan_tasks.messages import JsonObject
from goondan_tasks.wording import shown

#: far above any limit of a payload: a file that never ends is refused, not read
MAX_BYTES = 64 * 1024 * 1024

#: filters, and beginnings of ids, look through so many of the most recent calls
SEARCHED = 1000

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SHORTEST_INTERVAL, _LONGEST_INTERVAL, _DEFAULT_INTERVAL = 0.1, 86_400.0, 2.0


def parse_seconds(given: str | float) -> float:
    """Read a number of seconds from 0 on; with a unit also ``90s``, ``15m``, ``12h``, ``7d``.

    Raises:
        typer.BadParameter: it is not one.
    """
    text = str(given)  # an option's default comes as the number that it is
    factor = _UNITS.get(text[-1:])
    try:
        value = float(text if factor is None else text[:-1]) * (factor or 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(
            f"{text!r} is not a number of seconds from 0 on, nor a time such as 90s, 15m, 12h or 7d."
        )
    return value


def parse_some_seconds(given: str | float) -> float:
    """Read seconds as :func:`parse_seconds` does, but above 0."""
    if value := parse_seconds(given):
        return value
    raise typer.BadParameter("must be above 0.")


def parse_interval(given: str | float) -> float:
    """Read how long ``--watch`` waits between two looks, in seconds; an empty text is the default."""
    seconds = parse_seconds(given) if given != "" else _DEFAULT_INTERVAL
    if not _SHORTEST_INTERVAL <= seconds <= _LONGEST_INTERVAL:
        raise typer.BadParameter(
            f"must be from {_SHORTEST_INTERVAL:g} to {_LONGEST_INTERVAL:g} seconds (a day)."
        )
    return seconds


def parse_json(text: str) -> Any:
    """Read JSON: as text, ``@file``, or ``-`` for stdin (DESIGN "Commands").

    Raises:
        typer.BadParameter: there is no such file, or its content is not JSON.
    """
    content = _content(text)
    try:
        return serializer.decode(content)
    except serializer.NotJsonError as error:
        raise typer.BadParameter(
            f'is not JSON ({error}). Write JSON text such as \'{{"path": "a.txt"}}\', @FILE, or - for stdin.'
        ) from error


def parse_object(text: str) -> JsonObject:
    """Read a JSON object; raises as :func:`parse_json` does."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise typer.BadParameter(f"must be a JSON object such as {{}}, not {shown(value)}.")
    return value


def parse_input(text: str) -> Any:
    """Read JSON, or else plain text as it is.

    Raises:
        typer.BadParameter: there is no such file, or it is not UTF-8.
    """
    content = _content(text)
    try:
        return serializer.decode(content)
    except serializer.NotJsonError:
        return content


def require_some_text(text: str | None) -> str | None:
    """Refuse an empty name, such as that of a shell's variable which is not set.

    Raises:
        typer.BadParameter: it is empty.
    """
    if text == "":
        raise typer.BadParameter("it is empty: write one character at least, or leave the option out.")
    return text


def this_bundle() -> Path:
    """Return this directory if it has a ``goondan.yaml``: other YAML is not taken for a bundle.

    Raises:
        ConfigError: it has none.
    """
    if any(Path(name).is_file() for name in ("goondan.yaml", "goondan.yml")):
        return Path()
    raise ConfigError(
        "No bundle is set, and there is no goondan.yaml here.",
        suggestion="Set GOONDAN_BUNDLE to the bundle's directory or file, or pass --bundle.",
    )


def _content(text: str) -> str:
    name = "stdin" if text == "-" else f"the file {text[1:]!r}"
    try:
        if text == "-":
            if sys.stdin is None or sys.stdin.closed:
                raise typer.BadParameter("- reads stdin, but stdin is closed.")
            return _bounded(sys.stdin.buffer, name)
        if text.startswith("@"):
            with Path(text[1:]).open("rb") as file:
                return _bounded(file, name)
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{name} is not UTF-8 text.") from error
    except OSError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error.strerror or error}.") from error
    return text


def _bounded(file: BinaryIO, name: str) -> str:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise typer.BadParameter(f"{name} is larger than {MAX_BYTES // 1024**2} MiB.")
    return data.decode("utf-8-sig")


CallId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The call's id, as `goondan calls` lists it, or its first 8 characters or more."
    ),
]
CallIds = Annotated[list[str], typer.Argument(metavar="IDS", help="The calls.")]
OfAgent = Annotated[str | None, typer.Option("--agent", metavar="A", help="Only those of this agent.")]
OfTool = Annotated[
    str | None, typer.Option("--tool", metavar="GLOB", help="Only those of tools such as 'image__*'.")
]
ServedAgents = Annotated[
    list[str] | None, typer.Option("--agent", metavar="A", help="An agent; repeatable. Default: all.")
]
Concurrency = Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Calls at once in a worker.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log at level debug.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        parser=parse_seconds, metavar="S", help="Wait S seconds at most; the call goes on after that."
    ),
]
Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        parser=parse_interval,
        metavar="[SECONDS]",
        help=f"Look again every so many seconds, {_DEFAULT_INTERVAL:g} if none are given, until Ctrl-C.",
    ),
]
Instance = Annotated[
    str | None, typer.Option(metavar="K", callback=require_some_text, help="The instance; default: default.")
]
Auth = Annotated[
    Any,
    typer.Option(
        parser=parse_object,
        metavar="JSON",
        help='The Turn\'s auth, an object: JSON text, @FILE, or -, such as \'{"subjects": {"user": "U1"}}\'.',
    ),
]
Origin = Annotated[
    Any,
    typer.Option(
        parser=parse_object, metavar="JSON", help="The Turn's origin, an object: JSON text, @FILE, or -."
    ),
]
BundleArgument = Annotated[
    Path | None,
    typer.Argument(metavar="BUNDLE", help="A directory or file; else GOONDAN_BUNDLE, else this directory."),
]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, metavar="P", help="The port to listen on; else GOONDAN_HTTP_PORT."),
]
Address = Annotated[
    str | None, typer.Option(metavar="HOST", help="The address to listen on; else GOONDAN_HTTP_HOST.")
]

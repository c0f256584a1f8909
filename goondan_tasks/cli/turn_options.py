"""Options that say for whom a Turn works, and where it began."""

from typing import Annotated, Any

import typer

from goondan_tasks.cli.json_argument import parse_object

Auth = Annotated[
    Any,
    typer.Option(
        parser=parse_object,
        metavar="JSON",
        help='The Turn\'s auth, an object: JSON text, @FILE, or -, such as \'{"subjects": {"user": "U1"}}\'.',
    ),
]


def require_some_text(text: str | None) -> str | None:
    """Refuse an empty name, such as that of a shell's variable which is not set.

    Raises:
        typer.BadParameter: it is empty.
    """
    if text == "":
        raise typer.BadParameter("it is empty: write one character at least, or leave the option out.")
    return text


Instance = Annotated[
    str | None,
    typer.Option(metavar="K", callback=require_some_text, help="The instance; default: default."),
]
Origin = Annotated[
    Any,
    typer.Option(
        parser=parse_object, metavar="JSON", help="The Turn's origin, an object: JSON text, @FILE, or -."
    ),
]

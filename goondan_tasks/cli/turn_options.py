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


def require_instance(key: str | None) -> str | None:
    """Refuse an empty instance key.

    Raises:
        typer.BadParameter: it is empty.
    """
    if key == "":
        raise typer.BadParameter("an instance key has one character at least; leave --instance out instead.")
    return key


Instance = Annotated[
    str | None,
    typer.Option(metavar="K", callback=require_instance, help="The instance; default: default."),
]
Origin = Annotated[
    Any,
    typer.Option(
        parser=parse_object, metavar="JSON", help="The Turn's origin, an object: JSON text, @FILE, or -."
    ),
]

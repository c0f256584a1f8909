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
Origin = Annotated[
    Any,
    typer.Option(
        parser=parse_object, metavar="JSON", help="The Turn's origin, an object: JSON text, @FILE, or -."
    ),
]

"""A call's id on the command line: whole, or as much of it as tells it from the other recent ones."""

from typing import Annotated

import typer

from goondan_tasks.cli.output import Output
from goondan_tasks.client import Client

#: so much of an id is not there by chance
SHORTEST_BEGINNING = 8
WHOLE = 36
#: a beginning is looked for among so many of the most recent calls
SEARCHED = 1000

CallId = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The call's id, as `goondan calls` lists it, or its first 8 characters or more."
    ),
]


def listed_id(call_id: str, output: Output) -> str:
    """Return what a table shows of an id: as much as a command takes, where the screen is narrow."""
    return call_id[:SHORTEST_BEGINNING] if output.is_narrow else call_id


def whole_id(client: Client, text: str) -> str:
    """Return the id that begins with ``text``; one that nobody has heard of stays as it is.

    Raises:
        typer.BadParameter: several recent calls begin so.
    """
    if not SHORTEST_BEGINNING <= len(text) < WHOLE:
        return text
    found = [record.id for record in client.calls(None, SEARCHED) if record.id.startswith(text)]
    if text in found or not found:
        return text
    if len(found) > 1:
        raise typer.BadParameter(f"several calls begin with {text!r}: {', '.join(found[:5])}.")
    return found[0]

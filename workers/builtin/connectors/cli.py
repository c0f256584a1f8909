"""Makes an event of each line of the terminal in which ``goondan connectors run`` runs, or of its pipe.

A line is the text of an event ``stdin_message``, with an instance of its own, ``cli:<number>``. A line that
is a JSON object may have the fields of an event: ``name``, ``message`` (or ``text``), ``properties`` and
``instanceKey``; others are ignored. Empty lines are, too. At the end of the input the connector is done.

The numbers go on from program to program: the cursor has the next one.
"""

import json
from typing import Any

from goondan_tasks.connector_api import ConnectorContext, Line
from goondan_tasks.errors import ConnectorError


def connect(ctx: ConnectorContext) -> None:
    """Emit lines until there are no more."""
    while (line := ctx.read_line()) is not None:
        if not line.text.strip():
            continue
        number = _number(ctx, line)
        try:
            ctx.emit(event_of(line, number))
        except ConnectorError as error:  # the next line may be better
            if error.code != ConnectorError.code:  # it passes: the line is given again
                raise
            ctx.logger.error("cli.refused", line=number, error=error.message)


def _number(ctx: ConnectorContext, line: Line) -> int:
    """Return the number of a line among those of all programs; the same for a line that is given again."""
    kept = ctx.cursor.get() or {"program": "", "first": 0, "next": 0}
    first = kept["first"] if kept["program"] == line.program else kept["next"] - line.number
    number = first + line.number
    ctx.cursor.set({"program": line.program, "first": first, "next": number + 1})
    return int(number)


def event_of(line: Line, number: int) -> dict[str, Any]:
    """Return the event of a line."""
    given = _object(line.text)
    message = given.get("message", given.get("text", line.text))
    return {
        "id": f"{line.program}:{line.number}",
        "name": given.get("name", "stdin_message"),
        "message": message if isinstance(message, dict) else {"type": "text", "text": message},
        "properties": given.get("properties", {}),
        "instanceKey": given.get("instanceKey", f"cli:{number}"),
    }


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

"""The entry of canonical Connectors of the type ``cli`` that have none: each line is an event."""

from typing import Any


async def on_line(_event: Any, _connection: Any, ctx: Any) -> None:
    """Emit an event; the Connector's rules say where the line goes."""
    await ctx.emit({})

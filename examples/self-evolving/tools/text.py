"""The clerk's tools for a text."""

import asyncio

from goondan_tasks.tool_api import JsonObject, ToolContext

#: the revision of this file with which a call has run
EDITION = 1


async def lines(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Count lines; ``seconds`` is how long that takes, like a slow service."""
    await asyncio.sleep(input.get("seconds", 0))
    return {"lines": len(input["text"].splitlines()), "edition": EDITION}


handlers = {"lines": lines}

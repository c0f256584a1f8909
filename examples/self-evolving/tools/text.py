"""What the clerk can do with a text."""

import asyncio

from goondan_tasks.tool_api import JsonObject, ToolContext

#: which edition of this file a call has run with
EDITION = 1


async def lines(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Count lines; ``seconds`` is how long that takes, like a slow service."""
    await asyncio.sleep(input.get("seconds", 0))
    return {"lines": len(input["text"].splitlines()), "edition": EDITION}


handlers = {"lines": lines}

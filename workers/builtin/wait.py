"""Built-in tool ``wait``: sleeps without occupying a thread."""

import asyncio

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


async def seconds(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Wait for ``seconds``."""
    waited = input["seconds"]
    await asyncio.sleep(waited)
    return {"waitedSeconds": waited, "waitedMs": round(waited * 1000)}


handlers: dict[str, ToolHandler] = {"seconds": seconds}

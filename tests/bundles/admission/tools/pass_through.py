"""Handlers that answer at once; the simulation does not run them."""

from goondan_tasks.tool_api import JsonObject, ToolContext


async def answer(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return input


handlers = dict.fromkeys(("plain", "safe", "solo", "serial", "slow"), answer)

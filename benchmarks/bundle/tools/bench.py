"""The tools that are measured: one that does nothing, one that waits."""

import asyncio

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def noop(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return input


async def sleep(ctx: ToolContext, input: JsonObject) -> JsonObject:
    await asyncio.sleep(input["seconds"])
    return input


handlers: dict[str, ToolHandler] = {"noop": noop, "sleep": sleep}

"""The tools that are measured: one does nothing, one waits on the event loop, three wait in a thread."""

import asyncio
import os
import time

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def noop(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return input


async def sleep(ctx: ToolContext, input: JsonObject) -> JsonObject:
    await asyncio.sleep(input["seconds"])
    return input


def pause(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Wait, and return when that was and in which process: all that is known outside about the run."""
    begun = time.monotonic()
    time.sleep(input["seconds"])
    return {"begun": begun, "ended": time.monotonic(), "worker": os.getpid()}


handlers: dict[str, ToolHandler] = {
    "noop": noop,
    "sleep": sleep,
    "pause-short": pause,
    "pause-medium": pause,
    "pause-long": pause,
}

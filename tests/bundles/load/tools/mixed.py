"""Every other way in which a call can end."""

import asyncio
import time

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def raises(ctx: ToolContext, input: JsonObject) -> None:
    raise ValueError("on purpose")


def big(ctx: ToolContext, input: JsonObject) -> str:
    return "x" * input["size"]


async def slow(ctx: ToolContext, input: JsonObject) -> None:
    await asyncio.sleep(60)


def slow_sync(ctx: ToolContext, input: JsonObject) -> None:
    time.sleep(0.4)


def strict(ctx: ToolContext, input: JsonObject) -> int:
    return int(input["number"])


handlers: dict[str, ToolHandler] = {
    "raises": raises,
    "big": big,
    "slow": slow,
    "slow-sync": slow_sync,
    "strict": strict,
}

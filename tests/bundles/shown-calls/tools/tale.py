"""A call for each way in which one can stand or end."""

import asyncio
import os
import signal
from pathlib import Path

from goondan_tasks.errors import ToolError
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def tell(ctx: ToolContext, input: JsonObject) -> str | None:
    return input.get("text")


def fail(ctx: ToolContext, input: JsonObject) -> None:
    raise ToolError("The tale has no end.", code="E_TALE", suggestion="Tell another one.")


def stumble(ctx: ToolContext, input: JsonObject) -> float:
    return 1 / 0


async def trip(ctx: ToolContext, input: JsonObject) -> float:
    return stumble(ctx, input)


async def alone(ctx: ToolContext, input: JsonObject) -> str:
    while not Path(input["until"]).exists():
        await asyncio.sleep(0.02)
    return "told"


def deadly(ctx: ToolContext, input: JsonObject) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


handlers: dict[str, ToolHandler] = {
    "tell": tell,
    "fail": fail,
    "stumble": stumble,
    "trip": trip,
    "fall": stumble,
    "alone": alone,
    "guarded": tell,
    "deadly": deadly,
}

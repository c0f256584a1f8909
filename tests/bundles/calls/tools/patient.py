"""Wait for a guest, and leave marks: who began, who was cancelled."""

import asyncio
import time
from pathlib import Path

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler

PATIENCE_SECONDS = 60


def leave(input: JsonObject, mark: str) -> None:
    with (Path(input["place"]) / mark).open("a", encoding="ascii") as file:
        file.write("x\n")


def has_guest(input: JsonObject) -> bool:
    return (Path(input["place"]) / "guest").exists()


async def brings(broom: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not Path(broom).exists() and time.monotonic() < end:
        await asyncio.sleep(0.02)


async def waits(ctx: ToolContext, input: JsonObject) -> str:
    leave(input, "began")
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while not has_guest(input) and time.monotonic() < end:
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        if "broom" in input:
            await brings(input["broom"])
        leave(input, "cleaned")
        raise
    return "met"


async def deaf(ctx: ToolContext, input: JsonObject) -> str:
    leave(input, "began")
    while not has_guest(input):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            leave(input, "ignored")
    return "met"


async def blocks(ctx: ToolContext, input: JsonObject) -> str:
    leave(input, "began")
    end = time.monotonic() + PATIENCE_SECONDS
    while not has_guest(input) and time.monotonic() < end:
        time.sleep(0.02)
    return "met"


async def unhurt(ctx: ToolContext, input: JsonObject) -> str:
    try:
        return await waits(ctx, input)
    except asyncio.CancelledError:
        return "a result all the same"


def asks(ctx: ToolContext, input: JsonObject) -> str:
    leave(input, "began")
    end = time.monotonic() + PATIENCE_SECONDS
    while not ctx.cancelled and time.monotonic() < end:
        time.sleep(0.02)
    leave(input, "saw" if ctx.cancelled else "saw nothing")
    return "too late"


def stubborn(ctx: ToolContext, input: JsonObject) -> str:
    leave(input, "began")
    end = time.monotonic() + PATIENCE_SECONDS
    while not has_guest(input) and time.monotonic() < end:
        time.sleep(0.02)
    leave(input, "ended")
    return "too late"


handlers: dict[str, ToolHandler] = {
    "waits": waits,
    "deaf": deaf,
    "blocks": blocks,
    "unhurt": unhurt,
    "asks": asks,
    "stubborn": stubborn,
}

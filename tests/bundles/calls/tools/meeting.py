"""Calls that end only when enough of them run at the same time: marks in a directory tell."""

import asyncio
import os
import time
import uuid
from pathlib import Path

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler

PATIENCE_SECONDS = 60


def arrive(place: str) -> None:
    folder = Path(place)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / uuid.uuid4().hex).write_text(str(os.getpid()), encoding="ascii")


def is_full(input: JsonObject) -> bool:
    return len(list(Path(input["place"]).iterdir())) >= input["guests"]


def sync(ctx: ToolContext, input: JsonObject) -> JsonObject:
    arrive(input["place"])
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_full(input) and time.monotonic() < end:
        time.sleep(0.01)
    return {"pid": os.getpid(), "met": is_full(input)}


async def overlapping(ctx: ToolContext, input: JsonObject) -> JsonObject:
    arrive(input["place"])
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_full(input) and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return {"pid": os.getpid(), "met": is_full(input)}


handlers: dict[str, ToolHandler] = {"sync": sync, "async": overlapping}

"""Misbehave."""

import asyncio
import sys
from typing import Any

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


class ForgeError(Exception):
    """The tool's own exception."""

    code = "E_FORGE"
    suggestion = "Use more coal."
    help_url = "https://forge.example/coal"


def raises(ctx: ToolContext, input: JsonObject) -> Any:
    kinds: dict[str, type[BaseException]] = {
        "forge": ForgeError,
        "value": ValueError,
        "interrupt": KeyboardInterrupt,
        "generator": GeneratorExit,
        "memory": MemoryError,
    }
    raise kinds[input["kind"]](input.get("message", ""))


def not_json(ctx: ToolContext, input: JsonObject) -> Any:
    return {1, 2}


def exits(ctx: ToolContext, input: JsonObject) -> Any:
    sys.exit(input.get("status", 3))


async def exits_in_a_task(ctx: ToolContext, input: JsonObject) -> Any:
    async def leave() -> None:
        sys.exit(3)

    await asyncio.gather(leave())


def prints(ctx: ToolContext, input: JsonObject) -> Any:
    for number in range(100_000):
        print("line", number)
    return "printed"


handlers: dict[str, ToolHandler] = {
    "raises": raises,
    "not-json": not_json,
    "exits": exits,
    "exits-in-a-task": exits_in_a_task,
    "prints": prints,
}

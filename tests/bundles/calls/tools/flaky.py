"""Fail so many times; a line in a file counts every run."""

import asyncio
from pathlib import Path

from goondan_tasks.errors import ToolError
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def count(input: JsonObject) -> int:
    path = Path(input["place"]) / "runs"
    with path.open("a", encoding="ascii") as file:
        file.write("run\n")
    return len(path.read_text().splitlines())


def fails(ctx: ToolContext, input: JsonObject) -> int:
    run = count(input)
    if run <= input["times"]:
        raise ToolError(f"Run {run} fails.", code=input.get("code", "E_FLAKY"))
    return run


async def slow(ctx: ToolContext, input: JsonObject) -> int:
    run = count(input)
    await asyncio.sleep(input["seconds"])
    raise ToolError(f"Run {run} fails.", code="E_FLAKY")


handlers: dict[str, ToolHandler] = {"fails": fails, "any": fails, "later": fails, "slow": slow}

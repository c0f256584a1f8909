"""Work that leaves a line when it starts and a line when it ends, in a file outside Redis."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from goondan_tasks.errors import ToolError
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def leave_line(input: JsonObject, event: str) -> None:
    """Append ``event number pid time``: one write, so lines of many processes never mix."""
    line = f"{event} {input['number']} {os.getpid()} {time.time():.6f}\n"
    file = os.open(input["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line.encode())
    os.close(file)


@contextmanager
def lines(input: JsonObject) -> Iterator[JsonObject]:
    """Leave both lines; yield what is to be returned."""
    leave_line(input, "start")
    yield {"number": input["number"], "pid": os.getpid()}
    leave_line(input, "end")


def sync(ctx: ToolContext, input: JsonObject) -> JsonObject:
    with lines(input) as output:
        time.sleep(input["seconds"])
    return output


def busy(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Keep the interpreter busy instead of sleeping."""
    with lines(input) as output:
        end = time.monotonic() + input["seconds"]
        while time.monotonic() < end:
            sum(range(1_000))
    return output


def held(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Last until the file ``gate`` is there."""
    with lines(input) as output:
        while not os.path.exists(input["gate"]):
            time.sleep(0.01)
    return output


def flaky(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Fail until it has ended ``fails`` times before."""
    with open(input["log"]) as log:
        ended = sum(line.startswith(f"end {input['number']} ") for line in log)
    with lines(input) as output:
        time.sleep(input["seconds"])
    if ended < input["fails"]:
        raise ToolError(f"Run {ended + 1} fails.", code="E_FLAKY")
    return output


async def on_the_loop(ctx: ToolContext, input: JsonObject) -> JsonObject:
    with lines(input) as output:
        await asyncio.sleep(input["seconds"])
    return output


handlers: dict[str, ToolHandler] = {
    "sync": sync,
    "busy": busy,
    "held": held,
    "limited": sync,
    "flaky": flaky,
    "async": on_the_loop,
}

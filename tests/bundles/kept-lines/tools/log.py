"""A tool that logs and then ends in every way."""

import asyncio
import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

from goondan_tasks.tool_api import ToolContext


def say(ctx: ToolContext) -> None:
    """Log by the context and by ``logging``; each line names the call's own id."""
    ctx.logger.info("said.by-context", said=ctx.tool_call_id, apiKey="sk-never-shown", bell="\x1b[2J\u202e")
    logging.getLogger("logbook").warning("said by logging: %s", ctx.tool_call_id)


def plain(ctx: ToolContext, args: Any) -> None:
    say(ctx)
    raise LookupError("no wind")


async def later(ctx: ToolContext, args: Any) -> None:
    await asyncio.sleep(0)
    plain(ctx, args)


def threads(ctx: ToolContext, args: Any) -> None:
    ctx.logger.info("said.before", said=ctx.tool_call_id)
    thread = threading.Thread(target=ctx.logger.info, args=["said.by-context"], kwargs={"on": "a thread"})
    thread.start()
    thread.join()
    raise LookupError("no wind")


def waits(ctx: ToolContext, args: Any) -> None:
    say(ctx)
    threading.Event().wait(3)


async def sleeps(ctx: ToolContext, args: Any) -> None:
    say(ctx)
    await asyncio.Event().wait()


async def lasts(ctx: ToolContext, args: Any) -> None:
    say(ctx)
    Path(args["began"]).touch()
    await asyncio.Event().wait()


def chats(ctx: ToolContext, args: Any) -> None:
    for number in range(args["lines"]):
        ctx.logger.info(f"line {number}", text="x" * args["size"])
    raise LookupError("no wind")


def well(ctx: ToolContext, args: Any) -> str:
    say(ctx)
    return "said"


def silent(ctx: ToolContext, args: Any) -> None:
    raise LookupError("no wind")


async def forgets(ctx: ToolContext, args: Any) -> None:
    assert ctx.runtime is not None
    ctx.runtime.send("captain", "sail")
    raise LookupError("no wind")


def dies(ctx: ToolContext, args: Any) -> None:
    say(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


def again(ctx: ToolContext, args: Any) -> None:
    count = ctx.workdir / f"runs-{ctx.tool_call_id}"
    with count.open("a") as file:
        file.write("x")
    ctx.logger.info("said.by-context", run=count.stat().st_size)
    raise ConnectionError("no wind")


handlers = {
    "plain": plain,
    "later": later,
    "limited": plain,
    "threads": threads,
    "waits": waits,
    "sleeps": sleeps,
    "lasts": lasts,
    "chats": chats,
    "well": well,
    "silent": silent,
    "forgets": forgets,
    "dies": dies,
    "again": again,
}

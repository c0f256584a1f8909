"""A tool that logs in every way that there is."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import structlog

from goondan_tasks.tool_api import ToolContext


def say(ctx: ToolContext) -> None:
    """Log by the context, ``logging`` and structlog; each line names the call's own id."""
    said = ctx.tool_call_id
    ctx.logger.info("said.by-context", said=said)
    logging.getLogger("parlour").warning("said.by-%s said=%s", "logging", said)
    structlog.get_logger("parlour").info("said.by-structlog", said=said, level=2)
    try:
        raise LookupError("not heard")
    except LookupError:
        logging.getLogger("parlour").exception("said.with-traceback said=%s", said)


def plainly(ctx: ToolContext, args: Any) -> str:
    say(ctx)
    return "said"


async def later(ctx: ToolContext, args: Any) -> str:
    await asyncio.sleep(0)
    say(ctx)
    await asyncio.to_thread(say, ctx)
    return "said"


def twice(ctx: ToolContext, args: Any) -> str:
    say(ctx)
    mark = ctx.workdir / f"said-{ctx.tool_call_id}"
    if mark.exists():
        return "said"
    mark.touch()
    raise ConnectionError("say it again")


async def alone(ctx: ToolContext, args: Any) -> str:
    while not Path(args["until"]).exists():
        await asyncio.sleep(0.02)
    return "waited"


handlers = {"alone": alone, "plainly": plainly, "later": later, "twice": twice}

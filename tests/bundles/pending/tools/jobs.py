"""Work that is begun here and ends elsewhere."""

import os
import time
from pathlib import Path

from goondan_tasks.tool_api import JsonObject, Pending, ToolContext, ToolHandler


def begin(ctx: ToolContext, input: JsonObject) -> Pending:
    url = ctx.callback_url if input.get("callback") else None
    output = {"pid": os.getpid(), "callback": url}
    return ctx.pending(input.get("handle", "job-1"), output, ttl_seconds=input.get("ttl"))


async def begin_async(ctx: ToolContext, input: JsonObject) -> Pending:
    return begin(ctx, input)


def linger(ctx: ToolContext, input: JsonObject) -> object:
    """Tell where the job can be completed, if asked for, and go on when the file ``until`` is there."""
    ctx.progress(1, 2, "lingers")
    if "told" in input:
        told = Path(input["told"])
        told.with_suffix(".new").write_text(ctx.callback_url)
        told.with_suffix(".new").replace(told)
    while not Path(input["until"]).exists():
        time.sleep(0.01)
    return "done here" if input.get("ends") else ctx.pending("job-1")


handlers: dict[str, ToolHandler] = {
    "begin": begin,
    "begin-async": begin_async,
    "begin-apart": begin,
    "begin-alone": begin,
    "linger": linger,
}

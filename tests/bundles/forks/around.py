"""A middleware that forks if the call asks for it."""

import os
from typing import Any


async def register(api: Any) -> None:
    api.pipeline.register("toolCall", around)


def around(ctx: Any) -> Any:
    if ctx.args.get("leave") == "middleware":
        pid = os.fork()
        if pid == 0:
            return None
        return {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}
    return ctx.next()

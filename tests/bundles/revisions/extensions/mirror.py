"""Has one of everything: a middleware, a tool, listeners, a task of its own, and something large."""

import asyncio
from typing import Any

from .words import WORD

#: what would be missed if revisions were kept
BALLAST = bytearray(b"x" * 300_000)


async def register(api: Any) -> None:
    async def middleware(ctx: Any) -> Any:
        ctx.metadata["word"] = WORD
        return await ctx.next()

    async def look(ctx: Any, input: Any) -> str:
        return WORD

    async def breathe() -> None:
        while True:
            await asyncio.sleep(3600)

    async def tidy_up(event: Any) -> None:
        breath.cancel()

    breath = asyncio.get_running_loop().create_task(breathe())
    api.pipeline.register("toolCall", middleware)
    api.pipeline.register("step", middleware)
    api.tools.register({"name": "mirror__look"}, look)
    api.events.on("tool.called", lambda event: BALLAST)
    api.events.on("extension.unloading", tidy_up)

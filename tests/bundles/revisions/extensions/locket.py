"""Stands in the pipelines of the older version, and has a tool of it."""

from typing import Any

from .words import WORD


def register(api: Any) -> None:
    async def look(ctx: Any, input: Any) -> str:
        return WORD

    async def around(ctx: Any, next: Any) -> Any:
        return await next(ctx)

    for point in ("toolCall.pre", "toolCall.post", "step.tools"):
        api.pipelines.mutate(point, lambda ctx: ctx)
    api.pipelines.wrap("toolCall.exec", around)
    api.tools.register({"name": "locket.look", "description": "Tells the word.", "handler": look})
    api.events.on("tool.called", lambda event: WORD)

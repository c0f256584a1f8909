"""Three middlewares that wait for what is inside of them, as one that logs does."""

from typing import Any

from goondan_tasks.extension_api import ExtensionApi, ToolCallContext


def register(api: ExtensionApi) -> None:
    async def counted(ctx: ToolCallContext) -> Any:
        ctx.metadata["layers"] = ctx.metadata.get("layers", 0) + 1
        return await ctx.next()

    for _ in range(3):
        api.pipeline.register("toolCall", counted)

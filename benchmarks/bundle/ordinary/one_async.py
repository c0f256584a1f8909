"""One async middleware, which only goes on."""

from typing import Any

from goondan_tasks.extension_api import ExtensionApi, ToolCallContext


def register(api: ExtensionApi) -> None:
    async def layer(ctx: ToolCallContext) -> Any:
        return await ctx.next()

    api.pipeline.register("toolCall", layer)

"""A middleware around each call that changes nothing."""

from goondan_tasks.extension_api import ExtensionApi, ToolCallContext
from goondan_tasks.messages import ToolCallResult


def register(api: ExtensionApi) -> None:
    async def around(ctx: ToolCallContext) -> ToolCallResult:
        result: ToolCallResult = await ctx.next()
        return result

    api.pipeline.register("toolCall", around)

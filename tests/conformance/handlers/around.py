"""A middleware around each call that changes nothing, but notes that it begins."""

from goondan_tasks.authoring.extension_api import ExtensionApi, ToolCallContext
from goondan_tasks.contract.messages import ToolCallResult

from .work import note  # noqa: TID252 - a file of the same bundle


def register(api: ExtensionApi) -> None:
    async def around(ctx: ToolCallContext) -> ToolCallResult:
        note({**ctx.args, "cell": f"around-{ctx.args['cell']}"})
        result: ToolCallResult = await ctx.next()
        return result

    api.pipeline.register("toolCall", around)

"""One async middleware around each Step, which only goes on."""

from typing import Any

from goondan_tasks.extension_api import ExtensionApi, StepContext


def register(api: ExtensionApi) -> None:
    async def layer(ctx: StepContext) -> Any:
        return await ctx.next()

    api.pipeline.register("step", layer)

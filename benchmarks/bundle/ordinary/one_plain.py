"""One plain middleware, which only goes on."""

from typing import Any

from goondan_tasks.extension_api import ExtensionApi, ToolCallContext


def register(api: ExtensionApi) -> None:
    def layer(ctx: ToolCallContext) -> Any:
        return ctx.next()

    api.pipeline.register("toolCall", layer)

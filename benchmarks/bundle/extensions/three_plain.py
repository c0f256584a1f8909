"""Three plain middlewares, which look at a call before it is made."""

from typing import Any

from goondan_tasks.extension_api import ExtensionApi, ToolCallContext


def register(api: ExtensionApi) -> None:
    def counted(ctx: ToolCallContext) -> Any:
        ctx.metadata["layers"] = ctx.metadata.get("layers", 0) + 1
        return ctx.next()

    for _ in range(3):
        api.pipeline.register("toolCall", counted)

"""A plain middleware around each call that changes nothing, but notes that it begins."""

from typing import Any

from goondan_tasks.authoring.extension_api import ExtensionApi, ToolCallContext

from .work import note  # noqa: TID252 - a file of the same bundle


def register(api: ExtensionApi) -> None:
    def layer(ctx: ToolCallContext) -> Any:
        note({**ctx.args, "cell": f"around-{ctx.args['cell']}"})
        return ctx.next()

    api.pipeline.register("toolCall", layer)

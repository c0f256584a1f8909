"""The same in plain code, which cannot do anything after next()."""

from typing import Any

from goondan_tasks.extension_api import ExtensionApi, StepContext, TurnContext


def register(api: ExtensionApi) -> None:
    def menu(ctx: StepContext) -> Any:
        hidden = (ctx.message or {}).get("hide", ())
        ctx.tool_catalog = [item for item in ctx.tool_catalog if item.name not in hidden]
        ctx.blocks.append({"type": "custom.count", "data": len(ctx.tool_catalog)})
        return ctx.next()

    def turn(ctx: TurnContext) -> Any:
        ctx.metadata["seen"] = True
        return ctx.next()

    api.pipeline.register("step", menu)
    api.pipeline.register("turn", turn)

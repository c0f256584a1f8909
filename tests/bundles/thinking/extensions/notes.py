"""Tells the model a block, and lets it have a new tool once it has learned it."""

from typing import Any

from goondan_tasks.extension_api import ExtensionApi, StepContext, StepResult, ToolCallContext, TurnContext


def register(api: ExtensionApi) -> None:
    async def told(ctx: StepContext) -> StepResult:
        ctx.blocks.append({"type": "note", "data": f"step {ctx.step_index}"})
        return await ctx.next()

    async def kept(ctx: TurnContext) -> Any:
        answer = await ctx.next()
        data = {"role": "user", "content": f"Note: you said {answer}."}
        source = {"type": "extension", "extensionName": "notes"}
        message = {"id": f"note-{ctx.turn_id}", "data": data, "createdAt": "", "source": source}
        if ctx.event.input == "note it":
            ctx.emit_message_event({"type": "append", "message": message})
        return answer

    async def learned(ctx: ToolCallContext) -> Any:
        result = await ctx.next()
        if ctx.tool_name == "desk__learn":
            item = {"name": "trick__do", "description": "Do a trick.", "parameters": {"type": "object"}}
            api.tools.register(item, lambda _ctx, _input: "a trick")
        return result

    async def seen(ctx: ToolCallContext) -> Any:
        result = await ctx.next()
        if ctx.tool_name != "desk__message" or ctx.message is None:
            return result
        return {"handler": result.output, "middleware": ctx.message.data}

    api.pipeline.register("turn", kept)
    api.pipeline.register("step", told)
    api.pipeline.register("toolCall", learned)
    api.pipeline.register("toolCall", seen)

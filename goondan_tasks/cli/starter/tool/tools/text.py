from goondan_tasks.tool_api import JsonObject, ToolContext, tool


@tool
async def uppercase(ctx: ToolContext, text: str) -> JsonObject:
    """Converts text to upper case."""
    ctx.logger.info("converting", characters=len(text))
    return {"result": text.upper()}

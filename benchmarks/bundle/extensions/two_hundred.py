"""Two hundred tools as an MCP server might have them, and a step middleware."""

from goondan_tasks.extension_api import ExtensionApi, StepContext, StepResult
from goondan_tasks.tool_api import JsonObject, ToolContext

PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Where to look, relative to the repository"},
        "limit": {"type": "integer", "minimum": 1, "description": "How many to return"},
    },
    "required": ["path"],
    "additionalProperties": False,
}


def use(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Return the input."""
    return input


async def look(ctx: StepContext) -> StepResult:
    """Tell the model how many tools there are."""
    ctx.blocks.append({"type": "custom.count", "data": len(ctx.tool_catalog)})
    return await ctx.next()


def register(api: ExtensionApi) -> None:
    """Register them."""
    for number in range(200):
        item = {
            "name": f"server-{number % 10}__tool-{number}",
            "description": f"Tool {number}: what it does takes a sentence or two to say, as it always does.",
            "parameters": PARAMETERS,
        }
        api.tools.register(item, use)
    api.pipeline.register("step", look)

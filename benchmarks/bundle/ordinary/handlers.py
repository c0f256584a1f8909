"""What ordinary tools do, one thing each: log a line, report progress, await, fail."""

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def noop(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return input


def logs(ctx: ToolContext, input: JsonObject) -> JsonObject:
    ctx.logger.info("adds", a=input["a"])
    return input


def reports(ctx: ToolContext, input: JsonObject) -> JsonObject:
    ctx.progress(1, 2)
    return input


async def awaits(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return input


def fails(ctx: ToolContext, input: JsonObject) -> JsonObject:
    raise ValueError("no")


handlers: dict[str, ToolHandler] = {
    "noop": noop,
    "logs": logs,
    "reports": reports,
    "awaits": awaits,
    "fails": fails,
    **dict.fromkeys(("retries", "at-once", "rated", "keyed", "in-turn"), noop),
}

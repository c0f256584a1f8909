"""Return what came."""

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def args(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return input


def context(ctx: ToolContext, input: JsonObject) -> JsonObject:
    ctx.logger.info("context.shown", n=1)
    return {
        "agentName": ctx.agent_name,
        "instanceKey": ctx.instance_key,
        "turnId": ctx.turn_id,
        "traceId": ctx.trace_id,
        "toolCallId": ctx.tool_call_id,
        "workdir": str(ctx.workdir),
        "message": ctx.message.to_wire(),
        "cancelled": ctx.cancelled,
        "members": [name for name in dir(ctx) if not name.startswith("_")],
    }


handlers: dict[str, ToolHandler] = {"args": args, "context": context, "strict": args}

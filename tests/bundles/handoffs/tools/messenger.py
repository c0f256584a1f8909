"""Tools that reach other agents."""

from typing import Any

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


def ask(ctx: ToolContext, input: JsonObject) -> Any:
    return ctx.runtime.request(input["of"], input["event"], input.get("options")).to_wire()


async def ask_on_the_loop(ctx: ToolContext, input: JsonObject) -> Any:
    return (await ctx.runtime.request(input["of"], input["event"], input.get("options"))).to_wire()


def say(ctx: ToolContext, input: JsonObject) -> Any:
    return {"said": input, "agent": ctx.agent_name, "instance": ctx.instance_key, "turnId": ctx.turn_id}


handlers: dict[str, ToolHandler] = {"ask": ask, "ask-again": ask, "ask-async": ask_on_the_loop, "say": say}

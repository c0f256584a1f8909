"""An agent with code of its own, which lets the model think twice."""

from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent


async def handle(ctx: AgentContext, event: AgentEvent) -> Any:
    first = await ctx.think([{"role": "user", "content": f"Write about {event.input}."}])
    said = [
        {"role": "user", "content": "yes"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "yes"},
    ]
    second = await ctx.think(said)
    return {"first": first, "second": second, "alone": await ctx.think(), "prompt": ctx.prompt, "model": ctx.model}

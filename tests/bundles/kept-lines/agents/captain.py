"""Logs, calls a tool in a Step that logs and fails, and fails itself."""

from goondan_tasks.agent_api import AgentContext, AgentEvent


async def handle(ctx: AgentContext, event: AgentEvent) -> None:
    ctx.logger.info("captain.begins", turn=ctx.turn_id)
    if event.input == "forget":
        ctx.call("log__well")
    async with ctx.step({"role": "user"}) as step:
        if event.input == "forget":
            step.run([])
        await step.run([{"id": "c1", "name": "log__plain", "args": {}}])
    raise LookupError("no harbour")

from goondan_tasks.agent_api import AgentContext, AgentEvent, JsonObject


async def handle(ctx: AgentContext, event: AgentEvent) -> JsonObject:
    loud = await ctx.call("text__uppercase", {"text": event.input})
    count = await ctx.runtime.request("counter", {"input": loud.output["result"]})
    return {"text": loud.output["result"], "words": count.response}

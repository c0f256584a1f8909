"""The planner: splits a task into steps, has the coder do them, and says what came of it."""

from goondan_tasks.agent_api import AgentContext, AgentEvent, HandoffError, JsonObject


async def handle(ctx: AgentContext, event: AgentEvent) -> JsonObject:
    """Deal with the task in ``event.input``, a text."""
    plan = await ctx.call("plan__outline", {"task": event.input, "format": "markdown"})
    if plan.error is not None:
        raise HandoffError(plan.error.message, code=plan.error.code, suggestion=plan.error.suggestion)
    # Here a model would decide whom to ask for what; this planner gives every step to the coder.
    answer = await ctx.runtime.request("coder", {"input": plan.output["markdown"]}, timeout_ms=120_000)
    work = answer.response
    return {
        "summary": f"{work['module']} is written: {work['tests']} tests pass, "
        f"and the reviewer had nothing left to say in round {work['rounds']}.",
        "steps": len(plan.output["steps"]),
        **work,
    }

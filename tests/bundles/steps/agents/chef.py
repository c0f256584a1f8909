"""Carries out, Step by Step, what the event says that a model would ask for; ``async``."""

from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent


async def handle(ctx: AgentContext, event: AgentEvent) -> dict[str, Any]:
    plan: dict[str, Any] = event.input
    common = {name: plan[name] for name in ("diary", "hide") if name in plan}
    told: list[Any] = []
    for calls in plan["steps"]:
        async with ctx.step({**common, **calls.get("message", {})}) as step:
            results = await step.run(calls.get("calls", []), delay=calls.get("delay"))
            told.append(
                {
                    "index": step.index,
                    "tools": list(step.catalog.names),
                    "blocks": list(step.blocks),
                    "messages": [result.message for result in results],
                }
            )
            if "raise" in calls:
                raise {"LookupError": LookupError, "ValueError": ValueError}[calls["raise"]]("the soup")
        told[-1]["continue"] = step.should_continue
        told[-1]["metadata"] = step.result.metadata
        if plan.get("obeys") and not step.should_continue:
            break
    return {"steps": told}

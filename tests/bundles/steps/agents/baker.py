"""The same in plain code."""

from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent


def handle(ctx: AgentContext, event: AgentEvent) -> dict[str, Any]:
    told: list[Any] = []
    for wish in event.input["steps"]:
        with ctx.step(wish.get("message")) as step:
            results = step.run(wish.get("calls", []), delay=wish.get("delay"))
            told.append(
                {
                    "index": step.index,
                    "tools": list(step.catalog.names),
                    "blocks": list(step.blocks),
                    "messages": [result.message for result in results],
                }
            )
    return {"steps": told}

"""An agent that answers with what it was asked."""

from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent


async def handle(ctx: AgentContext, event: AgentEvent) -> Any:
    return event.input

"""The agent: its answer goes back into the chat from which the message came (`reply` of the Connection)."""

from goondan_tasks.agent_api import AgentContext, AgentEvent


def handle(ctx: AgentContext, event: AgentEvent) -> str:
    """Say the same again."""
    return f"You said: {event.input}"

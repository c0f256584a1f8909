from goondan_tasks.agent_api import AgentContext, AgentEvent


def handle(ctx: AgentContext, event: AgentEvent) -> int:
    return len(event.input.split())

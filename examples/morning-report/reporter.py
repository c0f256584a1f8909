"""The agent that writes the report: a line about its working directory for each slot."""

from typing import Any

from goondan_tasks.agent_api import AgentContext
from goondan_tasks.messages import AgentEvent


async def handle(ctx: AgentContext, event: AgentEvent) -> Any:
    """Handle one slot of the schedule."""
    listed = await ctx.call("bash__exec", {"command": "ls | wc -l"})
    line = f"{event.input['day']}: {listed.output['stdout'].strip()} files"
    await ctx.call("bash__exec", {"command": f"echo '{line}' >> report.md"})
    return {"line": line}

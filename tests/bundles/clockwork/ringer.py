"""An agent that writes a line for each slot of a schedule."""

from pathlib import Path
from typing import Any

from goondan_tasks.agent_api import AgentContext
from goondan_tasks.messages import AgentEvent


def handle(ctx: AgentContext, event: AgentEvent) -> Any:
    """Note the slot of the event."""
    if isinstance(event.input, dict) and "file" in event.input:
        with Path(event.input["file"]).open("a", encoding="utf-8") as file:
            file.write(f"{event.metadata['schedule']} {event.metadata['slot']}\n")
    return {"source": event.source.kind, "type": event.type, "missed": event.metadata.get("missed", 0)}

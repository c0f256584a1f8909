"""What a Turn and its Steps need of their client."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.calls import Draft, draft_call
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.messages import JsonObject
from goondan_tasks.steps import StepStore, TurnCalls


@dataclass(frozen=True, slots=True)
class TurnActions:
    """What a client lets its Turns do."""

    submit: Callable[[list[Draft]], list[PendingCall]]
    store: StepStore
    broker_errors: Callable[[], AbstractContextManager[None]]
    max_args_bytes: int
    help_url: str


@dataclass(frozen=True, slots=True)
class TurnDesk:
    """One Turn: what all of its calls have in common, and how they are submitted."""

    actions: TurnActions = field(repr=False)
    agent: str
    instance_key: str
    turn_id: str
    trace_id: str
    correlation_id: str
    auth: JsonObject | None = field(default=None, repr=False)
    origin: JsonObject | None = None
    calls: TurnCalls = field(default_factory=TurnCalls, repr=False)

    def draft(self, tool: str, args: Any, tool_call_id: str, **more: Any) -> Draft:
        """Make a call of the Turn."""
        wire = {
            "agentName": self.agent,
            "instanceKey": self.instance_key,
            "turnId": self.turn_id,
            "traceId": self.trace_id,
            "correlationId": self.correlation_id,
            "auth": self.auth,
            "origin": self.origin,
            "toolName": tool,
            "args": args,
            "toolCallId": tool_call_id,
        }
        return draft_call({**wire, **more})

"""The producer's side: submit tool calls, wait for their results, look inside.

::

    from goondan_tasks.client import Client

    client = Client.connect()
    call = client.submit("coder", "bash__exec", {"command": "ls"}, instance_key="issue-42")
    result = call.result(timeout=30)
"""

from goondan_tasks.client.async_client import AsyncClient
from goondan_tasks.client.client import Client
from goondan_tasks.client.pending_call import AsyncPendingCall, CallOutput, OutputPart, PendingCall
from goondan_tasks.client.reading import FollowedEvent
from goondan_tasks.client.turn_events import (
    AnswerRestarted,
    ReasoningDelta,
    TextDelta,
    TokensUsed,
    ToolAnswered,
    ToolCalled,
    ToolEmitted,
    ToolRestarted,
    TurnAccepted,
    TurnEnded,
    TurnEvent,
    TurnProgress,
)
from goondan_tasks.client.turns import AsyncStep, AsyncTurn, Step, Turn
from goondan_tasks.contract.model_messages import StepCallResult
from goondan_tasks.fleet.audit import AuditEntry, acting_as

__all__ = [
    "AnswerRestarted",
    "AsyncClient",
    "AsyncPendingCall",
    "AsyncStep",
    "AsyncTurn",
    "AuditEntry",
    "CallOutput",
    "Client",
    "FollowedEvent",
    "OutputPart",
    "PendingCall",
    "ReasoningDelta",
    "Step",
    "StepCallResult",
    "TextDelta",
    "TokensUsed",
    "ToolAnswered",
    "ToolCalled",
    "ToolEmitted",
    "ToolRestarted",
    "Turn",
    "TurnAccepted",
    "TurnEnded",
    "TurnEvent",
    "TurnProgress",
    "acting_as",
]

"""Events of runs for tests of the mappers."""

from collections.abc import Iterable
from typing import Any

from goondan_tasks.authoring.tool_api import RequestResult
from goondan_tasks.client.turn_events import (
    AnswerRestarted,
    ReasoningDelta,
    TextDelta,
    ToolAnswered,
    ToolCalled,
    ToolEmitted,
    ToolRestarted,
    TurnEnded,
    TurnEvent,
    TurnProgress,
)
from goondan_tasks.contract.messages import JsonObject, ToolCallError
from goondan_tasks.contract.output import Progress
from goondan_web.doors.front_ends.runs import HeldCall, RunEvent, RunOver
from goondan_web.doors.front_ends.streams import Mapper

TURN = "t-1"
BROKEN = ToolCallError(name="ToolError", code="E_TOOL", message="The disk is full.")
CANCELLED = ToolCallError(name="ToolCancelledError", code="E_TOOL_CANCELLED", message="Cancelled.")
DENIED = ToolCallError(name="ApprovalDeniedError", code="E_APPROVAL_DENIED", message="No.")
HELD = HeldCall("c-1", "disk__wipe", {"disk": "sda"})
_OUTPUT: dict[str, Any] = {"tool_call_id": "call_1", "call_id": "c-1", "tool": "disk__wipe"}
EMITTED = (
    ToolEmitted(**_OUTPUT, attempt=1, chunk="wiping"),
    ToolRestarted(**_OUTPUT, attempt=2),
    ToolEmitted(**_OUTPUT, attempt=2, chunk={"sectors": 5}),
    ToolEmitted(**_OUTPUT, attempt=2, seq=1, truncated=True),
)
#: what front ends are told of it, in order
OUTPUT: list[JsonObject] = [
    {"toolCallId": "c-1", "tool": "disk__wipe", "attempt": 1, "chunk": "wiping"},
    {"toolCallId": "c-1", "tool": "disk__wipe", "attempt": 2},
    {"toolCallId": "c-1", "tool": "disk__wipe", "attempt": 2, "chunk": {"sectors": 5}},
    {"toolCallId": "c-1", "tool": "disk__wipe", "attempt": 2, "truncated": True},
]
CALLED = ToolCalled(step=0, id="call_1", call_id="c-1", tool="disk__wipe", args={"disk": "sda"})


def text(characters: str, step: int = 0, answer: str = "a") -> TextDelta:
    return TextDelta(step=step, text=characters, answer_id=answer)


def thought(characters: str, step: int = 0) -> ReasoningDelta:
    return ReasoningDelta(step=step, text=characters, answer_id="a")


def restarted(answer: str = "b") -> AnswerRestarted:
    return AnswerRestarted(step=0, answer_id=answer)


def answered(status: Any = "ok", **fields: Any) -> ToolAnswered:
    return ToolAnswered(step=0, id="call_1", call_id="c-1", tool="disk__wipe", status=status, **fields)


def ended(response: Any = None, error: ToolCallError | None = None) -> TurnEnded:
    result = RequestResult(id=TURN, event_id="r-1", target="clerk", response=response, correlation_id="k")
    return TurnEnded(result=result, error=error)


def progressed(message: str) -> TurnProgress:
    return TurnProgress(progress=Progress(done=1, message=message, updated_at="2026-01-01T00:00:00Z"))


def mapped(mapper: Mapper, *events: TurnEvent | RunOver) -> list[JsonObject]:
    """Return all that a mapper makes of a run, the beginning included."""
    return [mapper.begun(), *later(mapper, events)]


def later(mapper: Mapper, events: Iterable[TurnEvent | RunOver]) -> list[JsonObject]:
    return [made for event in events for made in mapper.mapped(RunEvent(event, TURN))]


def shown(events: Iterable[JsonObject], *names: str) -> list[tuple[Any, ...]]:
    """Return the type of each event, and the fields with these names that it has."""
    return [(event["type"], *(event[name] for name in names if name in event)) for event in events]

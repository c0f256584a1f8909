"""Events of runs as those of AG-UI 1.0 (https://docs.ag-ui.com/spec/1.0)."""

from collections.abc import Iterator

from goondan_tasks.client.turn_events import (
    ReasoningDelta,
    TextDelta,
    ToolAnswered,
    ToolCalled,
    ToolEmitted,
    ToolRestarted,
    TurnProgress,
)
from goondan_tasks.contract.errors import ToolCancelledError
from goondan_tasks.contract.messages import JsonObject, ToolCallError
from goondan_web.doors.front_ends.pieces import Piece, Pieces, as_text, output_of
from goondan_web.doors.front_ends.runs import HeldCall, RunEvent, RunOver

PROTOCOL_VERSION = "1.0"
#: what the payload of a resume entry says about an approval
DECISION_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "editedArgs": {"type": "object", "description": "Replaces all arguments of the call."},
    },
    "required": ["approved"],
}


class AgUiEvents:
    """Maps one run.

    AG-UI has no event that takes a message back. When the model is asked again, the messages of the void
    answer end, each followed by a CUSTOM event ``goondan.void``, and the new answer is a new message.
    """

    def __init__(self, thread_id: str, run_id: str) -> None:
        self._ids = {"threadId": thread_id, "runId": run_id}
        self._pieces = Pieces()
        self._step: str | None = None

    def begun(self) -> JsonObject:
        """Return the first event."""
        return {"type": "RUN_STARTED", **self._ids, "protocolVersion": PROTOCOL_VERSION}

    def failed(self, error: ToolCallError) -> JsonObject:
        """Return the last event of a run that has failed, or cannot be followed any more."""
        return {"type": "RUN_ERROR", "message": error.message, "code": error.code}

    def mapped(self, one: RunEvent) -> Iterator[JsonObject]:
        """Yield the events for an event of the run."""
        event = one.event
        if isinstance(event, TextDelta | ReasoningDelta | ToolCalled):
            yield from self._in_step(f"{one.turn_id}/{event.step}")
        for piece in self._pieces.taken(one):
            yield from _message(piece)
        if isinstance(event, ToolCalled):
            yield from _called(event)
        elif isinstance(event, ToolAnswered):
            yield from _answered(event)
        elif isinstance(event, ToolEmitted | ToolRestarted):
            yield {"type": "CUSTOM", "name": f"goondan.{event.type}", "value": output_of(event)}
        elif isinstance(event, TurnProgress):
            yield {"type": "CUSTOM", "name": "goondan.progress", "value": event.progress.to_wire()}
        elif isinstance(event, RunOver):
            yield from self._in_step(None)
            yield self._over(event)

    def _in_step(self, step: str | None) -> Iterator[JsonObject]:
        if step == self._step:
            return
        for piece in self._pieces.closed():
            yield from _message(piece)
        if self._step is not None:
            yield {"type": "STEP_FINISHED", "stepName": self._step}
        if step is not None:
            yield {"type": "STEP_STARTED", "stepName": step}
        self._step = step

    def _over(self, over: RunOver) -> JsonObject:
        finished: JsonObject = {"type": "RUN_FINISHED", **self._ids}
        if over.held:
            interrupts = [_interrupt(call) for call in over.held]
            return {**finished, "outcome": {"type": "interrupt", "interrupts": interrupts}}
        if over.error is not None and over.error.code == ToolCancelledError.code:
            return {**finished, "outcome": {"type": "cancelled"}}
        if over.error is not None:
            return self.failed(over.error)
        return {**finished, "outcome": {"type": "success"}, "result": over.response}


def _message(piece: Piece) -> Iterator[JsonObject]:
    name = {"messageId": piece.id}
    if piece.moment == "void":
        yield {"type": "CUSTOM", "name": "goondan.void", "value": name}
    elif piece.kind == "text":
        if piece.moment == "start":
            yield {"type": "TEXT_MESSAGE_START", **name, "role": "assistant"}
        elif piece.moment == "text":
            yield {"type": "TEXT_MESSAGE_CONTENT", **name, "delta": piece.text}
        else:
            yield {"type": "TEXT_MESSAGE_END", **name}
    elif piece.moment == "start":
        yield {"type": "REASONING_START", **name}
        yield {"type": "REASONING_MESSAGE_START", **name, "role": "reasoning"}
    elif piece.moment == "text":
        yield {"type": "REASONING_MESSAGE_CONTENT", **name, "delta": piece.text}
    else:
        yield {"type": "REASONING_MESSAGE_END", **name}
        yield {"type": "REASONING_END", **name}


def _called(event: ToolCalled) -> Iterator[JsonObject]:
    """Yield a call; its id is that of the ledger, since models use theirs again."""
    call = {"toolCallId": event.call_id}
    yield {"type": "TOOL_CALL_START", **call, "toolCallName": event.tool}
    yield {"type": "TOOL_CALL_ARGS", **call, "delta": as_text({} if event.args is None else event.args)}
    yield {"type": "TOOL_CALL_END", **call}


def _answered(event: ToolAnswered) -> Iterator[JsonObject]:
    """Yield the final result of a call; the interim one of a pending call is none."""
    if event.status == "pending":
        return
    if event.edited is not None:
        edited = {"toolCallId": event.call_id, **event.edited.to_wire()}
        yield {"type": "CUSTOM", "name": "goondan.edited", "value": edited}
    failed = None if event.error is None else {"error": event.error.to_wire()}
    yield {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"{event.call_id}-result",
        "toolCallId": event.call_id,
        "content": as_text(event.output if failed is None else failed),
        "role": "tool",
    }


def _interrupt(call: HeldCall) -> JsonObject:
    return {
        "id": call.call_id,
        "reason": "approval",
        "message": f"{call.tool} waits for your approval.",
        "toolCallId": call.call_id,
        "responseSchema": DECISION_SCHEMA,
        "metadata": {"tool": call.tool, "args": call.args},
        **({} if call.expires_at is None else {"expiresAt": call.expires_at}),
    }

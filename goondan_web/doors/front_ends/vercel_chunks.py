"""Events of runs as chunks of the AI SDK's UI message stream (https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol)."""

from collections.abc import Iterator

from goondan_tasks.client.turn_events import (
    ToolAnswered,
    ToolCalled,
    ToolEmitted,
    ToolRestarted,
    TurnProgress,
)
from goondan_tasks.contract.errors import ApprovalDeniedError
from goondan_tasks.contract.messages import JsonObject, ToolCallError
from goondan_web.doors.front_ends.pieces import Piece, Pieces, output_of
from goondan_web.doors.front_ends.runs import RunEvent, RunOver


class UiChunks:
    """Maps one run.

    The stream cannot take text back. When the model is asked again, the parts of the void answer end, each
    followed by a chunk ``data-void``, and the new answer is a new part. Steps are left out: the AI SDK looks
    for answers about approvals in the last Step only, and the agent may have gone on after the call.
    """

    def __init__(self, message_id: str | None = None) -> None:
        """Map a run; without ``message_id`` it goes on with the message that the page has."""
        self._message_id = message_id
        self._pieces = Pieces()

    def begun(self) -> JsonObject:
        """Return the first chunk."""
        return {"type": "start"} if self._message_id is None else _start(self._message_id)

    def failed(self, error: ToolCallError) -> JsonObject:
        """Return the chunk of a run that has failed, or cannot be followed any more."""
        return {"type": "error", "errorText": f"{error.code}: {error.message}"}

    def mapped(self, one: RunEvent) -> Iterator[JsonObject]:
        """Yield the chunks for an event of the run."""
        event = one.event
        for piece in self._pieces.taken(one):
            yield from _part(piece)
        if isinstance(event, ToolCalled):
            yield {
                "type": "tool-input-available",
                "toolCallId": event.call_id,
                "toolName": event.tool,
                "input": event.args,
                "dynamic": True,
            }
        elif isinstance(event, ToolAnswered):
            yield from _answered(event)
        elif isinstance(event, ToolEmitted | ToolRestarted):
            kind = event.type.replace("_", "-")
            yield {"type": f"data-{kind}", "data": output_of(event), "transient": True}
        elif isinstance(event, TurnProgress):
            yield {"type": "data-progress", "data": event.progress.to_wire(), "transient": True}
        elif isinstance(event, RunOver):
            for piece in self._pieces.closed():
                yield from _part(piece)
            yield from self._over(event)

    def _over(self, over: RunOver) -> Iterator[JsonObject]:
        for call in over.held:
            yield {"type": "tool-approval-request", "approvalId": call.call_id, "toolCallId": call.call_id}
        if over.held:
            yield {"type": "finish", "finishReason": "tool-calls"}
        elif over.error is not None:
            yield self.failed(over.error)
            yield {"type": "finish", "finishReason": "error"}
        else:
            yield {"type": "finish", "finishReason": "stop"}


def _start(message_id: str) -> JsonObject:
    return {"type": "start", "messageId": message_id}


def _part(piece: Piece) -> Iterator[JsonObject]:
    if piece.moment == "void":
        yield {"type": "data-void", "data": {"id": piece.id}, "transient": True}
    elif piece.moment == "text":
        yield {"type": f"{piece.kind}-delta", "id": piece.id, "delta": piece.text}
    else:
        yield {"type": f"{piece.kind}-{piece.moment}", "id": piece.id}


def _answered(event: ToolAnswered) -> Iterator[JsonObject]:
    """Yield the final result of a call; the interim one of a pending call is none."""
    call = {"toolCallId": event.call_id}
    if event.edited is not None:
        yield {"type": "data-edited", "data": {**call, **event.edited.to_wire()}}
    if event.status == "ok":
        yield {"type": "tool-output-available", **call, "output": event.output, "dynamic": True}
    elif event.error is not None and event.error.code == ApprovalDeniedError.code:
        yield {"type": "tool-output-denied", **call}
    elif event.error is not None:
        text = f"{event.error.code}: {event.error.message}"
        yield {"type": "tool-output-error", **call, "errorText": text, "dynamic": True}

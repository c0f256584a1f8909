"""Pieces of answers as messages that begin, go on and end, as front ends want them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from broker_config import serializer
from goondan_tasks.client.turn_events import (
    AnswerRestarted,
    ReasoningDelta,
    TextDelta,
    ToolCalled,
    ToolEmitted,
    ToolRestarted,
    TurnEnded,
)
from goondan_tasks.contract.messages import JsonObject
from goondan_web.doors.front_ends.runs import RunEvent

Kind = Literal["text", "reasoning"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A message begins, goes on, ends, or is void."""

    moment: Literal["start", "text", "end", "void"]
    kind: Kind
    #: of the message: the same whenever the run is read again
    id: str
    text: str = ""


def output_of(event: ToolEmitted | ToolRestarted) -> JsonObject:
    """Return what a tool shows while it runs, with the call's id as the other events have it."""
    wire = {"toolCallId": event.call_id, "tool": event.tool, "attempt": event.attempt}
    if isinstance(event, ToolRestarted):
        return wire
    return {**wire, "truncated": True} if event.truncated else {**wire, "chunk": event.chunk}


class Pieces:
    """Groups the pieces of answers into messages. One is open at a time."""

    def __init__(self) -> None:
        self._open: Piece | None = None
        #: the answer of the open message
        self._answer: tuple[str, int, str] | None = None
        #: the messages of the current answer
        self._messages: list[tuple[Kind, str]] = []
        #: whether the model has written text since its last call of a tool
        self._has_text = False

    def taken(self, one: RunEvent) -> Iterator[Piece]:
        """Yield what an event does to the messages."""
        event = one.event
        if isinstance(event, TextDelta | ReasoningDelta):
            yield from self._written(one.turn_id, event)
        elif isinstance(event, AnswerRestarted):
            yield from self.closed()
            yield from (Piece("void", kind, name) for kind, name in self._messages)
            self._messages, self._answer, self._has_text = [], None, False
        elif isinstance(event, ToolCalled):
            yield from self.closed()
            self._has_text = False
        elif isinstance(event, TurnEnded):
            yield from self.closed()
            yield from self._answered(one.turn_id, event)

    def closed(self) -> Iterator[Piece]:
        """End the open message."""
        if self._open is not None:
            yield Piece("end", self._open.kind, self._open.id)
            self._open = None

    def _written(self, turn_id: str, event: TextDelta | ReasoningDelta) -> Iterator[Piece]:
        answer = turn_id, event.step, event.answer_id
        if self._answer != answer:
            yield from self.closed()
            self._answer, self._messages = answer, []
        if self._open is None or self._open.kind != event.type:
            yield from self.closed()
            name = "-".join((*map(str, answer), str(len(self._messages))))
            self._messages.append((event.type, name))
            self._open = Piece("start", event.type, name)
            yield self._open
        if event.text:
            yield Piece("text", event.type, self._open.id, event.text)
        self._has_text = self._has_text or event.type == "text"

    def _answered(self, turn_id: str, event: TurnEnded) -> Iterator[Piece]:
        """Yield the whole answer if none was written: that of code, or of a stream that is gone."""
        response = event.result.response
        if event.error is None and response is not None and response != "" and not self._has_text:
            name = f"{turn_id}-answer"
            yield Piece("start", "text", name)
            yield Piece("text", "text", name, as_text(response))
            yield Piece("end", "text", name)
        self._has_text = False


def as_text(value: object) -> str:
    """Return text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else serializer.encode(value, repairs=True).decode()

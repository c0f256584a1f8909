"""Events of a Turn as those of OpenAI's Responses, with a number for each.

The numbers follow from the Turn's stream alone, so all servers give the same: an event counts one, a piece
of text as many as it has characters. So a number is a place in the text, however the text is cut into
pieces, and stays the same when the pieces are joined at the end of the Turn (``streams.lua``).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.client.turn_events import (
    AnswerRestarted,
    ReasoningDelta,
    TextDelta,
    ToolAnswered,
    ToolCalled,
    TurnEnded,
    TurnEvent,
)
from goondan_tasks.contract.errors import ToolCancelledError
from goondan_tasks.contract.messages import JsonObject
from goondan_web.doors.front_ends.pieces import as_text
from goondan_web.doors.openai.formats import ANY_TEXT, AnswerFormat

COMPLETED, FAILED = "response.completed", "response.failed"
TEXT_DELTA, REASONING_DELTA = "response.output_text.delta", "response.reasoning_text.delta"
ITEM_ADDED, ITEM_DONE = "response.output_item.added", "response.output_item.done"
_DELTAS = {TEXT_DELTA, REASONING_DELTA}
_LAST = {COMPLETED, FAILED}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What is known of a response before it has output."""

    id: str
    model: str
    #: seconds since the epoch
    created_at: int
    is_background: bool = False
    previous_id: str | None = None
    format: AnswerFormat = ANY_TEXT

    def shown(self, status: str, output: Iterable[JsonObject] = (), **more: Any) -> JsonObject:
        """Return the response as clients get it."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": self.is_background,
            "model": self.model,
            "previous_response_id": self.previous_id,
            "output": list(output),
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": None,
            "text": {"format": self.format.shown()},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None,
            **more,
        }


@dataclass(slots=True)
class _Item:
    """An item of the output; one of text is open until something else comes."""

    index: int
    step: int
    wire: JsonObject
    text: str = ""


@dataclass(slots=True)
class ResponseEvents:
    """Maps the events of one Turn, in order, from its first one on."""

    head: ResponseHead
    _number: int = -1
    _count: int = 0
    _items: list[_Item] = field(default_factory=list)
    _open: _Item | None = None
    #: by the identity of the call
    _calls: dict[str, _Item] = field(default_factory=dict)

    def begun(self) -> Iterator[JsonObject]:
        """Yield the events before those of the Turn."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self.head.shown("in_progress"))

    def mapped(self, event: TurnEvent) -> Iterator[JsonObject]:
        """Yield the events for one of the Turn; usage, progress and what tools emit have none."""
        if isinstance(event, TextDelta | ReasoningDelta):
            # an answer with a schema comes once it has been checked; its drafts would not parse
            is_draft = isinstance(event, TextDelta) and self.head.format.schema is not None
            if event.text and not is_draft:
                yield from self._written(event)
        elif isinstance(event, AnswerRestarted):
            yield from self._closed("incomplete")
            is_void = {"message", "reasoning"}
            self._items = [i for i in self._items if i.step != event.step or i.wire["type"] not in is_void]
        elif isinstance(event, ToolCalled):
            yield from self._called(event)
        elif isinstance(event, ToolAnswered):
            yield from self._answered(event)
        elif isinstance(event, TurnEnded):
            yield from self._ended(event)

    def _event(self, kind: str, /, *, counts: int = 1, **fields: Any) -> JsonObject:
        self._number += counts
        return {"type": kind, "sequence_number": self._number, **fields}

    def _added(self, step: int, wire: JsonObject) -> _Item:
        name = f"{wire['type']}_{self.head.id}_{self._count}"
        item = _Item(self._count, step, {"id": name, **wire})
        self._count += 1
        self._items.append(item)
        return item

    def _of_item(self, kind: str, place: _Item, /, **fields: Any) -> JsonObject:
        return self._event(kind, output_index=place.index, **fields)

    def _written(self, piece: TextDelta | ReasoningDelta) -> Iterator[JsonObject]:
        is_text = isinstance(piece, TextDelta)
        kind = "message" if is_text else "reasoning"
        if self._open is None or self._open.wire["type"] != kind or self._open.step != piece.step:
            yield from self._closed("completed")
            own = {"role": "assistant", "content": []} if is_text else {"summary": [], "content": []}
            self._open = self._added(piece.step, {"type": kind, "status": "in_progress", **own})
            yield self._of_item(ITEM_ADDED, self._open, item=dict(self._open.wire))
            yield self._part("response.content_part.added", self._open)
        self._open.text += piece.text
        place: JsonObject = {"item_id": self._open.wire["id"], "content_index": 0, "delta": piece.text}
        if is_text:
            place["logprobs"] = []
        kind = TEXT_DELTA if is_text else REASONING_DELTA
        yield self._of_item(kind, self._open, counts=len(piece.text), **place)

    def _closed(self, status: str) -> Iterator[JsonObject]:
        item, self._open = self._open, None
        if item is None:
            return
        place: JsonObject = {"item_id": item.wire["id"], "content_index": 0, "text": item.text}
        if item.wire["type"] == "message":
            yield self._of_item("response.output_text.done", item, logprobs=[], **place)
        else:
            yield self._of_item("response.reasoning_text.done", item, **place)
        yield self._part("response.content_part.done", item)
        item.wire = {**item.wire, "status": status, "content": [_part_of(item)]}
        yield self._of_item(ITEM_DONE, item, item=item.wire)

    def _part(self, kind: str, item: _Item) -> JsonObject:
        return self._of_item(kind, item, item_id=item.wire["id"], content_index=0, part=_part_of(item))

    def _called(self, event: ToolCalled) -> Iterator[JsonObject]:
        """Yield a call of a tool, as one that the server runs: clients must not run it."""
        yield from self._closed("completed")
        wire = {
            "type": "mcp_call",
            "server_label": self.head.model,
            "name": event.tool,
            "arguments": as_text({} if event.args is None else event.args),
            "output": None,
            "error": None,
            "status": "in_progress",
        }
        self._calls[event.call_id] = item = self._added(event.step, wire)
        yield self._of_item(ITEM_ADDED, item, item=item.wire)
        yield self._of_item("response.mcp_call.in_progress", item, item_id=item.wire["id"])

    def _answered(self, event: ToolAnswered) -> Iterator[JsonObject]:
        item = None if event.status == "pending" else self._calls.pop(event.call_id, None)
        if item is None:
            return
        if event.error is None:
            status, outcome = "completed", {"output": as_text(event.output)}
        else:
            status, outcome = "failed", {"error": f"{event.error.code}: {event.error.message}"}
        item.wire = {**item.wire, **outcome, "status": status}
        yield self._of_item(f"response.mcp_call.{status}", item, item_id=item.wire["id"])
        yield self._of_item(ITEM_DONE, item, item=item.wire)

    def _ended(self, end: TurnEnded) -> Iterator[JsonObject]:
        response = end.result.response
        error = end.error or self.head.format.error_of(response)
        yield from self._closed("completed" if error is None else "incomplete")
        for item in self._calls.values():
            item.wire = {**item.wire, "status": "incomplete"}
            yield self._of_item(ITEM_DONE, item, item=item.wire)
        if error is None:
            yield from self._whole(response)
        output, usage = [item.wire for item in self._items], usage_of(end.usage)
        if error is None:
            shown = self.head.shown("completed", output, usage=usage)
            yield self._event(COMPLETED, response=shown)
        else:
            status = "cancelled" if error.code == ToolCancelledError.code else "failed"
            told = {"code": error.code, "message": error.message}
            yield self._event(FAILED, response=self.head.shown(status, output, usage=usage, error=told))

    def _whole(self, response: Any) -> Iterator[JsonObject]:
        """Yield the answer if it is not what the model has written: that of code, or of a lost stream."""
        has_schema = self.head.format.schema is not None
        text = "" if response is None and not has_schema else self.head.format.text(response)
        last = self._items[-1].step if self._items else 0
        written = (i.text for i in self._items if i.step == last and i.wire["type"] == "message")
        if text.strip() and text.strip() != "".join(written).strip():
            yield from self._written(TextDelta(step=last + 1, text=text))
            yield from self._closed("completed")


def later(events: Iterable[JsonObject], after: int) -> Iterator[JsonObject]:
    """Yield the events after a number; of a text that it cuts, the rest. The last event always comes."""
    for event in events:
        number = event["sequence_number"]
        if event["type"] in _LAST:
            yield {**event, "sequence_number": max(number, after + 1)}
        elif number > after:
            has_more = event["type"] in _DELTAS and number - len(event["delta"]) < after
            yield {**event, "delta": event["delta"][after - number :]} if has_more else event


def usage_of(used: dict[str, int] | None) -> JsonObject | None:
    """Return the tokens of a Turn by OpenAI's names."""
    if used is None:
        return None
    given, made = used.get("input", 0), used.get("output", 0)
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": used.get("cached", 0)},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": used.get("reasoning", 0)},
        "total_tokens": given + made,
    }


def _part_of(item: _Item) -> JsonObject:
    if item.wire["type"] == "message":
        return {"type": "output_text", "text": item.text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": item.text}

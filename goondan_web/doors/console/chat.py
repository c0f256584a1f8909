"""Conversations as people read them: messages with the calls of tools in place, and a running Turn's text."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.client import AnswerRestarted, AsyncClient, ReasoningDelta, TextDelta, TurnEnded
from goondan_tasks.client.turn_events import TurnEvent
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import JsonObject, Message
from goondan_tasks.contract.model_messages import told_text
from goondan_tasks.ledger.record import CallRecord
from goondan_web.doors.console.calls import row_of
from goondan_web.doors.console.rendering import at, rendered_part
from goondan_web.doors.console.values import shown_json
from goondan_web.event_streams import frame, until

#: how many characters of arguments stand beside the name of a tool
_LINE = 120
#: between two pieces of a text that is being written
PAUSE_SECONDS = 0.2
#: the ids of tools' answers are those of their calls, with this before them
_MESSAGE = "msg-"
#: the tools that hand work to the agent that ``target`` names
_HAND_OFFS = ("agents__request", "agents__send")


def shown_messages(
    messages: Sequence[Message], records: Iterable[CallRecord], instance_key: str
) -> list[JsonObject]:
    """Return what a page shows of messages; the answers of tools stand with their calls.

    ``records`` are those of calls of the instance that have not expired.
    """
    by_id = {record.id: record for record in records}
    made = {(one.call.message.id, one.call.shown_id): one for one in by_id.values() if one.call.message}
    #: of the last message with calls, by the model's name of each: it may give the name again
    open_calls: dict[str, JsonObject] = {}
    shown = []
    for message in messages:
        parts, calls = list[JsonObject](), dict[str, JsonObject]()
        for part in _parts(message):
            kind, name = part.get("type"), str(part.get("toolCallId"))
            if kind == "tool-call":
                calls[name] = _tool_call(part, made.get((message.id, name)), instance_key)
                parts.append(calls[name])
            elif kind != "tool-result":
                parts.append(_part(part))
            elif (call := open_calls.pop(name, None)) is not None:
                _answer(call, part, by_id.get(message.id.removeprefix(_MESSAGE)))
            else:  # its call is not among these messages
                parts.append(_tool_call(part, None, instance_key))
                _answer(parts[-1], part, by_id.get(message.id.removeprefix(_MESSAGE)))
        open_calls = calls or open_calls
        if parts:
            shown.append(_message(message, parts))
    return shown


def _message(message: Message, parts: list[JsonObject]) -> JsonObject:
    return {
        "id": message.id,
        "role": str(message.data.get("role")),
        "turn": message.metadata.get("turnId"),
        "at": message.created_at if message.created_at[:1].isdigit() else None,
        "parts": parts,
    }


def _parts(message: Message) -> list[Mapping[str, Any]]:
    content = message.data.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    return [one if isinstance(one, Mapping) else {"type": "text", "text": one} for one in parts]


def _part(part: Mapping[str, Any]) -> JsonObject:
    kind = str(part.get("type"))
    if kind in {"text", "reasoning"}:
        return {"kind": kind, "text": str(part.get("text", ""))}
    return {"kind": "other", "text": kind}


def _tool_call(part: Mapping[str, Any], record: CallRecord | None, instance_key: str) -> JsonObject:
    """Return a call as a card; folded it has its tool, its arguments in a line, its state and its time."""
    tool, given = str(part.get("toolName")), part.get("input")
    args = shown_json(given)["text"] if "input" in part else ""
    return {
        "kind": "tool",
        "tool": tool,
        "args": args,
        "line": " ".join(args[: 2 * _LINE].split())[:_LINE],
        "text": None,
        "other": _other(tool, given, instance_key),
        **_facts(record),
    }


def _answer(call: JsonObject, part: Mapping[str, Any], record: CallRecord | None) -> None:
    text, failed = told_text(part.get("output"))
    call["text"] = text
    if record is not None and call["id"] is None:
        call.update(_facts(record))
    if call["state"] is None or record is None:
        call["state"] = "error" if failed else "ok"


def _facts(record: CallRecord | None) -> JsonObject:
    if record is None:
        return {"id": None, "state": None, "seconds": None}
    row = row_of(record)
    return {"id": record.id, "state": row["state"], "seconds": row["seconds"]}


def _other(tool: str, args: Any, instance_key: str) -> JsonObject | None:
    """Return the conversation that a hand-off leads to."""
    if tool not in _HAND_OFFS or not isinstance(args, Mapping) or not isinstance(args.get("target"), str):
        return None
    key = args.get("instanceKey")
    agent, key = args["target"].removeprefix("Agent/"), key if isinstance(key, str) and key else instance_key
    return {"agent": agent, "key": key, "address": at("conversations", agent, key)}


@dataclass(slots=True)
class TurnText:
    """What the model has written in a Turn so far; of its last two Steps."""

    texts: dict[int, str] = field(default_factory=dict)
    reasoning: dict[int, str] = field(default_factory=dict)

    def take(self, event: TurnEvent) -> bool:
        """Take an event; return whether it changes the text."""
        if isinstance(event, AnswerRestarted):
            self.texts.pop(event.step, None)
            self.reasoning.pop(event.step, None)
            return True
        if not isinstance(event, TextDelta | ReasoningDelta):
            return False
        kept = self.texts if isinstance(event, TextDelta) else self.reasoning
        kept[event.step] = kept.get(event.step, "") + event.text
        for step in [step for step in kept if step < event.step - 1]:
            del kept[step]
        return True

    def rendered(self) -> str:
        """Return it as HTML."""
        steps = [
            {"step": step, "text": self.texts.get(step, ""), "reasoning": self.reasoning.get(step, "")}
            for step in sorted({*self.texts, *self.reasoning})
        ]
        return rendered_part("turn_text.html", {"steps": steps})


async def turn_text(client: AsyncClient, turn_id: str) -> AsyncGenerator[bytes]:
    """Yield what a Turn's model writes, whole each time, and an event ``end``."""
    text, is_new, sent_at = TurnText(), False, -PAUSE_SECONDS
    try:
        async with aclosing(until(asyncio.Event(), client.follow(turn_id), PAUSE_SECONDS)) as events:
            async for followed in events:
                is_new = (followed is not None and text.take(followed.event)) or is_new
                ends = followed is not None and isinstance(followed.event, TurnEnded)
                if is_new and (ends or time.monotonic() >= sent_at + PAUSE_SECONDS):
                    yield frame((await asyncio.to_thread(text.rendered)).encode())
                    is_new, sent_at = False, time.monotonic()
    except GoondanError:  # the page says what became of the Turn
        pass
    yield frame(b"", event="end")

"""Makes a conversation valid for every provider: ids, names, blank texts, pairs of call and result.

A conversation outlives its models: a Model is replaced, or falls back to one of another provider, and models
repeat ids and invent names of tools. The stored messages stay as they are; each request sends valid ones.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any

from goondan_tasks.contract.messages import JsonObject

#: the longest id of a call (OpenAI's chat completions) and name of a tool that all providers accept
LONGEST_ID = 40
LONGEST_NAME = 64

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")

INTERRUPTED = "The call was interrupted."
NO_TEXT = "(an empty message)"
#: precedes an answer whose question was removed, and follows an answer that the model is to continue after
REMOVED = "(Earlier messages were removed.)"
GO_ON = "Go on."


def sendable(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """Return messages that every provider accepts.

    The results of an answer's calls follow it in their order, in one message. A call without a result gets
    one that says so, and a result without its call is left out.

    Raises:
        AttributeError, LookupError, TypeError, ValueError: a message is not valid.
    """
    made: list[JsonObject] = []
    ids = _Ids()
    results: dict[str, JsonObject] = {}
    #: what the open answer's calls are named in the conversation, and in the request
    names: dict[str, deque[str]] = defaultdict(deque)
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            results, names = {}, defaultdict(deque)
            parts = _answer_parts(content)
            for part in [part for part in parts if part.get("type") == "tool-call"]:
                given, part["toolCallId"] = part["toolCallId"], ids.new(part["toolCallId"])
                names[given].append(part["toolCallId"])
                output = {"type": "text", "value": INTERRUPTED}
                results[part["toolCallId"]] = _result(part["toolCallId"], part["toolName"], output)
            made += [{**message, "content": parts}] if parts else []
            made += [{"role": "tool", "content": results}] if results else []
        elif role == "tool":
            for part in content or ():
                known = names.get(part["toolCallId"])
                if known:
                    name = known.popleft() if len(known) > 1 else known[0]
                    results[name] = _result(name, results[name]["toolName"], part.get("output"))
        else:
            made.append({**message, "content": _spoken(content)})
    sent = [{**one, "content": [*one["content"].values()]} if one["role"] == "tool" else one for one in made]
    return _framed(sent)


def without_reasoning(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """Return messages whose answers have texts and calls alone, without ids and signatures of providers."""
    return [
        {"role": "assistant", "content": list(map(_plain, filter(_is_plain, _parts(message.get("content")))))}
        if message.get("role") == "assistant"
        else message
        for message in messages
    ]


def _is_plain(part: Mapping[str, Any]) -> bool:
    return part.get("type") in ("text", "tool-call")


def _plain(part: Mapping[str, Any]) -> JsonObject:
    return {name: value for name, value in part.items() if name != "providerOptions"}


def tool_name(name: str) -> str:
    """Return a tool's name, without the characters that a provider forbids: a model may have invented it."""
    return _FORBIDDEN.sub("_", name)[:LONGEST_NAME] or "unknown"


def _framed(messages: list[JsonObject]) -> list[JsonObject]:
    """Begin and end with a message that is not the model's: some providers require it."""
    spoken = [message for message in messages if message["role"] != "system"]
    if not spoken:
        return messages
    before = [{"role": "user", "content": REMOVED}] if spoken[0]["role"] == "assistant" else []
    after = [{"role": "user", "content": GO_ON}] if spoken[-1]["role"] == "assistant" else []
    return [*before, *messages, *after]


def _parts(content: Any) -> Iterable[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or ()


def _answer_parts(content: Any) -> list[JsonObject]:
    """Return the parts of an answer; reasoning that nothing follows is refused by Anthropic and OpenAI."""
    parts = [part for part in map(_answer_part, _parts(content)) if part is not None]
    while parts and parts[-1].get("type") == "reasoning":
        parts.pop()
    return parts


def _answer_part(part: Mapping[str, Any]) -> JsonObject | None:
    """Return a part of an answer with a valid name; ``None`` for a blank text."""
    kind = part.get("type")
    if kind == "tool-call":
        return {**part, "toolName": tool_name(part["toolName"]), "toolCallId": part["toolCallId"]}
    # blank reasoning may have a signature
    is_blank = kind in ("text", "reasoning") and not str(part.get("text") or "").strip()
    return None if is_blank and (kind == "text" or not part.get("providerOptions")) else dict(part)


def _result(call_id: str, name: str, output: Any) -> JsonObject:
    return {"type": "tool-result", "toolCallId": call_id, "toolName": name, "output": output}


def _spoken(content: Any) -> Any:
    """Return what a user or the system says, without blank texts."""
    if isinstance(content, str):
        return content if content.strip() else NO_TEXT
    parts = [
        part for part in content or () if part.get("type") != "text" or str(part.get("text") or "").strip()
    ]
    return parts or NO_TEXT


class _Ids:
    """The ids of calls in one request: each is valid for all providers, and unique."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, given: str) -> str:
        """Return the id to send for a call: the given one, if it is valid and not taken."""
        plain = _FORBIDDEN.sub("_", given) or "call"
        name, number = plain[:LONGEST_ID], 1
        while name in self._taken:
            number += 1
            ending = f"_{number}"
            name = plain[: LONGEST_ID - len(ending)] + ending
        self._taken.add(name)
        return name

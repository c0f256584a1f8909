"""Shortens a conversation that a model has refused, without a model's help.

What is too long for a model, or refused for its content, would be refused in each later Turn as well. The
changes are events of the conversation: they are written as all others, and last.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from goondan_tasks.contract.conversation import Conversation, must_stay, start_of_last
from goondan_tasks.contract.messages import JsonObject, Message
from goondan_tasks.contract.model_messages import told_images, told_text
from goondan_tasks.contract.tool_images import ToolImage

logger = structlog.get_logger(__name__)

#: an output is not cut below so many characters
LEAST_CHARACTERS = 1_000
#: about as much as an image takes of a model's context
IMAGE_CHARACTERS = 6_000

CUT = "\n[… over {} characters were cut: the conversation was too long for the model …]\n"
WITHDRAWN = "(The output was withdrawn: the model's provider refused a request that had it.)"


def shorten(conversation: Conversation, turn_id: str) -> bool:
    """Halve a conversation; return whether that was possible.

    The outputs of tools are cut, the longest first, so that their sum fits; notes replace their images. If
    that is not enough, the oldest messages are removed, but not the Turn's own input, nor what is pinned,
    nor the last message and its call.
    """
    messages = conversation.next_messages
    sizes = list(map(_size, messages))
    target, before = sum(sizes) // 2, len(conversation.events)
    free = {message.id for message in messages if not must_stay(message, turn_id)}
    outputs = [size for message in messages if message.id in free for size in _outputs(message)]
    longest = _longest(outputs, target - (sum(sizes) - sum(outputs)))
    for place, message in enumerate(messages):
        if message.id in free and any(size > longest for size in _outputs(message)):
            cut = _with_outputs(message, lambda text, size: _cut(text, longest) if size > longest else None)
            conversation.emit({"type": "replace", "targetId": message.id, "message": cut.to_wire()})
            sizes[place] = _size(cut)
    removed = _older(messages, sizes, target, turn_id)
    for message in removed:
        conversation.emit({"type": "remove", "targetId": message.id})
    changes = len(conversation.events) - before
    if changes:
        logger.warning(
            "conversation.shortened", turn=turn_id, cut=changes - len(removed), removed=len(removed)
        )
    return bool(changes)


def withdraw(conversation: Conversation, turn_id: str) -> list[tuple[Message, Message]]:
    """Withdraw the outputs that a Turn before this one has left without an answer of the model.

    Returns the messages before and after; none if the model has answered in this Turn.
    """
    earlier: list[Message] = []
    for message in conversation.next_messages:
        if message.data.get("role") == "assistant":
            earlier = []
            if message.metadata.get("turnId") == turn_id:
                return []
        elif message.data.get("role") == "tool":
            earlier.append(message)
    changed = [(message, _with_outputs(message, lambda *_: WITHDRAWN)) for message in earlier]
    exchange(conversation, changed)
    return changed


def exchange(conversation: Conversation, changed: Sequence[tuple[Message, Message]]) -> None:
    """Replace the first message of each pair by the second."""
    for message, other in changed:
        conversation.emit({"type": "replace", "targetId": message.id, "message": other.to_wire()})


def _longest(outputs: Sequence[int], room: int) -> int:
    """Return to which length outputs are cut, so that all of them together have ``room``."""
    left = max(room, 0)
    for place, length in enumerate(sorted(outputs)):
        share = left // (len(outputs) - place)
        if length > share:
            return max(share, LEAST_CHARACTERS)
        left -= length
    return max(outputs, default=0)


def _older(messages: Sequence[Message], sizes: Sequence[int], target: int, turn_id: str) -> Sequence[Message]:
    """Return the oldest messages that have to go, so that the others have ``target`` characters at most."""
    left, count = sum(sizes), len(messages)
    while left > target and count > 1:
        count -= 1
        left = sum(sizes[start_of_last(messages, count) :])
    ahead = messages[: start_of_last(messages, count)]
    return [message for message in ahead if not must_stay(message, turn_id)]


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    note = CUT.format(len(text) - longest)
    room = longest - len(note)
    begin, end = 2 * room // 3, room // 3
    return text[:begin] + note + text[-end:]


def _parts(message: Message) -> Sequence[Mapping[str, Any]]:
    content = message.data.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def _size(message: Message) -> int:
    """Return about how many characters a model reads of a message."""
    parts = _parts(message)
    texts = [str(part.get("text", "")) for part in parts if part.get("type") in ("text", "reasoning")]
    calls = [told_text(part.get("input"))[0] for part in parts if part.get("type") == "tool-call"]
    return sum(map(len, (*texts, *calls))) + sum(_outputs(message))


def _outputs(message: Message) -> list[int]:
    """Return the sizes of the outputs in a message."""
    return [_output(part)[2] for part in _parts(message) if part.get("type") == "tool-result"]


def _output(part: Mapping[str, Any]) -> tuple[str, bool, int]:
    """Return an output as text, whether it is an error, and its size with its images."""
    text, failed = told_text(part.get("output"))
    images = sum(isinstance(one, ToolImage) for one in told_images(part.get("output")) or ())
    return text, failed, len(text) + images * IMAGE_CHARACTERS


def _with_outputs(message: Message, change: Callable[[str, int], str | None]) -> Message:
    """Return a message with other outputs; ``change`` gets the text and size of each, ``None`` keeps it."""
    content: list[JsonObject] = []
    for part in map(dict, _parts(message)):
        if part.get("type") == "tool-result":
            text, failed, size = _output(part)
            changed = change(text, size)
            if changed is not None:
                part["output"] = {"type": "error-text" if failed else "text", "value": changed}
        content.append(part)
    return message.model_copy(update={"data": {**message.data, "content": content}})

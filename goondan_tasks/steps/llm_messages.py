"""Messages as the older version writes them (002, appendix A), whoever has written them before.

``{role: system|user, content}``, ``{role: assistant, content?, toolCalls?: [{id, name, arguments}]}`` and
``{role: tool, toolCallId, toolName, output}``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from broker_config import serializer
from goondan_tasks.error_in_output import error_output
from goondan_tasks.messages import JsonObject, Message, ToolCallResult

_ROLES = frozenset({"system", "user", "assistant", "tool"})

#: what a Message's source has besides its type (004, MessageSource)
_SOURCES: dict[str, tuple[str, ...]] = {
    "user": (),
    "assistant": ("stepId",),
    "tool": ("toolCallId", "toolName"),
    "system": (),
    "extension": ("extensionName",),
}


def tool_message(call_id: str, tool_name: str, result: ToolCallResult) -> JsonObject:
    """Return what the model is told of a call that has come back (002 §6.2)."""
    return {"role": "tool", "toolCallId": call_id, "toolName": tool_name, "output": told_output(result)}


def told_output(result: ToolCallResult) -> Any:
    """Return the output; of a call that has not ended well, how it stands (002 §6.3, §7.1)."""
    if result.status == "ok":
        return result.output
    if result.status == "pending":
        output = {} if result.output is None else {"output": result.output}
        return {"status": "pending", "handle": result.handle, **output}
    return result.output if result.output is not None else error_output(result)


def source_fault(source: Mapping[str, Any]) -> str:
    """Say what is wrong with the source of a Message, or nothing (004, MessageSource)."""
    kind = source.get("type")
    if not isinstance(kind, str) or kind not in _SOURCES:
        return f"its source has the unknown type {kind!r:.100}; there are: {', '.join(_SOURCES)}"
    missing = [name for name in _SOURCES[kind] if not isinstance(source.get(name), str)]
    return f"its source of the type {kind!r} has no {' and no '.join(missing)}" if missing else ""


def message_fault(message: Message, call_id: str) -> str:
    """Say why a Message is not the assistant's that holds a call, or nothing (001 §12.5 r4)."""
    role = message.data.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        return f"its role is unknown: {role!r:.100}; there are: {', '.join(sorted(_ROLES))}"
    fault = source_fault(message.source)
    if fault:
        return fault
    kind = message.source["type"]
    if role != "assistant" or kind not in ("assistant", "extension"):
        return f"it is not the assistant's, but has the role {role!r} and a source of the type {kind!r}"
    held = [call["id"] for said in llm_messages(message.data) for call in said.get("toolCalls", ())]
    if call_id in held:
        return ""
    holds = f"it holds: {', '.join(map(repr, held))}" if held else "it holds no call"
    return f"it does not hold the call {call_id!r:.200}; {holds:.500}"


def llm_messages(message: Mapping[str, Any]) -> list[JsonObject]:
    """Return what a message says: one of ours (004), of OpenAI, Anthropic or the AI SDK, or written as here.

    It is several messages if several results stand in it. What has no role is said by the user; what is no
    message at all says nothing.
    """
    data = message.get("data")
    said: Mapping[str, Any] = data if isinstance(data, Mapping) else message
    role = said.get("role", "user")
    if not isinstance(role, str) or role not in _ROLES:
        return []
    if role == "tool" and not isinstance(said.get("content"), list):
        return [_whole_result(said)]
    content = said.get("content")
    parts = _objects(content)
    results = [result for part in parts for result in _part_results(part)]
    calls = [*_calls(said), *(call for part in parts for call in _part_calls(part))]
    text = content if isinstance(content, str) else "".join(_texts(parts))
    spoken: JsonObject = {"role": role}
    if text or not (calls or results):
        spoken["content"] = text
    if calls:
        spoken["toolCalls"] = calls
    return [*results, spoken] if len(spoken) > 1 and role != "tool" else results


def asking_message(calls: Sequence[JsonObject], content: str = "") -> JsonObject:
    """Return the message of a model that asks for calls: items ``{id, name, arguments}``."""
    said = {"content": content} if content else {}
    return {"role": "assistant", **said, "toolCalls": list(calls)}


def _whole_result(said: Mapping[str, Any]) -> JsonObject:
    if "tool_call_id" in said:
        return _result(said["tool_call_id"], said.get("name"), _decoded(said.get("content")))
    return _result(said.get("toolCallId"), said.get("toolName"), said.get("output"))


def _calls(said: Mapping[str, Any]) -> Iterator[JsonObject]:
    for call in _objects(said.get("toolCalls")):
        yield _call(call.get("id"), call.get("name"), call.get("arguments"))
    for call in _objects(said.get("tool_calls")):
        function = call.get("function")
        if isinstance(function, Mapping):
            yield _call(call.get("id"), function.get("name"), _decoded(function.get("arguments")))


def _part_calls(part: Mapping[str, Any]) -> Iterator[JsonObject]:
    if part.get("type") == "tool-call":
        yield _call(part.get("toolCallId"), part.get("toolName"), part.get("input", part.get("args")))
    elif part.get("type") == "tool_use":
        yield _call(part.get("id"), part.get("name"), part.get("input"))


def _part_results(part: Mapping[str, Any]) -> Iterator[JsonObject]:
    if part.get("type") == "tool-result":
        output = part.get("output")
        value = output.get("value") if isinstance(output, Mapping) and "type" in output else output
        yield _result(part.get("toolCallId"), part.get("toolName"), value)
    elif part.get("type") == "tool_result":
        yield _result(part.get("tool_use_id"), "", _decoded(part.get("content")))


def _texts(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for part in parts:
        text = part.get("text")
        if part.get("type") == "text" and isinstance(text, str):
            yield text


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _call(call_id: Any, name: Any, arguments: Any) -> JsonObject:
    given = {} if arguments is None else arguments
    return {"id": _text(call_id), "name": _text(name), "arguments": given}


def _result(call_id: Any, name: Any, output: Any) -> JsonObject:
    return {"role": "tool", "toolCallId": _text(call_id), "toolName": _text(name), "output": output}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _decoded(text: Any) -> Any:
    """Return the JSON that a provider's text is, or the text."""
    try:
        return serializer.decode(text) if isinstance(text, str) else text
    except serializer.NotJsonError:
        return text

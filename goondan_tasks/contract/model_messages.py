"""Messages, tool calls and their results in the formats of model providers.

Messages of the v1 profile (002, appendix A) are ``{role: system|user, content}``,
``{role: assistant, content?, toolCalls?: [{id, name, arguments}]}`` and
``{role: tool, toolCallId, toolName, output}``.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from broker_config import serializer
from goondan_tasks.contract.errors import ToolError, ToolInputValidationError, ToolNotInCatalogError
from goondan_tasks.contract.messages import (
    JsonObject,
    Message,
    ToolCall,
    ToolCallResult,
    error_output,
    faults_of,
    iso_time,
    wall_clock,
)
from goondan_tasks.contract.names import EVENT_TOOLS, is_v1_name
from goondan_tasks.contract.tool_images import ToolImage, parts_of
from goondan_tasks.contract.wording import closest

#: the content parts that are calls, Anthropic's and ours
_CALL_PARTS = ("tool_use", "tool-call")
_ROLES = frozenset({"system", "user", "assistant", "tool"})

#: the fields of a Message's source besides its type (004, MessageSource)
_SOURCES: dict[str, tuple[str, ...]] = {
    "user": (),
    "assistant": ("stepId",),
    "tool": ("toolCallId", "toolName"),
    "system": (),
    "extension": ("extensionName",),
}


def tool_message(call_id: str, tool_name: str, result: ToolCallResult) -> JsonObject:
    """Return the v1 message with a call's result (002 §6.2)."""
    return {"role": "tool", "toolCallId": call_id, "toolName": tool_name, "output": v1_output(result)}


def v1_output(result: ToolCallResult) -> Any:
    """Return a call's output if it succeeded, else its status with handle or error (002 §6.3, §7.1)."""
    if _speaks_for_itself(result):
        return result.output
    if result.status == "ok":
        return _status_fields(result)
    if result.status == "pending":
        output = {} if result.output is None else {"output": result.output}
        return {"status": "pending", "handle": result.handle, **output}
    return result.output if result.output is not None else error_output(result)


def source_fault(source: Mapping[str, Any]) -> str:
    """Return what is wrong with a Message's source, or an empty string (004, MessageSource)."""
    kind = source.get("type")
    if not isinstance(kind, str) or kind not in _SOURCES:
        return f"its source has the unknown type {kind!r:.100}; there are: {', '.join(_SOURCES)}"
    missing = [name for name in _SOURCES[kind] if not isinstance(source.get(name), str)]
    return f"its source of the type {kind!r} has no {' and no '.join(missing)}" if missing else ""


def message_fault(message: Message, call_id: str) -> str:
    """Return why a Message is not the assistant's with this call, or an empty string (001 §12.5 rule 4)."""
    role = message.data.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        return f"its role is unknown: {role!r:.100}; there are: {', '.join(sorted(_ROLES))}"
    fault = source_fault(message.source)
    if fault:
        return fault
    kind = message.source["type"]
    if role != "assistant" or kind not in ("assistant", "extension"):
        return f"it is not the assistant's, but has the role {role!r} and a source of the type {kind!r}"
    ids = [call["id"] for v1 in llm_messages(message.data) for call in v1.get("toolCalls", ())]
    if call_id in ids:
        return ""
    found = f"it holds: {', '.join(map(repr, ids))}" if ids else "it holds no call"
    return f"it does not hold the call {call_id!r:.200}; {found:.500}"


def llm_messages(message: Mapping[str, Any]) -> list[JsonObject]:
    """Convert a message of 004, OpenAI, Anthropic, the AI SDK or v1 to v1 messages.

    A message with several results becomes several messages. The default role is ``user``. Anything else
    becomes an empty list.
    """
    data = message.get("data")
    fields: Mapping[str, Any] = data if isinstance(data, Mapping) else message
    role = fields.get("role", "user")
    if not isinstance(role, str) or role not in _ROLES:
        return []
    content = fields.get("content")
    if role == "tool" and not isinstance(content, list):
        if "tool_call_id" in fields:
            return [_result(fields["tool_call_id"], fields.get("name"), _provider_json(content))]
        return [_result(fields.get("toolCallId"), fields.get("toolName"), fields.get("output"))]
    parts = _objects(content)
    results = [result for part in parts for result in _part_results(part)]
    openai_calls = [
        call for call in _objects(fields.get("tool_calls")) if isinstance(call.get("function"), Mapping)
    ]
    call_parts = [part for part in parts if part.get("type") in _CALL_PARTS]
    calls = [_llm_call(call) for call in (*_objects(fields.get("toolCalls")), *openai_calls, *call_parts)]
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    text = content if isinstance(content, str) else "".join(one for one in texts if isinstance(one, str))
    converted: JsonObject = {"role": role}
    if text or not (calls or results):
        converted["content"] = text
    if calls:
        converted["toolCalls"] = calls
    return [*results, converted] if len(converted) > 1 and role != "tool" else results


def asking_message(calls: Sequence[JsonObject], content: str = "") -> JsonObject:
    """Return a v1 assistant message with calls, which are ``{id, name, arguments}``."""
    text = {"content": content} if content else {}
    return {"role": "assistant", **text, "toolCalls": list(calls)}


def _call_fields(call: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return id, name and arguments of a call of OpenAI, Anthropic, the AI SDK, v1 or ours."""
    function = call.get("function")
    if isinstance(function, Mapping):
        return call.get("id"), function.get("name", ""), function.get("arguments")
    return (
        _first(call, "toolCallId", "tool_call_id", "id"),
        _first(call, "toolName", "tool_name", "name"),
        _first(call, "input", "args", "arguments"),
    )


def _llm_call(call: Mapping[str, Any]) -> JsonObject:
    call_id, name, args = _call_fields(call)
    args = _provider_json(args) if "function" in call else args
    given = {} if args is None else args
    return {"id": _text_or_empty(call_id), "name": _text_or_empty(name), "arguments": given}


def _part_results(part: Mapping[str, Any]) -> Iterator[JsonObject]:
    if part.get("type") == "tool-result":
        output = part.get("output")
        value = output.get("value") if isinstance(output, Mapping) and "type" in output else output
        yield _result(part.get("toolCallId"), part.get("toolName"), value)
    elif part.get("type") == "tool_result":
        yield _result(part.get("tool_use_id"), "", _provider_json(part.get("content")))


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _result(call_id: Any, name: Any, output: Any) -> JsonObject:
    return {
        "role": "tool",
        "toolCallId": _text_or_empty(call_id),
        "toolName": _text_or_empty(name),
        "output": output,
    }


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _provider_json(text: Any) -> Any:
    """Decode a provider's value if it is JSON text; else return it unchanged."""
    try:
        return serializer.decode(text) if isinstance(text, str) else text
    except serializer.NotJsonError:
        return text


#: makes the message with a call's result in the format of its model
AnswerFormat = Callable[["ModelCall", ToolCallResult], JsonObject]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One tool call as the model wrote it."""

    id: str
    #: the name by which the model called the tool
    name: str
    args: Any
    answer: AnswerFormat
    #: why the call cannot be submitted; mistakes of the model are answered, not raised
    fault: ToolError | None = None

    def message(self, result: ToolCallResult) -> JsonObject:
        """Return the result in the format that the model expects."""
        return self.answer(self, result)


class StepCallResult(ToolCallResult):
    """The result of a call, with the ``message`` that the model expects back.

    For OpenAI this is a message with the role ``tool``, for Anthropic a ``tool_result`` block of the next
    user message, else a Message with the role ``tool`` (004).
    """

    message: JsonObject


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A model's reply, with its tool calls as the model wrote them."""

    calls: Sequence[Any]
    #: the parts of its content in order, with ``None`` for each call
    parts: Sequence[JsonObject | None]
    #: the reply itself, if it was given as a Message
    given: Message | None = None


def read_reply(given: Any) -> ModelReply:
    """Read a model's whole reply, or the list of its tool calls.

    A reply is an assistant message of OpenAI's chat completions or Anthropic's messages, as a dict or an
    object of their Python packages; or a :class:`Message`; or a v1 message.

    Raises:
        ToolInputValidationError: ``given`` is none of these, or not an assistant message.
    """
    if isinstance(given, Message):
        if fault := source_fault(given.source):
            raise ToolInputValidationError(f"The Message is not valid: {fault}.")
        return replace(_reply_of(given.data), given=given)
    dump = getattr(given, "model_dump", None)
    fields = dump() if callable(dump) else given
    if isinstance(fields, Mapping):
        return _whole_reply(fields)
    if isinstance(fields, str | bytes) or not isinstance(fields, Iterable):
        raise ToolInputValidationError(
            f"A Step runs a model's reply or the list of its tool calls, not {given!r:.200}."
        )
    calls = list(fields)
    return ModelReply(calls, [None] * len(calls))


def _whole_reply(fields: Mapping[str, Any]) -> ModelReply:
    choices = fields.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        return read_reply(choices[0].get("message"))
    if not isinstance(fields.get("data"), Mapping):
        return _reply_of(fields)
    try:
        return read_reply(Message.from_wire(fields))
    except ValidationError as error:
        raise ToolInputValidationError(f"The Message is not valid: {faults_of(error)}.") from error


def _reply_of(message: Mapping[str, Any]) -> ModelReply:
    role, content = message.get("role"), message.get("content")
    if role != "assistant":
        raise ToolInputValidationError(
            f"A model's reply has the role 'assistant', not {role!r:.100}: give the message of the model, or "
            "the list of its tool calls."
        )
    parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise ToolInputValidationError(f"A reply's content is text or a list of parts, not {content!r:.200}.")
    more: list[Any] = []
    for name in ("tool_calls", "toolCalls"):
        listed = message.get(name) or []
        if not isinstance(listed, list | tuple):
            raise ToolInputValidationError(f"A reply's {name} are a list, not {listed!r:.200}.")
        more += listed
    calls = [part for part in parts if part.get("type") in _CALL_PARTS] + more
    content_parts = [None if part.get("type") in _CALL_PARTS else dict(part) for part in parts]
    return ModelReply(calls, content_parts + [None] * len(more))


def read_model_call(raw: Any, *, max_args_bytes: int) -> ModelCall:
    """Read a tool call of OpenAI's chat completions, Anthropic's messages, or our own.

    ::

        {"id": "call_1", "type": "function", "function": {"name": "bash__exec", "arguments": "{}"}}
        {"type": "tool_use", "id": "toolu_1", "name": "bash__exec", "input": {}}
        {"id": "call_1", "name": "bash__exec", "args": {}}        (003 §6.2; toolCallId, toolName as well)

    Objects of the providers' Python packages are accepted too, and ``("bash__exec", {})``.

    Raises:
        ToolInputValidationError: ``raw`` is none of these. Mistakes of the model are its ``fault`` instead.
    """
    fields = _fields_of(raw)
    given_id, name, args = _call_fields(fields)
    is_openai, is_anthropic = isinstance(fields.get("function"), Mapping), fields.get("type") == "tool_use"
    answer = _to_openai if is_openai else _to_anthropic if is_anthropic else _to_message
    if name is None and answer is _to_message:
        raise _no_call(raw)
    call_id = given_id if isinstance(given_id, str) and given_id else f"call_{secrets.token_hex(6)}"
    call = ModelCall(call_id, "" if name is None and is_anthropic else name, args, answer)
    fault: ToolError | None = None
    if is_openai and isinstance(args, str):  # JSON text, or empty
        try:
            call = replace(call, args=serializer.decode(args) if args.strip() else {})
        except serializer.NotJsonError as error:
            fault = ToolInputValidationError(f"The arguments are not valid JSON: {error}.")
    elif fields.get("fault") and answer is _to_message:  # found when the answer was read
        fault = ToolInputValidationError(str(fields["fault"]))
    fault = fault or _fault_of(call, max_args_bytes)
    if fault is None:
        return call if call.args is not None else replace(call, args={})
    return ModelCall(_printable(call.id), _printable(call.name), {}, answer, fault)


def not_in_catalog(name: str, known: Iterable[str] = ()) -> ToolNotInCatalogError:
    """Return the error for a tool that is not in the catalog (003 §7.2); its tools are ``known``."""
    meant = closest(name, known)
    return ToolNotInCatalogError(
        f"Tool '{name}' is not available in the current Tool Catalog.",
        suggestion=f"Did you mean '{meant}'? {ToolNotInCatalogError.suggestion}" if meant else None,
    )


def _fields_of(raw: Any) -> Mapping[str, Any]:
    if type(raw) is dict:
        return raw
    if isinstance(raw, ToolCall):
        return {"id": raw.tool_call_id, "name": raw.tool_name, "args": raw.args}
    dump = getattr(raw, "model_dump", None)
    fields = dump() if callable(dump) else raw
    if isinstance(fields, tuple | list) and len(fields) == 2 and isinstance(fields[0], str):
        return {"name": fields[0], "args": fields[1]}
    if isinstance(fields, Mapping):
        return fields
    raise _no_call(raw)


def _no_call(raw: Any) -> ToolInputValidationError:
    return ToolInputValidationError(
        f"A tool call has a name and arguments, in the format of OpenAI, Anthropic or ours, not {raw!r:.200}."
    )


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if (value := fields.get(name)) is not None:
            return value
    return None


def _fault_of(call: ModelCall, max_args_bytes: int) -> ToolError | None:
    if not isinstance(call.name, str):
        return ToolInputValidationError(f"A tool's name is text, not {call.name!r:.200}.")
    if call.name in EVENT_TOOLS:
        return not_in_catalog(call.name)
    try:
        if not (call.id.isascii() and call.name.isascii()):
            serializer.encode([call.id, call.name])
        size = len(serializer.encode(call.args, serializer.DEEPEST))
    except serializer.NotJsonError as error:
        return ToolInputValidationError(f"The call is not valid JSON: {error}.")
    if size > max_args_bytes:
        return ToolInputValidationError(
            f"The arguments take {size} bytes; at most {max_args_bytes} are allowed."
        )
    return None


def _printable(value: Any) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def _to_openai(call: ModelCall, result: ToolCallResult) -> JsonObject:
    return {"role": "tool", "tool_call_id": call.id, "content": _text(result)}


def _to_anthropic(call: ModelCall, result: ToolCallResult) -> JsonObject:
    block: JsonObject = {"type": "tool_result", "tool_use_id": call.id, "content": _text(result)}
    return {**block, "is_error": True} if result.status == "error" else block


def _to_message(call: ModelCall, result: ToolCallResult) -> JsonObject:
    """Return a Message with the role tool (004, Message), whose data is an AI SDK CoreMessage.

    For a v1 tool this is a v1 message (002 §6.2).
    """
    if is_v1_name(result.tool_name):
        return tool_message(call.id, call.name, result)
    part = {"type": "tool-result", "toolCallId": call.id, "toolName": call.name, "output": _output(result)}
    return {  # as a Message writes it, in half the time
        "id": f"msg-{result.meta.id}",
        "data": {"role": "tool", "content": [part]},
        "metadata": {},
        "createdAt": result.meta.finished_at or iso_time(wall_clock()),
        "source": {"type": "tool", "toolCallId": call.id, "toolName": call.name},
    }


def _output(result: ToolCallResult) -> JsonObject:
    if _speaks_for_itself(result) and _is_typed(result.output):
        return dict(result.output)
    if _speaks_for_itself(result):
        return {"type": "text" if isinstance(result.output, str) else "json", "value": result.output}
    return {"type": "error-json" if result.status == "error" else "json", "value": _status_fields(result)}


def message_of(result: StepCallResult, turn_id: str) -> Message:
    """Return the Message with a call's result, whatever the format of the call."""
    wire = result.message
    if isinstance(wire.get("data"), Mapping):
        return Message.from_wire({**wire, "metadata": {"turnId": turn_id}})
    output = {"type": "error-json" if result.status == "error" else "json", "value": v1_output(result)}
    names = {"toolCallId": result.tool_call_id, "toolName": result.tool_name}
    return Message(
        id=f"msg-{result.meta.id}",
        data={"role": "tool", "content": [{"type": "tool-result", **names, "output": output}]},
        metadata={"turnId": turn_id},
        created_at=result.meta.finished_at or iso_time(wall_clock()),
        source={"type": "tool", **names},
    )


def told_images(output: Any) -> list[str | ToolImage] | None:
    """Return the texts and images of a ``tool-result`` part's output; ``None`` if it holds no image."""
    kind, value = _kind_and_value(output)
    return None if kind.startswith("error") else parts_of(value)


def told_text(output: Any) -> tuple[str, bool]:
    """Return a ``tool-result`` part's output, ``{type, value}``, as text, and whether it is an error.

    A note stands for each image.
    """
    kind, value = _kind_and_value(output)
    is_error = kind.startswith("error")
    error = value.get("error") if is_error and isinstance(value, Mapping) else None
    if isinstance(error, Mapping):
        lines = (f"{error.get('code')}: {error.get('message')}", error.get("suggestion"))
        return "\n".join(filter(None, lines)), True
    parts = None if is_error else parts_of(value)
    if parts is not None:
        return "\n".join(part if isinstance(part, str) else part.note for part in parts), False
    if kind == "content" and all(map(_is_text, value)):
        return "\n".join(part["text"] for part in value), False
    return value if isinstance(value, str) else serializer.encode(value).decode(), is_error


def _kind_and_value(output: Any) -> tuple[str, Any]:
    return (output["type"], output["value"]) if _is_typed(output) else ("", output)


def _is_text(part: Any) -> bool:
    is_text = isinstance(part, Mapping) and part.get("type") == "text"
    return is_text and isinstance(part.get("text"), str)


def _is_typed(output: Any) -> bool:
    """Return whether an output is already a ``tool-result`` part's, ``{type, value}``."""
    if not isinstance(output, Mapping) or output.keys() != {"type", "value"}:
        return False
    kind, value = output["type"], output["value"]
    if kind in ("text", "error-text"):
        return isinstance(value, str)
    return kind in ("json", "error-json") or (kind == "content" and isinstance(value, list))


def _text(result: ToolCallResult) -> str:
    """Return a result as text for the model: a text output as it is, anything else as JSON."""
    value = result.output if _speaks_for_itself(result) else _status_fields(result)
    return value if isinstance(value, str) else serializer.encode(value).decode()


def _speaks_for_itself(result: ToolCallResult) -> bool:
    """Return whether the model needs only the output: the call has succeeded with the model's arguments."""
    is_the_models = result.meta.edited is None or told_images(result.output) is not None
    return result.status == "ok" and is_the_models


def _status_fields(result: ToolCallResult) -> JsonObject:
    """Return the status of a call with its error or handle (003 §8.1, §8.3), and whether it was edited."""
    wire = result.to_wire()
    if result.meta.edited is not None:
        wire["edited"] = result.meta.edited.to_wire()
    if result.error is not None and wire.get("output") == error_output(result):
        del wire["output"]  # the error once more
    return {name: wire[name] for name in ("status", "output", "handle", "error", "edited") if name in wire}

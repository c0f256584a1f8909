"""The tool calls that a model makes, in its provider's shape or in ours, and the answers to them."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from broker_config import serializer
from goondan_tasks.agents.incoming_event import faults_of
from goondan_tasks.clocks import wall_clock
from goondan_tasks.error_in_output import error_output
from goondan_tasks.errors import ToolError, ToolInputValidationError, ToolNotInCatalogError
from goondan_tasks.messages import JsonObject, Message, ToolCall, ToolCallResult, iso_time
from goondan_tasks.names import EVENT_TOOLS, is_v1_name
from goondan_tasks.steps.llm_messages import source_fault, tool_message

#: the parts of a message's content that are calls: of Anthropic, and of ours
_CALL_PARTS = ("tool_use", "tool-call")

#: makes the answer to a call, as its model knows it, out of the result
Answer = Callable[["ModelCall", ToolCallResult], JsonObject]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One tool call, as the model has written it."""

    id: str
    #: the name by which the model called the tool
    name: str
    args: Any
    answer: Answer
    #: why it cannot be submitted: a model's mistake is answered, never raised
    fault: ToolError | None = None

    def message(self, result: ToolCallResult) -> JsonObject:
        """Return the result in the shape in which the model expects it back."""
        return self.answer(self, result)


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a model has answered at once, with its tool calls as it has written them."""

    calls: Sequence[Any]
    #: the content of its message, in order; each call stands as ``None``
    parts: Sequence[JsonObject | None]
    #: the Message that it was given in, if it was one of ours
    given: Message | None = None


def read_reply(given: Any) -> ModelReply:
    """Read a model's whole reply, or the list of its tool calls.

    A reply is the assistant's message of OpenAI's chat completions or of Anthropic's messages, as a dict or
    as an object of their Python packages, or a :class:`Message`, or one as the older version writes it.

    Raises:
        ToolInputValidationError: it is none of these, or not the assistant's.
    """
    if isinstance(given, Message):
        return replace(_reply_of(given.data), given=_with_known_source(given))
    dump = getattr(given, "model_dump", None)
    fields = dump() if callable(dump) else given
    if isinstance(fields, Mapping):
        return _whole_reply(fields)
    if isinstance(fields, str | bytes) or not isinstance(fields, Iterable):
        raise _no_reply(given)
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


def _reply_of(said: Mapping[str, Any]) -> ModelReply:
    role, content = said.get("role"), said.get("content")
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
        listed = said.get(name) or []
        if not isinstance(listed, list | tuple):
            raise ToolInputValidationError(f"A reply's {name} are a list, not {listed!r:.200}.")
        more += listed
    calls = [part for part in parts if part.get("type") in _CALL_PARTS] + more
    told = [None if part.get("type") in _CALL_PARTS else dict(part) for part in parts]
    return ModelReply(calls, told + [None] * len(more))


def _with_known_source(message: Message) -> Message:
    fault = source_fault(message.source)
    if fault:
        raise ToolInputValidationError(f"The Message is not valid: {fault}.")
    return message


def _no_reply(given: Any) -> ToolInputValidationError:
    return ToolInputValidationError(
        f"A Step runs a model's reply, or the list of its tool calls; this is no such thing: {given!r:.200}."
    )


def read_model_call(raw: Any, *, max_args_bytes: int) -> ModelCall:
    """Read a call of OpenAI's chat completions, Anthropic's messages, or our own.

    ::

        {"id": "call_1", "type": "function", "function": {"name": "bash__exec", "arguments": "{}"}}
        {"type": "tool_use", "id": "toolu_1", "name": "bash__exec", "input": {}}
        {"id": "call_1", "name": "bash__exec", "args": {}}        (003 §6.2; toolCallId, toolName as well)

    The objects of their Python packages are taken too, and ``("bash__exec", {})``.

    Raises:
        ToolInputValidationError: it is none of these. What a model gets wrong inside is ``fault`` instead.
    """
    fields = _fields_of(raw)
    function = fields.get("function")
    if isinstance(function, Mapping):
        call = _openai_call(fields, function)
    elif fields.get("type") == "tool_use":
        call = ModelCall(_id(fields.get("id")), fields.get("name", ""), fields.get("input"), _to_anthropic)
    else:
        call = _own_call(fields)
    fault = call.fault or _fault_of(call, max_args_bytes)
    if fault is None:
        return call if call.args is not None else replace(call, args={})
    return ModelCall(_printable(call.id), _printable(call.name), {}, call.answer, fault)


def not_in_catalog(name: str) -> ToolNotInCatalogError:
    """Return the refusal of a tool that a Step does not have (003 §7.2)."""
    return ToolNotInCatalogError(f"Tool '{name}' is not available in the current Tool Catalog.")


def _fields_of(raw: Any) -> Mapping[str, Any]:
    if isinstance(raw, ToolCall):
        return {"id": raw.tool_call_id, "name": raw.tool_name, "args": raw.args}
    dump = getattr(raw, "model_dump", None)
    fields = dump() if callable(dump) else raw
    if isinstance(fields, tuple | list) and len(fields) == 2 and isinstance(fields[0], str):
        return {"name": fields[0], "args": fields[1]}
    if isinstance(fields, Mapping):
        return fields
    raise _no_call(raw)


def _openai_call(fields: Mapping[str, Any], function: Mapping[str, Any]) -> ModelCall:
    call_id, name, text = _id(fields.get("id")), function.get("name", ""), function.get("arguments")
    try:
        args = _decoded(text)
    except serializer.NotJsonError as error:
        fault = ToolInputValidationError(f"The arguments are not valid JSON: {error}.")
        return ModelCall(call_id, name, {}, _to_openai, fault)
    return ModelCall(call_id, name, args, _to_openai)


def _decoded(arguments: Any) -> Any:
    """Return the arguments that OpenAI sends as text, or leaves empty."""
    if not isinstance(arguments, str):
        return arguments
    return serializer.decode(arguments) if arguments.strip() else {}


def _own_call(fields: Mapping[str, Any]) -> ModelCall:
    name = _first(fields, "toolName", "tool_name", "name")
    if name is None:
        raise _no_call(fields)
    call_id = _id(_first(fields, "toolCallId", "tool_call_id", "id"))
    return ModelCall(call_id, name, _first(fields, "args", "arguments", "input"), _to_message)


def _no_call(raw: Any) -> ToolInputValidationError:
    return ToolInputValidationError(
        f"A tool call has a name, and arguments, as OpenAI, Anthropic or we write it, not {raw!r:.200}."
    )


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _id(given: Any) -> str:
    return given if isinstance(given, str) and given else f"call_{secrets.token_hex(6)}"


def _fault_of(call: ModelCall, max_args_bytes: int) -> ToolError | None:
    if not isinstance(call.name, str):
        return ToolInputValidationError(f"A tool's name is text, not {call.name!r:.200}.")
    if call.name in EVENT_TOOLS:
        return not_in_catalog(call.name)
    try:
        serializer.encode([call.id, call.name])
        size = len(serializer.encode(call.args))
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
    """Return a Message of the role tool (004, Message), whose data is what the AI SDK calls a CoreMessage.

    A tool of the older version has its own form of it (002 §6.2).
    """
    if is_v1_name(result.tool_name):
        return tool_message(call.id, call.name, result)
    part = {"type": "tool-result", "toolCallId": call.id, "toolName": call.name, "output": _output(result)}
    message = Message(
        id=f"msg-{result.meta.id}",
        data={"role": "tool", "content": [part]},
        created_at=result.meta.finished_at or iso_time(wall_clock()),
        source={"type": "tool", "toolCallId": call.id, "toolName": call.name},
    )
    return message.to_wire()


def _output(result: ToolCallResult) -> JsonObject:
    if result.status == "ok" and _is_typed(result.output):
        return dict(result.output)
    if result.status == "ok":
        return {"type": "text" if isinstance(result.output, str) else "json", "value": result.output}
    return {"type": "error-json" if result.status == "error" else "json", "value": _told(result)}


def _is_typed(output: Any) -> bool:
    """Say whether a tool has written its output as a Message has it: ``{type, value}``."""
    if not isinstance(output, Mapping) or output.keys() != {"type", "value"}:
        return False
    kind, value = output["type"], output["value"]
    if kind in ("text", "error-text"):
        return isinstance(value, str)
    return kind in ("json", "error-json") or (kind == "content" and isinstance(value, list))


def _text(result: ToolCallResult) -> str:
    """Return what the model reads: the output, text as it is, or how the call stands, as JSON."""
    value = result.output if result.status == "ok" else _told(result)
    return value if isinstance(value, str) else serializer.encode(value).decode()


def _told(result: ToolCallResult) -> JsonObject:
    """Return status and error, or handle, of a call that has not ended well (003 §8.1, §8.3)."""
    wire = result.to_wire()
    if result.error is not None and wire.get("output") == error_output(result):
        del wire["output"]  # the error is said once
    return {name: wire[name] for name in ("status", "output", "handle", "error") if name in wire}

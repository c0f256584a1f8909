"""The contexts of middlewares in a host: what the host is sent, and what it changes (003 §6.3; 002 §5.3).

Fields that identify a call, a Step or a Turn are sent once; of the others only changes are sent, each time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from goondan_tasks.authoring.extension_api import StepContext, StepResult, ToolCallContext, TurnContext
from goondan_tasks.authoring.v1_api import (
    StepPipelineContext,
    ToolCall,
    ToolCallExecContext,
    ToolError,
    ToolResult,
    TurnPipelineContext,
)
from goondan_tasks.contract.call_fields import META_TEXTS
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.errors import ToolError as DefaultError
from goondan_tasks.contract.messages import JsonObject, ToolCallResult, faults_of
from workers.javascript.v1_context import plain

_IDS = ("agent_name", "instance_key", "turn_id", "trace_id")
_OLDER = ("instance", "swarm", "agent", "turn", "effective_config")
#: of each context: the fields that never change, and those that a middleware may change
_FIELDS: Mapping[type, tuple[tuple[str, ...], tuple[str, ...]]] = {
    ToolCallContext: (("tool_name", "tool_call_id", *_IDS, "step_id", "message"), ("args", "metadata")),
    StepContext: (
        (*_IDS, "step_id", "step_index", "message", "auth", "origin"),
        ("tool_catalog", "blocks", "metadata", "conversation_state"),
    ),
    TurnContext: ((*_IDS, "event", "auth", "origin"), ("metadata", "conversation_state")),
    ToolCallExecContext: (
        ("turn", "step", "effective_config", "tool_catalog"),
        ("tool_call", "tool_result", "metadata"),
    ),
    StepPipelineContext: ((*_OLDER, "step", "tool_results"), ("tool_catalog", "blocks", "metadata")),
    TurnPipelineContext: ((*_OLDER, "event"), ("result", "metadata")),
}
_STATUS = {"ok", "error", "pending"}


def _fields(ctx: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return next(fields for kind, fields in _FIELDS.items() if isinstance(ctx, kind))


def data_of(ctx: Any) -> JsonObject:
    """Return the fields of a context that never change."""
    return {
        to_camel(name): told(value) for name in _fields(ctx)[0] if (value := getattr(ctx, name)) is not None
    }


def state_of(ctx: Any) -> JsonObject:
    """Return the fields of a context that a middleware may change."""
    return {to_camel(name): told(getattr(ctx, name)) for name in _fields(ctx)[1]}


def told(value: Any) -> Any:
    """Return a value of a context, or a result, as JSON with the specification's names."""
    if isinstance(value, ToolCallResult):
        return value.to_wire()  # with an output that is null
    if isinstance(value, Conversation):
        return {
            "baseMessages": plain(list(value.base_messages)),
            "events": plain(list(value.events)),
            "nextMessages": plain(value.next_messages),
            "isTooLong": value.is_too_long,
        }
    return plain(value)


def with_exact_integers(value: Any, sent: Callable[[], Any]) -> Any:
    """Return a value from a host with the integers that JavaScript has read as other numbers restored.

    ``sent`` returns what the host was sent; it is called only if there may be such integers.

    Raises:
        ValueError: two integers of it are the same number in JavaScript.
    """
    if not any(_integers(value)):
        return value
    exact: dict[float, set[int]] = {}
    for number in _integers(sent()):
        exact.setdefault(float(number), set()).add(number)

    def restored(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: restored(one) for name, one in part.items()}
        if isinstance(part, list):
            return [restored(one) for one in part]
        if not _is_inexact(part):
            return part
        meant = exact.get(float(part), {part})
        if len(meant) > 1:
            raise ValueError(f"{sorted(meant)} are the same number in JavaScript: pass them as text")
        return next(iter(meant))

    return restored(value)


def _integers(value: Any) -> Iterator[int]:
    """Yield the integers that JavaScript reads as other numbers."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _integers(part)
    elif _is_inexact(value):
        yield value


def _is_inexact(value: Any) -> bool:
    return type(value) is int and 2**53 <= abs(value) < 10**21


def take_over(ctx: Any, changes: JsonObject) -> None:
    """Apply to a context the changes that a middleware made in the host.

    Raises:
        ValueError: a value is not valid.
    """
    for name, change in changes.items():
        before = "conversationState" if name == "messageEvents" else name
        value = with_exact_integers(change, lambda: state_of(ctx).get(before))  # noqa: B023 - called at once
        match name:
            case "toolCatalog":
                ctx.tool_catalog = _tool_catalog(ctx, value)
            case "toolCall":
                given: Any = _of(value, "toolCall").get
                ctx.tool_call = ToolCall(given("id"), given("name"), given("arguments"))
            case "toolResult":
                ctx.tool_result = None if value is None else _older_result(_of(value, "toolResult"))
            case "messageEvents":
                for event in value:
                    ctx.emit_message_event(event)
            case "args" | "blocks" | "metadata" | "result":
                setattr(ctx, name, value)
            case _:
                raise ValueError(f"ctx.{name} cannot be changed")


def _tool_catalog(ctx: Any, value: Any) -> Any:
    if not isinstance(value, list):
        return value  # the core reports the error
    known = [(told(item), item) for item in ctx.tool_catalog]
    return [_item(ctx, item, known) for item in value]


def _item(ctx: Any, item: Any, known: Iterable[tuple[Any, Any]]) -> Any:
    """Return the known item that ``item`` shows; a new one as it is."""
    same = next((one for shown, one in known if shown == item), None)
    if same is not None or not isinstance(item, dict):
        return item if same is None else same
    left_out = {"tool", "export"} if isinstance(ctx, StepPipelineContext) else set()
    return {name: value for name, value in item.items() if name not in left_out}


def _older_result(value: JsonObject) -> ToolResult:
    error = value.get("error")
    if error is not None:
        given = _of(error, "toolResult.error")
        error = ToolError(str(given.get("message", "")), given.get("name"), given.get("code"))
    return ToolResult(value.get("status", "ok"), value.get("output"), value.get("handle"), error)


def _of(value: Any, name: str) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError(f"ctx.{name} is an object, not {value!r:.200}")
    return value


def answer_of(ctx: Any, value: Any, result: Any) -> Any:
    """Return the value of a middleware in a host; ``result`` is what its ``next()`` returned.

    An object with the fields of a result becomes one; ``result`` supplies the ``meta`` that it lacks.

    Raises:
        ValueError: the object is not a valid result.
    """
    if not isinstance(value, dict):
        return value
    value = with_exact_integers(value, lambda: told(result))
    if isinstance(ctx, ToolCallExecContext) and value.get("status") in _STATUS:
        return _older_result(value)
    if isinstance(ctx, ToolCallContext) and value.get("status") in _STATUS and "toolCallId" in value:
        return _result(value, result)
    if isinstance(ctx, StepContext) and {"toolCalls", "toolResults"} <= value.keys():
        results = tuple(_result(one, None) for one in value["toolResults"])
        return StepResult(tuple(value["toolCalls"]), results, value.get("metadata") or {})
    return value


def _result(value: JsonObject, before: Any) -> ToolCallResult:
    kept = before.to_wire() if isinstance(before, ToolCallResult) else {}
    error = value.get("error")
    if isinstance(error, dict):
        error = {"code": DefaultError.code, "name": DefaultError.__name__, **error}
    # the executor fills in the empty fields
    meta = value.get("meta") or kept.get("meta") or dict.fromkeys(("id", *META_TEXTS), "")
    try:
        return ToolCallResult.from_wire({**value, "error": error, "meta": meta})
    except ValidationError as invalid:
        raise ValueError(f"not a result: {faults_of(invalid)}") from invalid

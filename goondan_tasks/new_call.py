"""A ToolCall with everything filled in that the producer left out (DESIGN "Records")."""

import uuid
from collections.abc import Mapping
from typing import Any, TypedDict

from goondan_tasks.messages import JsonObject, Message, ToolCall
from goondan_tasks.names import call_identity


class CallFields(TypedDict, total=False):
    """What a producer may say about a call beyond agent, tool and arguments."""

    instance_key: str | None
    turn_id: str | None
    step_id: str | None
    tool_call_id: str | None
    message: Message | JsonObject | None
    auth: JsonObject | None
    origin: JsonObject | None
    correlation_id: str | None
    idempotency_key: str | None
    timeout_seconds: float | None


def new_call(agent_name: str, tool_name: str, args: Any, fields: Mapping[str, Any]) -> ToolCall:
    """Make a call; ``fields`` are :class:`CallFields` or a record's, snake_case or camelCase.

    Raises:
        pydantic.ValidationError: a field has the wrong type.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    call_id = given.pop("toolCallId", None) or given.pop("tool_call_id", None)
    turn_id = given.pop("turnId", None) or given.pop("turn_id", None)
    if turn_id is None:
        turn_id = f"turn-{call_id or uuid.uuid4().hex[:12]}"
    trace_id = given.pop("traceId", None) or given.pop("trace_id", None) or uuid.uuid4().hex
    values = {
        "correlationId": given.pop("correlation_id", None) or trace_id,
        "spanId": uuid.uuid4().hex[:16],
        **given,
        "agentName": agent_name,
        "toolName": tool_name,
        "args": {} if args is None else args,
        "toolCallId": call_id or f"call_{uuid.uuid4().hex[:12]}",
        "turnId": turn_id,
        "traceId": trace_id,
    }
    return ToolCall.from_wire(values)


def call_from_wire(wire: Mapping[str, Any]) -> ToolCall:
    """Read a call's wire fields, of which only ``agentName`` and ``toolName`` must be there."""
    fields = dict(wire)
    agent = fields.pop("agentName", fields.pop("agent_name", ""))
    tool = fields.pop("toolName", fields.pop("tool_name", ""))
    spellings = [fields.pop(name, None) for name in ("args", "arguments", "input")]
    args = next((value for value in spellings if value is not None), None)
    return new_call(agent, tool, args, fields)


def identity_of(call: ToolCall) -> str:
    """Return the identity of a call: its Celery task id and its key in the ledger."""
    return call_identity(call.agent_name, call.instance_key, call.turn_id, call.tool_call_id)

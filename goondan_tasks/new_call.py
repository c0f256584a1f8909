"""A ToolCall with everything filled in that the producer left out (DESIGN "Records")."""

import functools
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from broker_config import serializer
from broker_config.value_faults import fault_text
from goondan_tasks.current_span import current_span
from goondan_tasks.errors import PayloadTooLargeError
from goondan_tasks.messages import LONGEST_INSTANCE_KEY, JsonObject, Message, ToolCall
from goondan_tasks.names import call_identity
from goondan_tasks.steps.llm_messages import message_fault

#: what ``auth`` may take as JSON, and ``origin``: both go with every call of a Turn, and are kept with it
MAX_CONTEXT_BYTES = 65_536

_to_camel = functools.lru_cache(to_camel)


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


class Draft(NamedTuple):
    """What was asked for: the call as far as it can be read, and what is wrong with it."""

    call: ToolCall
    fault: str = ""


def new_call(agent_name: str, tool_name: str, args: Any, fields: Mapping[str, Any]) -> ToolCall:
    """Make a call; ``fields`` are :class:`CallFields` or a record's, snake_case or camelCase.

    Raises:
        pydantic.ValidationError: a field has the wrong type or value.
    """
    wire = {"agentName": agent_name, "toolName": tool_name, "args": args}
    return _completed({**_camel_case(fields), **wire})


def draft_call(wire: Mapping[str, Any]) -> Draft:
    """Read a call's wire fields as far as they are right; what is missing is filled in."""
    fields = _camel_case(wire)
    if "arguments" in fields or "input" in fields:
        spellings = [fields.pop(name, None) for name in ("args", "arguments", "input")]
        fields["args"] = next((value for value in spellings if value is not None), None)
    try:
        return _with_message_checked(_completed(fields))
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False)
        wrong = {fault["loc"][0] for fault in faults}
        right = {name: value for name, value in fields.items() if name not in wrong}
        named = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault_text(fault)}" for fault in faults)
        return Draft(_completed(right), f"The call is not valid: {named}.")


def require_sizes(call: ToolCall, args_bytes: float, max_args_bytes: int) -> None:
    """Refuse a call, or an event, of which a part is larger than its limit.

    Raises:
        PayloadTooLargeError: the arguments, the instance's key, ``auth`` or ``origin`` is.
        NotJsonError: ``auth`` or ``origin`` has no JSON form.
    """
    if args_bytes > max_args_bytes:
        raise PayloadTooLargeError(
            f"The arguments of {call.tool_name!r} take {args_bytes} bytes; "
            f"at most {max_args_bytes} are allowed."
        )
    if len(call.instance_key) > LONGEST_INSTANCE_KEY:
        raise PayloadTooLargeError(
            f"The instance key has {len(call.instance_key)} characters; "
            f"at most {LONGEST_INSTANCE_KEY} are allowed.",
            suggestion="Use a short name of the conversation or job, or a digest of the long one.",
        )
    for name, value in (("auth", call.auth), ("origin", call.origin)):
        size = 0 if value is None else len(serializer.encode(value))
        if size > MAX_CONTEXT_BYTES:
            raise PayloadTooLargeError(
                f"The call's `{name}` takes {size} bytes; at most {MAX_CONTEXT_BYTES} are allowed.",
                suggestion="It goes with every call of the Turn: put large data into the arguments, "
                "or into a file of the instance's workdir.",
            )


def _with_message_checked(call: ToolCall) -> Draft:
    fault = "" if call.message is None else message_fault(call.message, call.shown_id)
    if not fault:
        return Draft(call)
    return Draft(call.model_copy(update={"message": None}), f"The call is not valid: message: {fault}.")


def _completed(fields: Mapping[str, Any]) -> ToolCall:
    """Fill in what is missing; randomness costs a system call, so there is one for all ids."""
    given = {name: value for name, value in fields.items() if value is not None}
    random, here = secrets.token_hex(36), current_span()
    trace_id = given.get("traceId") or (random[:32] if here is None else here.trace_id)
    missing: JsonObject = {
        "agentName": "",
        "toolName": "",
        "args": {},
        "correlationId": trace_id,
        "spanId": random[32:48],
        "turnId": f"turn-{given.get('toolCallId') or random[48:60]}",
        "toolCallId": f"call_{random[60:]}",
    }
    return ToolCall.from_wire({**missing, **given, "traceId": trace_id})


def _camel_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_to_camel(name) if "_" in name else name: value for name, value in fields.items()}


def identity_of(call: ToolCall) -> str:
    """Return the identity of a call: its Celery task id and its key in the ledger."""
    return call_identity(call.agent_name, call.instance_key, call.turn_id, call.tool_call_id)

"""What an agent is given to handle: the event that a message carries, or that an answer becomes."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from broker_config.value_faults import fault_text
from goondan_tasks.agents.events import ANSWER_METADATA, AgentEvent, Answer, EventSource
from goondan_tasks.errors import HandoffTimeoutError, ToolInputValidationError
from goondan_tasks.messages import JsonObject, ToolCall, iso_time
from goondan_tasks.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL, OUTSIDE

Record = TypeVar("Record", AgentEvent, Answer)


def event_of(call: ToolCall, now_ms: float) -> AgentEvent:
    """Return the event that an agent is to handle; an answer becomes one, too.

    Raises:
        ToolInputValidationError: what came cannot be read.
    """
    payload = call.args.get("payload")
    if not isinstance(payload, Mapping):
        raise ToolInputValidationError("The message has no `payload` object.")
    if call.tool_name == DELEGATE_RESULT_TOOL:
        return _answer_event(call, _read(Answer, payload))
    asker = call.args.get("from") or OUTSIDE
    return read_event(
        {
            "id": call.tool_call_id,
            "type": "agent.request" if call.tool_name == DELEGATE_TOOL else "agent.send",
            "createdAt": iso_time(now_ms),
            "source": {"kind": "connector" if asker == OUTSIDE else "agent", "name": asker},
            **{name: value for name, value in payload.items() if value is not None},
            "traceId": call.trace_id,
            "instanceKey": call.instance_key,
            "auth": call.auth,
        }
    )


def _answer_event(call: ToolCall, answer: Answer) -> AgentEvent:
    """Return the event of an answer: type ``response`` or ``error_response`` (goondan shared-types §8.5)."""
    error = answer.error or {}
    is_ok = answer.status == "ok"
    answered_at = answer.answered_at or iso_time(0)
    about: JsonObject = {
        "kind": "inter_agent_response",
        "version": 1,
        "requestId": call.correlation_id,
        "requestEventId": answer.event_id,
        "responseEventId": call.tool_call_id,
        "fromAgentId": call.args.get("from"),
        "toAgentId": call.agent_name,
        "async": True,
        "status": _status(answer),
        "receivedAt": answered_at,
        "traceId": call.trace_id,
        "requestEventType": answer.event_type,
        "requestMetadata": answer.metadata,
        "errorCode": error.get("code"),
        "errorMessage": error.get("message"),
    }
    metadata = {
        "inReplyTo": call.correlation_id,
        "errorCode": error.get("code"),
        "errorMessage": error.get("message"),
        ANSWER_METADATA: {name: value for name, value in about.items() if value is not None},
    }
    return AgentEvent(
        id=call.tool_call_id,
        type="response" if is_ok else "error_response",
        created_at=answered_at,
        trace_id=call.trace_id,
        instance_key=call.instance_key,
        input=answer.response if is_ok else None,
        metadata={name: value for name, value in metadata.items() if value is not None},
        source=EventSource(kind="agent", name=call.args.get("from") or OUTSIDE),
        auth=call.auth,
    )


def _status(answer: Answer) -> str:
    if answer.status == "ok":
        return "ok"
    code = (answer.error or {}).get("code")
    return "timeout" if code == HandoffTimeoutError.code else "error"


def read_event(fields: JsonObject) -> AgentEvent:
    """Read an event from its wire fields.

    Raises:
        ToolInputValidationError: it is none.
    """
    return _read(AgentEvent, fields)


def _read(kind: type[Record], fields: Mapping[str, Any]) -> Record:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ToolInputValidationError(f"The event is not valid: {faults_of(error)}.") from error


def faults_of(error: ValidationError) -> str:
    """Say in one line what is wrong, and where."""
    faults = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault_text(fault)}" for fault in faults)

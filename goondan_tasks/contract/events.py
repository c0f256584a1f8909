"""Events as calls in the ledger, and the IpcMessages that carry them.

Handling an event is a run like any other: claimed, fenced, swept, cancelled, traced. So the ledger knows only
:class:`ToolCall`, and this module converts between events and calls.
"""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from broker_config.queues import DELEGATE_RESULT_TASK, DELEGATE_TASK, EVENT_TASK, call_queue, events_queue
from goondan_tasks.contract.errors import HandoffTimeoutError, ToolInputValidationError
from goondan_tasks.contract.messages import (
    ANSWER_METADATA,
    AgentEvent,
    EventSource,
    HandoffAnswer,
    IpcMessage,
    JsonObject,
    MessageType,
    ToolCall,
    ToolCallResult,
    faults_of,
    iso_time,
)
from goondan_tasks.contract.names import (
    DELEGATE_RESULT_TOOL,
    DELEGATE_TOOL,
    EVENT_TOOL,
    EVENT_TOOLS,
    OUTSIDE,
    call_identity,
    is_agent_name,
)
from goondan_tasks.contract.wording import member

#: the tasks that carry events
EVENT_TASKS = frozenset({DELEGATE_TASK, DELEGATE_RESULT_TASK, EVENT_TASK})

_TOOLS: dict[MessageType, str] = {
    "delegate": DELEGATE_TOOL,
    "delegate_result": DELEGATE_RESULT_TOOL,
    "event": EVENT_TOOL,
}
_TYPES = {tool: message_type for message_type, tool in _TOOLS.items()}
_TASKS = {DELEGATE_TOOL: DELEGATE_TASK, DELEGATE_RESULT_TOOL: DELEGATE_RESULT_TASK, EVENT_TOOL: EVENT_TASK}
TOOL_OF_TASK = {task: tool for tool, task in _TASKS.items()}

#: the type of the event about a completed call
EVENT_TYPE = "toolCall.completed"

Record = TypeVar("Record", AgentEvent, HandoffAnswer)
#: the source of the system's own events
SYSTEM = EventSource(kind="connector", name="goondan")

#: the instance of calls and events that name none
DEFAULT_INSTANCE = "default"

#: the fields of both records
_SHARED = IpcMessage.model_fields.keys() & ToolCall.model_fields.keys()


def is_event(call: ToolCall) -> bool:
    """Return whether a call handles an event."""
    return call.tool_name in EVENT_TOOLS


def handling_agent(call: ToolCall) -> str | None:
    """Return ``agent@instance`` if ``call`` handles an event; ``None`` for a tool call."""
    return f"{call.agent_name}@{call.instance_key}" if is_event(call) else None


def queue_of(call: ToolCall) -> str:
    """Return the queue of a call's message: its agent's queue for tool calls or for events."""
    return events_queue(call.agent_name) if is_event(call) else call_queue(call.agent_name)


def mailbox_of(call: ToolCall) -> str:
    """Return the name of an event's mailbox (``mailboxes.lua``)."""
    return mailbox_name(call.agent_name, call.instance_key)


def mailbox_name(agent: str, instance_key: str) -> str:
    """Return the name of an instance's mailbox: ``agent@instance``, with the instance percent-encoded."""
    return f"{agent}@{quote(instance_key, safe='', errors='backslashreplace')}"


def task_of(call: ToolCall) -> str:
    return _TASKS[call.tool_name]


def message_of(call: ToolCall) -> IpcMessage:
    """Return the message that carries an event.

    Raises:
        pydantic.ValidationError: the call's arguments are not those of an event.
    """
    return IpcMessage.model_validate(
        {
            **{name: getattr(call, name) for name in _SHARED},
            **(call.args if isinstance(call.args, Mapping) else {}),
            "type": _TYPES[call.tool_name],
            "to": call.agent_name,
            "toInstanceKey": call.instance_key,
        }
    )


def call_fields(message: IpcMessage) -> JsonObject:
    """Return the wire fields of the call that handles a message, without empty ones.

    Raises:
        KeyError: messages of this type are not for agents.
    """
    payload_id = message.payload.get("id") or message.payload.get("eventId")
    fields = {
        **message.model_dump(by_alias=True, include=_SHARED),
        "toolName": _TOOLS[message.type],
        "toolCallId": payload_id if isinstance(payload_id, str) else None,
        "agentName": message.to,
        "instanceKey": message.payload.get("instanceKey")
        if message.to_instance_key is None
        else message.to_instance_key,
        "auth": message.payload.get("auth") if message.auth is None else message.auth,
        "args": event_args(
            message.from_agent, message.from_instance_key, message.payload, awaited=message.awaited
        ),
    }
    return {name: value for name, value in fields.items() if value is not None}


def event_args(sender: str, instance_key: str | None, payload: JsonObject, *, awaited: bool) -> JsonObject:
    return {"from": sender, "fromInstanceKey": instance_key, "payload": payload, "awaited": awaited}


def system_event(event: AgentEvent, agent: str, **fields: Any) -> ToolCall:
    """Return the call that delivers an event of the system to an agent.

    ``fields`` are more fields of the call, such as its correlationId and its parent.
    """
    instance, turn_id = event.instance_key or DEFAULT_INSTANCE, f"turn-{event.id}"
    identity = call_identity(agent, instance, turn_id, event.id)
    return ToolCall(
        tool_call_id=event.id,
        tool_name=EVENT_TOOL,
        agent_name=agent,
        instance_key=instance,
        turn_id=turn_id,
        args=event_args(OUTSIDE, None, event.to_wire(), awaited=False),
        trace_id=event.trace_id or "",
        span_id=identity.replace("-", "")[16:],
        auth=event.auth,
        **fields,
    )


def content_of(call: ToolCall) -> Any:
    """Return the content that an event submitted again must repeat: all but its time and trace."""
    payload = call.args.get("payload")
    if not isinstance(payload, Mapping):
        return call.args
    content = {name: value for name, value in payload.items() if name not in {"createdAt", "traceId"}}
    return {**call.args, "payload": content}


def answer_to(call: ToolCall, result: ToolCallResult) -> ToolCall | None:
    """Return the ``delegate_result`` with a request's outcome for the asker; ``None`` if no agent asked."""
    asker, instance = call.args.get("from"), call.args.get("fromInstanceKey")
    if call.tool_name != DELEGATE_TOOL or asker == OUTSIDE or not is_agent_name(asker or ""):
        return None
    event = call.args["payload"]
    answer = HandoffAnswer(
        event_id=call.tool_call_id,
        status="ok" if result.status == "ok" else "error",
        response=result.output,
        error=None if result.error is None else result.error.to_wire(),
        event_type=event.get("type"),
        metadata=event.get("metadata"),
        answered_at=result.meta.finished_at,
    )
    answer_id = f"answer-{call.tool_call_id}"
    return ToolCall(
        tool_call_id=answer_id,
        tool_name=DELEGATE_RESULT_TOOL,
        agent_name=asker,
        instance_key=instance or call.instance_key,
        turn_id=f"answer-to-{result.meta.id}",  # events with the same id may have gone to many agents
        args=event_args(
            call.agent_name, call.instance_key, answer.to_wire(), awaited=bool(call.args.get("awaited"))
        ),
        trace_id=call.trace_id,
        span_id=result.meta.id.replace("-", "")[:16],
        correlation_id=call.correlation_id,
        auth=call.auth,
        origin=call.origin,
        call_chain=call.call_chain[:-1],
        waiting=0,
        parent_id=result.meta.id,
        root_id=call.root_id or result.meta.id,
        parent_span_id=call.span_id,
        trace_context=call.trace_context,
    )


def sender_of(call: Mapping[str, Any]) -> str:
    """Return who has passed work with an event, given its wire record; empty for answers.

    It is an agent, or :data:`OUTSIDE`: a client, a Connection or the system.
    """
    if call.get("toolName") == DELEGATE_RESULT_TOOL:
        return ""
    sender = member(call.get("args"), "from")
    return sender if isinstance(sender, str) and is_agent_name(sender) else OUTSIDE


def event_of(call: ToolCall, now_ms: float) -> AgentEvent:
    """Return the event that an agent handles; answers become events too.

    Raises:
        ToolInputValidationError: the payload cannot be read.
    """
    payload = call.args.get("payload")
    if not isinstance(payload, Mapping):
        raise ToolInputValidationError("The message has no `payload` object.")
    if call.tool_name == DELEGATE_RESULT_TOOL:
        return _answer_event(call, _read(HandoffAnswer, payload))
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


def _answer_event(call: ToolCall, answer: HandoffAnswer) -> AgentEvent:
    """Return an answer as an event: ``response`` or ``error_response`` (goondan shared-types §8.5)."""
    error = answer.error or {}
    is_ok = answer.status == "ok"
    is_timeout = not is_ok and error.get("code") == HandoffTimeoutError.code
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
        "status": "timeout" if is_timeout else answer.status,
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


def read_event(fields: JsonObject) -> AgentEvent:
    """Read an event from its wire fields.

    Raises:
        ToolInputValidationError: the fields are not those of an event.
    """
    return _read(AgentEvent, fields)


def _read(kind: type[Record], fields: Mapping[str, Any]) -> Record:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ToolInputValidationError(f"The event is not valid: {faults_of(error)}.") from error


def completion_id(call: ToolCall, call_id: str) -> str:
    """Return the identity of the event about the completion of a pending call."""
    event_id = f"completed-{call_id}"
    return call_identity(call.agent_name, call.instance_key, f"turn-{event_id}", event_id)


def completed_event(call: ToolCall, result: ToolCallResult) -> ToolCall:
    """Return the event about a completed call, for its instance, with its correlationId and auth."""
    call_id, edited = result.meta.id, call.edited_arguments
    event = AgentEvent(
        id=f"completed-{call_id}",
        type=EVENT_TYPE,
        created_at=result.meta.finished_at or "",
        trace_id=call.trace_id,
        input={
            "toolCallId": result.tool_call_id,
            "toolName": result.tool_name,
            "id": call_id,
            # a call that waited for an approval has no handle but its id
            "handle": result.handle or call_id,
            "status": result.status,
            **({"error": result.error.to_wire()} if result.error else {"output": result.output}),
            **({} if edited is None else {"edited": edited.to_wire()}),
        },
        instance_key=call.instance_key,
        source=SYSTEM,
        auth=call.auth,
    )
    return system_event(
        event,
        call.agent_name,
        correlation_id=call.correlation_id,
        origin=call.origin,
        call_chain=call.call_chain,
        waiting=0,
        parent_id=call_id,
        root_id=call.root_id or call_id,
        parent_span_id=call.span_id,
        trace_context=call.trace_context,
    )

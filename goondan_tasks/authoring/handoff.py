"""Handing work to an agent: the event, its call, and the answer.

Sources: 001 §12.6, 003 §9, 004 AgentToolRuntime; DESIGN §4 (IpcMessage) and §6 (cycles and depth).
"""

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from broker_config.settings import Settings
from goondan_tasks.authoring.tool_api import EventLike, RequestResult, SendResult
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.errors import (
    HandoffCycleError,
    HandoffDepthError,
    HandoffError,
    HandoffTimeoutError,
    ToolInputValidationError,
)
from goondan_tasks.contract.events import DEFAULT_INSTANCE, event_args, read_event
from goondan_tasks.contract.messages import (
    ANSWER_METADATA,
    LONGEST_RUN_SECONDS,
    AgentEvent,
    JsonObject,
    ToolCall,
    ToolCallError,
    ToolCallResult,
    epoch_milliseconds,
    faults_of,
    iso_time,
    wall_clock,
)
from goondan_tasks.contract.moments import Moment
from goondan_tasks.contract.names import DELEGATE_TOOL, EVENT_TOOL, OUTSIDE, call_identity, current_span
from goondan_tasks.contract.schema import ArgumentSchema, SchemaError, compile_schema
from goondan_tasks.contract.wording import closest, require_keywords, written

_EVENT_FIELDS = frozenset(to_camel(name) for name in AgentEvent.model_fields)

#: the types of events that only the system sends: models and entries take what these say for its word
SYSTEM_EVENT_TYPES = frozenset(
    {"response", "error_response", "toolCall.completed", "auth.granted", "swarmBundle.revisionChanged"}
)

#: returns the id of a request or event, given its content
NewId = Callable[[Any], str]


def random_id(_: Any) -> str:
    return uuid.uuid4().hex


#: made once: ``json.dumps`` with options makes an encoder for every call
_sorted_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=repr).encode


class RepeatableIds:
    """Ids for the requests of one run; a retry of the run makes the same ids.

    So a retry does not repeat requests that the run made before its worker died.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seen: Counter[str] = Counter()

    def __call__(self, content: Any) -> str:
        """Return the id of a request; repeated content gets a new id."""
        text = _sorted_json(content)
        digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
        self._seen[digest] += 1
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{self._run_id} {digest} {self._seen[digest]}").hex


@dataclass(frozen=True, slots=True)
class Asker:
    """The agent instance, or client, that hands work over, with the context to pass on."""

    name: str
    instance_key: str
    new_id: NewId
    #: the call or event that the asker is handling, and its identity
    call_id: str | None = None
    call: ToolCall | None = None
    auth: JsonObject | None = None
    origin: JsonObject | None = None
    trace_id: str | None = None

    @property
    def is_agent(self) -> bool:
        """Whether the asker has a mailbox for answers."""
        return self.name != OUTSIDE

    @property
    def chain(self) -> tuple[str, ...]:
        """The agents that led to the asker's requests; the asker is the last."""
        callers = self.call.call_chain if self.call else ()
        return (*callers, f"{self.name}@{self.instance_key}") if self.is_agent else callers

    @property
    def waiting(self) -> int:
        """How many agents of the chain wait while the asker waits for its request."""
        return (_waiting(self.call) if self.call else 0) + self.is_agent

    @classmethod
    def of(cls, call_id: str, call: ToolCall, new_id: NewId) -> "Asker":
        """Return the agent on whose behalf a call runs, or which handles an event."""
        return cls(
            name=call.agent_name,
            instance_key=call.instance_key,
            new_id=new_id,
            call_id=call_id,
            call=call,
            auth=call.auth,
            origin=call.origin,
            trace_id=call.trace_id,
        )


@dataclass(frozen=True, slots=True)
class Handoff:
    """One piece of work for an agent."""

    target: str
    event: EventLike
    #: whether an answer is expected
    is_request: bool = True
    #: whether the asker blocks until the answer arrives
    is_awaited: bool = True
    #: limits both the wait in the mailbox and the handling; ``None``: the defaults
    timeout_ms: float | None = None
    #: the JSON Schema of the answer; ``None``: the event's, if it has one
    output_schema: JsonObject | None = None
    #: ISO 8601; the event takes its place in the mailbox at this time
    not_before: str | None = None
    #: for how many seconds after its end the events of the Turn are kept
    keep: float | None = None


def handoff_call(asker: Asker, handoff: Handoff, *, most_hops: int, now_ms: float) -> ToolCall:
    """Return the call that hands the work over.

    Raises:
        ToolInputValidationError: the event, or its outputSchema, is not valid.
        HandoffCycleError: the agent already waits for this request.
        HandoffDepthError: the chain would be longer than ``most_hops``.
    """
    fields = event_fields(handoff.event)
    if handoff.output_schema is not None:
        fields["outputSchema"] = handoff.output_schema
    if "outputSchema" in fields:
        if not handoff.is_request:
            raise ToolInputValidationError("An event without an answer has no outputSchema; send a request.")
        compile_output_schema(fields["outputSchema"])
    instance = fields.get("instanceKey", asker.instance_key)
    tool = DELEGATE_TOOL if handoff.is_request else EVENT_TOOL
    event_id = fields.get("id") or asker.new_id([handoff.target, instance, tool, fields])
    turn = f"turn-{event_id}"
    call_id = call_identity(handoff.target, instance, turn, event_id)
    fields = {"createdAt": iso_time(now_ms), **fields, "id": event_id, "instanceKey": instance}
    event = _event(asker, handoff, fields, call_id)
    seconds = None if handoff.timeout_ms is None else handoff.timeout_ms / 1000
    begins_at = now_ms
    if handoff.not_before is not None:
        begins_at = max(now_ms, epoch_milliseconds(handoff.not_before))
    try:
        call = ToolCall(
            tool_call_id=event_id,
            tool_name=tool,
            args=event_args(asker.name, asker.instance_key, event.to_wire(), awaited=handoff.is_awaited),
            agent_name=handoff.target,
            instance_key=instance,
            turn_id=turn,
            trace_id=event.trace_id or "",
            span_id=call_id.replace("-", "")[16:],
            correlation_id=_correlation_id(fields) or call_id,
            timeout_seconds=seconds,
            deadline=None if seconds is None else iso_time(begins_at + seconds * 1000),
            not_before=handoff.not_before,
            keep=handoff.keep,
            auth=event.auth,
            origin=asker.origin,
            call_chain=asker.chain,
            waiting=asker.waiting if handoff.is_awaited else 0,
            parent_id=asker.call_id,
            root_id=(asker.call.root_id if asker.call else None) or asker.call_id,
            parent_span_id=asker.call.span_id if asker.call else None,
            trace_context=asker.call.trace_context if asker.call else None,
        )
    except ValidationError as error:
        raise ToolInputValidationError(f"The event is not valid: {faults_of(error)}.") from error
    check_call_chain(call, most_hops=most_hops)
    return call


def _event(asker: Asker, handoff: Handoff, fields: JsonObject, call_id: str) -> AgentEvent:
    """Return the event to hand over; an agent cannot choose its ``auth``, ``source`` or ``replyTo``.

    Raises:
        ToolInputValidationError: only the system sends events of this type.
    """
    given_type = fields.get("type")
    if asker.is_agent and isinstance(given_type, str) and given_type in SYSTEM_EVENT_TYPES:
        raise ToolInputValidationError(
            f"Events of type {given_type!r} come from the system; an agent cannot send them.",
            suggestion="Choose another type.",
        )
    own: JsonObject = {
        "traceId": asker.trace_id or fields.get("traceId") or uuid.UUID(call_id).hex,
        "replyTo": None,
    }
    if asker.is_agent:
        metadata = fields.get("metadata")
        if isinstance(metadata, Mapping):  # only the system may mark an event as an answer
            own["metadata"] = {name: value for name, value in metadata.items() if name != ANSWER_METADATA}
        own |= {"auth": asker.auth, "source": {"kind": "agent", "name": asker.name}}
    else:
        own["auth"] = asker.auth or fields.get("auth")
        own["source"] = fields.get("source") or {"kind": "connector", "name": asker.name}
    if handoff.is_request:
        own["replyTo"] = {"target": asker.name, "correlationId": _correlation_id(fields) or call_id}
    event_type = "agent.request" if handoff.is_request else "agent.send"
    return read_event({"type": event_type, **fields, **own})


def compile_output_schema(schema: JsonObject) -> ArgumentSchema:
    """Compile the JSON Schema of an answer.

    Raises:
        ToolInputValidationError: it is not valid, or checking answers against it could take too long.
    """
    try:
        return compile_schema(schema)
    except SchemaError as error:
        place = written(error.path, "outputSchema")
        raise ToolInputValidationError(
            f"{place} is not a valid JSON Schema: {error.message}.",
            suggestion="Correct it as JSON Schema 2020-12 requires, or make it smaller.",
        ) from error


def _correlation_id(fields: JsonObject) -> str | None:
    """Return the correlationId that the asker chose, if any."""
    reply_to = fields.get("replyTo")
    given = reply_to.get("correlationId") if isinstance(reply_to, Mapping) else None
    return given if isinstance(given, str) and given else None


def require_timeout(name: str, value: Any, most: float) -> float:
    """Check a time limit and return it.

    Raises:
        ToolInputValidationError: ``value`` is not a number above 0, or is more than ``most``.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= most:
        raise ToolInputValidationError(f"{name} must be a number above 0, {most:,} at most, not {value!r}.")
    return float(value)


def check_call_chain(call: ToolCall, *, most_hops: int) -> None:
    """Refuse a handoff that makes an agent wait for itself, or whose chain is too long (DESIGN §6).

    Raises:
        HandoffCycleError, HandoffDepthError: see :func:`handoff_call`.
    """
    chain, target = call.call_chain, f"{call.agent_name}@{call.instance_key}"
    path = " -> ".join((*chain, target))
    if call.tool_name == DELEGATE_TOOL and target in chain[len(chain) - _waiting(call) :]:
        raise HandoffCycleError(f"{target} already waits for this request: {path}.")
    if len(chain) > most_hops:
        raise HandoffDepthError(f"More than {most_hops} handoffs in a chain: {path}.")


def _waiting(call: ToolCall) -> int:
    """Return how many agents of a call's chain wait for it; by default all."""
    return len(call.call_chain) if call.waiting is None else min(call.waiting, len(call.call_chain))


def event_fields(event: EventLike) -> JsonObject:
    """Return an event's fields that are set, by their wire names.

    Raises:
        ToolInputValidationError: ``event`` is not an event, or has unknown fields.
    """
    if isinstance(event, AgentEvent):
        return event.to_wire()
    if not isinstance(event, Mapping):
        raise ToolInputValidationError(
            f"An event is an object such as {{'input': …}}, not {type(event).__name__}."
        )
    named = {str(name): value for name, value in event.items()}
    fields = {to_camel(name) if "_" in name else name: value for name, value in named.items()}
    for name in fields.keys() - _EVENT_FIELDS:
        meant = closest(name, _EVENT_FIELDS)
        hint = f"did you mean {meant!r}?" if meant else "put what the agent is to know under 'input'."
        raise ToolInputValidationError(f"An event has no field {name!r}; {hint}")
    return {name: value for name, value in fields.items() if value is not None}


class EventFields(TypedDict, total=False):
    """The optional fields of a client's request or event."""

    instance_key: str | None
    event_type: str | None
    event_id: str | None
    metadata: JsonObject | None
    auth: JsonObject | None
    origin: JsonObject | None
    correlation_id: str | None
    output_schema: JsonObject | None
    not_before: datetime | str | None
    delay: float | None
    keep: float | None


def moment_of(fields: Mapping[str, Any], what: str = "The event") -> Moment:
    """Read when it may run among the fields of an event, or of ``what`` errors shall name.

    Raises:
        ToolInputValidationError: it is not valid.
    """
    try:
        return Moment.of(fields)
    except ValueError as error:
        raise ToolInputValidationError(f"{what} is not valid: {error}.") from error


def outside_call(
    settings: Settings,
    agent: str,
    input: Any,
    fields: EventFields,
    *,
    is_request: bool,
    timeout: float | None = None,
) -> ToolCall:
    """Return the call for a client's request, or event, to an agent.

    Raises:
        ToolInputValidationError: a field is not valid.
        TypeError: events have no such field.
    """
    require_keywords("request()" if is_request else "send()", fields, EventFields.__annotations__)
    event = input.to_wire() if isinstance(input, AgentEvent) else {"input": input}
    span = None if event.get("traceId") else current_span()
    asker = Asker(
        name=OUTSIDE,
        instance_key=fields.get("instance_key") or DEFAULT_INSTANCE,
        new_id=random_id,
        auth=fields.get("auth"),
        origin=fields.get("origin"),
        trace_id=None if span is None else span.trace_id,
    )
    correlation_id = fields.get("correlation_id")
    given = {
        "id": fields.get("event_id"),
        "type": fields.get("event_type"),
        "metadata": fields.get("metadata"),
        "instanceKey": fields.get("instance_key"),
        "replyTo": {"target": OUTSIDE, "correlationId": correlation_id} if correlation_id else None,
    }
    event |= {name: value for name, value in given.items() if value is not None}
    handoff = Handoff(
        agent,
        event,
        is_request=is_request,
        is_awaited=is_request,
        timeout_ms=None
        if timeout is None
        else require_timeout("timeout", timeout, LONGEST_RUN_SECONDS) * 1000,
        output_schema=fields.get("output_schema"),
        not_before=moment_of(fields).at(wall_clock()),
        keep=fields.get("keep"),
    )
    return handoff_call(asker, handoff, most_hops=settings.max_handoff_depth, now_ms=wall_clock())


_ERRORS = {error.code: error for error in HandoffError.__subclasses__()}


def request_result(result: ToolCallResult) -> RequestResult:
    """Return the answer in a request's result.

    Raises:
        HandoffError: the agent failed; the error is the agent's.
    """
    if result.error is not None:
        raise handoff_error(result.error)
    return answer_in(result)


def answer_in(result: ToolCallResult) -> RequestResult:
    """Return the answer in a request's result, without a response if the agent failed."""
    return RequestResult(
        id=result.meta.id,
        event_id=f"answer-{result.tool_call_id}",
        target=result.meta.agent_name,
        response=result.output,
        correlation_id=result.meta.correlation_id,
    )


def accepted(call: ToolCall) -> RequestResult:
    """Return the result of an ``async`` request, which is answered later."""
    return RequestResult(
        id=identity_of(call),
        event_id=call.tool_call_id,
        target=call.agent_name,
        correlation_id=call.correlation_id,
        is_async=True,
    )


def sent(call: ToolCall) -> SendResult:
    """Return the result of an event that the mailbox has taken."""
    return SendResult(
        id=identity_of(call),
        event_id=call.tool_call_id,
        target=call.agent_name,
        accepted=True,
        correlation_id=call.correlation_id,
    )


def handoff_error(error: ToolCallError) -> HandoffError:
    kind = _ERRORS.get(error.code, HandoffError)
    raised = kind(error.message, code=error.code, suggestion=error.suggestion)
    raised.help_url = error.help_url
    return raised


def not_answered(call: ToolCall, seconds: float) -> HandoffTimeoutError:
    return HandoffTimeoutError(f"{call.agent_name}@{call.instance_key} did not answer within {seconds:g} s.")

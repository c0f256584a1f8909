"""The records on the wire and their times: ToolCall, ToolCallResult, Message, AgentEvent (frozen, DESIGN §4).

Python is snake_case, the wire is camelCase; :class:`WireModel` decides that once. Times are ISO 8601 UTC with
milliseconds. Unknown fields are ignored; records of a newer version are refused.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError

from broker_config import serializer
from broker_config.value_faults import fault_text
from goondan_tasks.contract.trace_context import TraceContext

WIRE_VERSION = 1

#: a year; timers of the operating system have an upper bound
LONGEST_RUN_SECONDS = 366 * 86_400

#: how long the events of a Turn or call may be kept after its end
LONGEST_KEEP_SECONDS = 7 * 86_400

#: in characters; an instance key names a directory and keys in Redis
LONGEST_INSTANCE_KEY = 1024

JsonObject = dict[str, Any]
#: checked for its length on submission, where the error is E_PAYLOAD_TOO_LARGE
InstanceKey = Annotated[str, Field(min_length=1)]

#: returns milliseconds since the epoch, in Redis time where a Redis is involved
Clock = Callable[[], float]


def wall_clock() -> float:
    """Return this machine's time in ms, for display only: deadlines and leases use Redis time."""
    return time.time() * 1000


def redis_clock(now: int) -> Clock:
    """Return a clock that continues from ``now``, the Redis time in ms."""
    offset = now - time.monotonic() * 1000
    return lambda: offset + time.monotonic() * 1000


def iso_time(milliseconds: float) -> str:
    """Format epoch milliseconds for the wire: ``2026-02-01T10:00:00.000Z``."""
    seconds, rest = divmod(int(milliseconds), 1000)
    return f"{_iso_second(seconds)}.{rest:03d}Z"


@functools.lru_cache(maxsize=64)
def _iso_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]  # strftime may not pad years


def epoch_milliseconds(text: str) -> int:
    """Parse an ISO 8601 time; without a zone it is UTC.

    Raises:
        ValueError: ``text`` is not an ISO 8601 time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _require_time(text: str) -> str:
    epoch_milliseconds(text)
    return text


IsoTime = Annotated[str, AfterValidator(_require_time)]


class WireModel(BaseModel):
    """A record that crosses process boundaries: frozen, camelCase on the wire, tolerant of unknown fields."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        defer_build=True,  # a command uses few of the records
    )

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Self:
        """Read a record.

        Raises:
            pydantic.ValidationError: fields are missing or of the wrong type.
        """
        return cls.model_validate(data)

    def to_wire(self) -> JsonObject:
        """Write the record as a JSON object; absent fields are left out."""
        return self.model_dump(by_alias=True, exclude_none=True)


class Versioned(WireModel):
    v: int = WIRE_VERSION

    @field_validator("v")
    @classmethod
    def _refuse_newer(cls, version: int) -> int:
        if version > WIRE_VERSION:
            raise ValueError(
                f"record version {version} is newer than {WIRE_VERSION}, the newest this process "
                "knows; upgrade goondan-workers here"
            )
        return version


def is_newer(error: ValueError) -> bool:
    """Return whether a record could not be read because a newer version wrote it."""
    found = error.errors(include_url=False) if isinstance(error, ValidationError) else []
    return any(one["loc"] == ("v",) and one["type"] == "value_error" for one in found)


class Message(WireModel):
    """A message of a conversation (004, Message). ``data`` is what the model read or wrote."""

    id: str
    data: JsonObject
    metadata: JsonObject = Field(default_factory=dict)
    created_at: str
    source: JsonObject


class _Carried(Versioned):
    """The fields that a call and the message of an event share."""

    auth: JsonObject | None = None
    origin: JsonObject | None = None
    #: the agents that led to this call, outermost first: items ``agent@instanceKey``
    call_chain: tuple[str, ...] = ()
    #: how many of them, counted from the last, wait for the result; ``None``: all
    waiting: Annotated[int, Field(ge=0)] | None = None
    #: the call is not started after this time; the default is the queue timeout
    deadline: IsoTime | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=LONGEST_RUN_SECONDS)] | None = None
    #: the call is not started before this time; its wait in the queue begins then
    not_before: IsoTime | None = None
    #: for how many seconds after its end its events are kept for followers; ``None``: it has no stream
    keep: Annotated[float, Field(gt=0, le=LONGEST_KEEP_SECONDS)] | None = None
    #: the identities of the call or event that caused this one, and of the first in the chain
    parent_id: str | None = None
    root_id: str | None = None
    #: the span that made this call, and the ``tracestate`` and ``baggage`` that go with it
    parent_span_id: str | None = None
    trace_context: TraceContext = None
    #: the identity of the call that this one replays
    replay_of: str | None = None


class ArgumentEdit(WireModel):
    """A person's change of the arguments of a call, made with its approval."""

    by: str
    at: IsoTime
    #: the arguments that were asked for
    asked: Any = None


class EditedArguments(WireModel):
    """What a result says of such a change: ``args`` are the arguments that it belongs to."""

    by: str
    at: IsoTime
    args: Any = None
    note: str = (
        "A person changed the arguments of this call before they approved it. "
        "This is the outcome of `args`, not of the arguments that were asked for."
    )


class ToolCall(_Carried):
    """One request to run a tool. ``args`` also arrives as ``arguments`` or ``input`` (DESIGN §6)."""

    tool_call_id: str
    tool_name: str
    args: Any = Field(default_factory=dict, validation_alias=AliasChoices("args", "arguments", "input"))
    agent_name: str
    instance_key: InstanceKey = "default"
    turn_id: str
    step_id: str | None = None
    message: Message | None = None
    trace_id: str
    span_id: str
    correlation_id: str
    bundle_ref: str | None = None
    idempotency_key: str | None = None
    #: whether the Turn that makes this call (``parent_id``) has a stream, which gets the call's output
    followed: bool | None = None
    #: the model's own id of the call, if it was not unique and ``tool_call_id`` is another
    model_call_id: str | None = None
    #: of a call whose arguments a person has changed: what was asked for
    edited: ArgumentEdit | None = None

    @property
    def edited_arguments(self) -> EditedArguments | None:
        """What its result says of changed arguments."""
        if self.edited is None:
            return None
        return EditedArguments(by=self.edited.by, at=self.edited.at, args=self.args)

    @property
    def shown_id(self) -> str:
        """The id that the model, the handler and the result show (DESIGN §6)."""
        return self.model_call_id or self.tool_call_id


class ToolCallError(WireModel):
    """Why a call failed (004, ToolCallResultError). ``message`` is at most errorMessageLimit characters."""

    code: str
    name: str
    message: str
    suggestion: str | None = None
    help_url: str | None = None
    _traceback: str | None = PrivateAttr(default=None)
    _retry_after: float = PrivateAttr(default=0.0)

    @property
    def retry_after(self) -> float:
        """The seconds to wait before another attempt, as the provider asked; not on the wire."""
        return self._retry_after

    def with_retry_after(self, seconds: float) -> Self:
        """Set :attr:`retry_after`, and return this error."""
        self._retry_after = seconds
        return self

    @property
    def traceback(self) -> str | None:
        """The traceback of the handler's exception, for monitors; not on the wire."""
        return self._traceback

    def with_traceback(self, text: str) -> Self:
        """Set :attr:`traceback`, and return this error."""
        self._traceback = text
        return self


class ResultMeta(WireModel):
    """Where and when a call ran, and in which worker."""

    id: str
    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    span_id: str
    correlation_id: str
    worker: str | None = None
    attempt: int = 0
    queued_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    duration_ms: float | None = None
    replay_of: str | None = None
    #: the file in the workdir that holds an output too large for the result
    output_file: str | None = None
    #: pending results only: when the call expires, and what it waits for
    expires_at: str | None = None
    awaits: Literal["completion", "approval"] | None = None
    #: for a request to a model, or a Turn of a thinking agent: the tokens used, as
    #: ``{input, output, cached, reasoning}``, and why it ended
    usage: dict[str, int] | None = None
    finish_reason: str | None = None
    #: if a person has changed the arguments of the call
    edited: EditedArguments | None = None


class CallLogFields(NamedTuple):
    """The fields of log lines about a call; empty ones are left out of the line."""

    agent: str | None
    attempt: int | None
    call_id: str
    correlation_id: str | None
    instance: str | None
    tool: str | None
    trace_id: str | None
    worker: str | None

    @classmethod
    def of_result(cls, result: "ToolCallResult") -> Self:
        """Return the fields of the call that ended with ``result``."""
        m, tool = result.meta, result.tool_name
        return cls(
            m.agent_name, m.attempt, m.id, m.correlation_id, m.instance_key, tool, m.trace_id, m.worker
        )

    @classmethod
    def of_call(cls, call_id: str, call: ToolCall, worker: str, attempt: int | None = None) -> Self:
        """Return the fields of a call in a worker; ``attempt`` is given for a run."""
        return cls(
            call.agent_name,
            attempt,
            call_id,
            call.correlation_id,
            call.instance_key,
            call.tool_name,
            call.trace_id,
            worker,
        )

    def known(self) -> JsonObject:
        """Return the non-empty fields by name."""
        fields = dict(zip(self._fields, self, strict=True))
        if None not in self and "" not in self:
            return fields
        return {name: value for name, value in fields.items() if value not in (None, "")}


class ToolCallResult(Versioned):
    """The one structured outcome of a call (003 §8.1, 004 ToolCallResult)."""

    tool_call_id: str
    tool_name: str
    status: Literal["ok", "error", "pending"]
    output: Any = None
    handle: str | None = None
    error: ToolCallError | None = None
    meta: ResultMeta

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a result as a worker wrote it.

        pydantic's parser takes a third of the time of ours, but refuses very deep nesting.

        Raises:
            ValueError: ``data`` is not JSON, or not a result.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            return cls.from_wire(serializer.decode(data))

    def to_json(self) -> bytes:
        """Write the result as JSON, with what is no JSON replaced in its output.

        pydantic takes a third of the serializer's time, but accepts values that are not JSON.
        """
        if self.output is None and self.status == "error":
            with contextlib.suppress(PydanticSerializationError):  # half a surrogate pair in a text
                return self.model_dump_json(by_alias=True, exclude_none=True).encode()
        return serializer.encode(self.to_wire(), repairs=True)

    def to_wire(self) -> JsonObject:
        """Write the result; an ``ok`` result has an ``output`` even if that is null."""
        wire = super().to_wire()
        if self.status == "ok":
            wire["output"] = self.output
        return wire


def error_output(result: ToolCallResult) -> JsonObject:
    """Return the error of a result as an output: ``{status, error: {message, name, code}}``."""
    error = result.error
    fields = {} if error is None else {"message": error.message, "name": error.name, "code": error.code}
    return {"status": "error", "error": fields}


def call_part(call_id: str, tool_name: str, args: Any) -> JsonObject:
    """Return a call as a part of an assistant Message's content."""
    return {"type": "tool-call", "toolCallId": call_id, "toolName": tool_name, "input": args}


def assistant_message(call_id: str, tool_name: str, args: Any, step_id: str, now: str) -> Message:
    """Build the assistant Message for a call that was submitted without one: it holds only this call."""
    return Message.from_wire(assistant_message_wire(call_id, tool_name, args, step_id, now))


def assistant_message_wire(call_id: str, tool_name: str, args: Any, step_id: str, now: str) -> JsonObject:
    """Build the wire form of :func:`assistant_message`."""
    return {
        "id": f"msg-{call_id}",
        "data": {"role": "assistant", "content": [call_part(call_id, tool_name, args)]},
        "metadata": {},
        "createdAt": now,
        "source": {"type": "assistant", "stepId": step_id},
    }


#: the key in an event's metadata that marks it as an answer
ANSWER_METADATA = "__goondanInterAgentResponse"


class EventSource(WireModel):
    """The origin of an event: an agent, or a connector to the outside."""

    kind: Literal["agent", "connector"]
    name: str


class ReplyTo(WireModel):
    """Where the answer to an event goes, and its correlationId."""

    target: str
    correlation_id: str


class AgentEvent(WireModel):
    """An event that an agent handles: a task, an answer, or a message from outside."""

    id: str
    type: str
    created_at: str
    trace_id: str | None = None
    metadata: JsonObject = Field(default_factory=dict)
    input: Any = None
    #: the receiving instance; by default the asker's (DESIGN §4)
    instance_key: InstanceKey | None = None
    source: EventSource
    auth: JsonObject | None = None
    reply_to: ReplyTo | None = None
    #: of a request: the JSON Schema that the asker wants the answer to fit
    output_schema: JsonObject | None = None


class HandoffAnswer(WireModel):
    """The outcome of a request: the payload of a ``delegate_result``."""

    event_id: str
    status: Literal["ok", "error"]
    response: Any = None
    error: JsonObject | None = None
    #: the request's type and metadata, and when it ended
    event_type: Any = None
    metadata: Any = None
    answered_at: str | None = None


MessageType = Literal["delegate", "delegate_result", "event", "shutdown"]


class IpcMessage(_Carried):
    """A message between agents: the argument of ``goondan.delegate``, ``delegate_result`` and ``event``.

    ``payload`` is an :class:`AgentEvent`, in a ``delegate_result`` a :class:`HandoffAnswer`.
    """

    type: MessageType
    from_agent: str = Field(alias="from")
    to: str
    payload: JsonObject
    correlation_id: str | None = None
    from_instance_key: Annotated[InstanceKey, Field(max_length=LONGEST_INSTANCE_KEY)] | None = None
    to_instance_key: InstanceKey | None = None
    trace_id: str | None = None
    span_id: str | None = None
    turn_id: str | None = None
    #: whether the asker is waiting for the answer, so that the message needs no handling
    awaited: bool = False


def faults_of(error: ValidationError, *within: str) -> str:
    """Describe validation errors in one line, each after its field's path, which begins with ``within``."""
    faults = error.errors(include_input=False, include_url=False)
    places = [".".join(map(str, (*within, *fault["loc"]))) for fault in faults]
    return "; ".join(
        f"{place}: {fault_text(fault)}" if place else fault_text(fault)
        for place, fault in zip(places, faults, strict=True)
    )

"""Tool calls: making complete ones, sending their messages to the queues, and the results of their runs."""

import functools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict, get_args

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from broker_config import serializer
from broker_config.queues import TOOL_CALL_TASK
from broker_config.task_message import TaskMessage
from goondan_tasks.contract.errors import PayloadTooLargeError
from goondan_tasks.contract.events import is_event, message_of, queue_of, task_of
from goondan_tasks.contract.messages import (
    LONGEST_INSTANCE_KEY,
    CallLogFields,
    Clock,
    JsonObject,
    Message,
    ResultMeta,
    ToolCall,
    ToolCallError,
    ToolCallResult,
    assistant_message,
    faults_of,
    iso_time,
)
from goondan_tasks.contract.model_messages import message_fault
from goondan_tasks.contract.moments import Moment, is_timed
from goondan_tasks.contract.names import call_identity, current_span, write_traceparent
from goondan_tasks.contract.output import Pending
from goondan_tasks.contract.run_lines import RunLines

#: where a call is
Status = Literal["scheduled", "queued", "running", "pending", "done", "dead"]
STATUSES = frozenset(get_args(Status))
#: the statuses after which nothing changes any more
ENDED = frozenset({"done", "dead"})
#: the limit of ``auth`` and ``origin`` each, as JSON: every call of a Turn carries both
MAX_CONTEXT_BYTES = 65_536

_to_camel = functools.lru_cache(to_camel)


class CallFields(TypedDict, total=False):
    """The optional fields of a call."""

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
    not_before: datetime | str | None
    delay: float | None
    keep: float | None


class CallDraft(NamedTuple):
    """A call with the fields that are valid, and what is wrong with the others."""

    call: ToolCall
    fault: str = ""
    #: the JSON of the call's message, if it is written already
    message_json: bytes = b""
    #: for how long it must not run after it is submitted
    delay_ms: int = 0


def new_call(agent_name: str, tool_name: str, args: Any, fields: Mapping[str, Any]) -> ToolCall:
    """Make a call; ``fields`` are :class:`CallFields` or those of a record, in snake_case or camelCase.

    Raises:
        pydantic.ValidationError: a field has the wrong type or value.
    """
    wire = {"agentName": agent_name, "toolName": tool_name, "args": args}
    return _completed({**_camel_case(fields), **wire})


def draft_call(wire: Mapping[str, Any]) -> CallDraft:
    """Read a call from its wire fields; leave out wrong ones, and fill in what is missing."""
    fields = _camel_case(wire)
    if "arguments" in fields or "input" in fields:
        spellings = [fields.pop(name, None) for name in ("args", "arguments", "input")]
        fields["args"] = next((value for value in spellings if value is not None), None)
    draft = completed_draft(fields)
    return draft if draft.fault else checked_draft(draft.call)


def timed_draft(wire: Mapping[str, Any]) -> CallDraft:
    """Read a call as :func:`draft_call` does, with its ``delay`` or ``notBefore`` as producers give it."""
    if not is_timed(wire):
        return draft_call(wire)
    rest = {name: value for name, value in wire.items() if name not in {"delay", "not_before", "notBefore"}}
    try:
        moment = Moment.of(wire)
    except ValueError as error:
        return draft_call(rest)._replace(fault=f"The call is not valid: {error}.")
    return draft_call({**rest, "notBefore": moment.not_before})._replace(delay_ms=moment.delay_ms)


def completed_draft(fields: Mapping[str, Any]) -> CallDraft:
    """Read a call as :func:`draft_call` does, from fields in camelCase; its message is known to hold it."""
    try:
        return CallDraft(_completed(fields))
    except ValidationError as error:
        invalid = {fault["loc"][0] for fault in error.errors(include_input=False, include_url=False)}
        valid = {name: value for name, value in fields.items() if name not in invalid}
        return CallDraft(_completed(valid), f"The call is not valid: {faults_of(error)}.")


def checked_draft(call: ToolCall) -> CallDraft:
    """Check what types cannot express: that the call's message contains the call."""
    fault = "" if call.message is None else message_fault(call.message, call.shown_id)
    if not fault:
        return CallDraft(call)
    return CallDraft(call.model_copy(update={"message": None}), f"The call is not valid: message: {fault}.")


def require_sizes(call: ToolCall, args_bytes: float, max_args_bytes: int) -> None:
    """Refuse a call or event with a part that is larger than its limit.

    Raises:
        PayloadTooLargeError: the arguments, the instance key, ``auth`` or ``origin`` is too large.
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
        size = 0 if value is None else len(serializer.encode(value, serializer.DEEPEST))
        if size > MAX_CONTEXT_BYTES:
            raise PayloadTooLargeError(
                f"The call's `{name}` takes {size} bytes; at most {MAX_CONTEXT_BYTES} are allowed.",
                suggestion="It goes with every call of the Turn: put large data into the arguments, "
                "or into a file of the instance's workdir.",
            )


def _completed(fields: Mapping[str, Any]) -> ToolCall:
    """Fill in missing fields. One read of randomness, which is a system call, serves all ids.

    Only the ledger's record of an approved call says that a person has changed its arguments.
    """
    given = {name: value for name, value in fields.items() if value is not None and name != "edited"}
    random, span = secrets.token_hex(36), current_span()
    trace_id = given.get("traceId") or (random[:32] if span is None else span.trace_id)
    missing: JsonObject = {
        "agentName": "",
        "toolName": "",
        "args": {},
        "correlationId": trace_id,
        "spanId": random[32:48],
        "turnId": f"turn-{_text_or(given.get('toolCallId'), random[48:60])}",
        "toolCallId": f"call_{random[60:]}",
    }
    return ToolCall.model_validate({**missing, **given, "traceId": trace_id})


def _text_or(given: Any, otherwise: str) -> str:
    return given if isinstance(given, str) and given else otherwise


def _camel_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_to_camel(name) if "_" in name else name: value for name, value in fields.items()}


def identity_of(call: ToolCall) -> str:
    """Return the identity of a call, see :func:`goondan_tasks.contract.names.call_identity`."""
    return call_identity(call.agent_name, call.instance_key, call.turn_id, call.tool_call_id)


def call_message(call_id: str, call: ToolCall, wire: bytes) -> TaskMessage:
    """Make the task message of a call, whose JSON is ``wire``. An event is sent as its IpcMessage.

    The worker shows the arguments to monitors (:mod:`goondan_tasks.fleet.monitors`), so the message does not.
    """
    if is_event(call):
        message = message_of(call)
        task, shadow = task_of(call), None
        kwargs = b'{"message":%b}' % serializer.encode(message.to_wire())
    else:
        task, shadow = TOOL_CALL_TASK, call.tool_name or "(no tool)"
        kwargs = b'{"call":%b}' % wire
    return TaskMessage(
        task=task,
        task_id=call_id,
        queue=queue_of(call),
        kwargs=kwargs,
        shadow=shadow,
        root_id=call.root_id,
        parent_id=call.parent_id,
        traceparent=write_traceparent(call.trace_id, call.span_id),
        trace_context=call.trace_context,
    )


def queue_element(call_id: str, call: ToolCall, wire: bytes) -> bytes:
    """Return what stands in a queue's list for a call, whose JSON is ``wire``.

    kombu/transport/redis.py ``_put`` would write the same.
    """
    return call_message(call_id, call, wire).to_redis()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a call by one worker. Times are milliseconds since the epoch."""

    id: str
    call: ToolCall
    worker: str
    attempt: int
    queued_at: float
    clock: Clock
    #: how many earlier runs failed and were retried, and when the first of them began
    retries: int = 0
    begun_at: float | None = None
    #: the approver, if the call needed an approval
    approved_by: str | None = None
    #: later for a later run of the same instance's events
    claimed_at: float = 0.0
    #: what it has logged
    lines: RunLines = field(default_factory=RunLines, compare=False, repr=False)

    @property
    def message(self) -> Message:
        """The assistant Message that contains the call; made for a call that came without one."""
        call = self.call
        return call.message or assistant_message(
            call.shown_id,
            call.tool_name,
            call.args,
            step_id=call.step_id or call.turn_id,
            now=iso_time(self.queued_at),
        )

    @property
    def log_fields(self) -> JsonObject:
        """The fields of log lines about this run."""
        return CallLogFields.of_call(self.id, self.call, self.worker, self.attempt).known()

    def ok(self, output: Any, started_at: float | None, *, output_file: str | None = None) -> ToolCallResult:
        """Return the result of a successful run; ``output_file`` names the file with a large output."""
        result = self._result("ok", started_at, output=output)
        return result if output_file is None else with_meta(result, output_file=output_file)

    def pending(self, pending: Pending, started_at: float | None, *, expires_at: float) -> ToolCallResult:
        """Return the interim result of a call that waits until ``expires_at`` at most."""
        result = self._result("pending", started_at, output=pending.output, handle=pending.handle)
        return with_meta(
            result,
            expires_at=iso_time(expires_at),
            awaits="approval" if pending.is_approval else "completion",
            attempt=self.attempt - pending.is_approval,  # a call that waits for approval has not run
        )

    def failed(self, error: ToolCallError, started_at: float | None) -> ToolCallResult:
        return self._result("error", started_at, error=error)

    def adopted(self, result: ToolCallResult, started_at: float | None) -> ToolCallResult:
        """Turn a result made by a middleware into a result of this run.

        Raises:
            ValueError: the status is unknown, or does not fit ``error``.
        """
        is_failure = result.status == "error"
        if result.status not in ("ok", "error", "pending") or is_failure != (result.error is not None):
            raise ValueError(f"no result has status {result.status!r} and error {result.error!r}")
        is_held = result.meta.awaits == "approval"  # not counted as an attempt
        if result.meta.id == self.id and (result.meta.attempt == self.attempt or is_held):
            return result
        fields = {"output": result.output, "handle": result.handle, "error": result.error}
        return self._result(result.status, started_at, **fields)

    def _result(self, status: str, started_at: float | None, **fields: Any) -> ToolCallResult:
        finished_at = self.clock()
        meta = ResultMeta(
            id=self.id,
            agent_name=self.call.agent_name,
            instance_key=self.call.instance_key,
            turn_id=self.call.turn_id,
            trace_id=self.call.trace_id,
            span_id=self.call.span_id,
            correlation_id=self.call.correlation_id,
            worker=self.worker,
            attempt=self.attempt,
            queued_at=iso_time(self.queued_at),
            started_at=None if started_at is None else iso_time(started_at),
            finished_at=iso_time(finished_at),
            duration_ms=None if started_at is None else round(finished_at - started_at, 3),
            replay_of=self.call.replay_of,
            edited=self.call.edited_arguments,
        )
        names = {"tool_call_id": self.call.shown_id, "tool_name": self.call.tool_name}
        return ToolCallResult(**names, status=status, meta=meta, **fields)


def with_meta(result: ToolCallResult, **fields: Any) -> ToolCallResult:
    return result.model_copy(update={"meta": result.meta.model_copy(update=fields)})

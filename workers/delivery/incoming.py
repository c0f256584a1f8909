"""The call in a message, from a client of ours or from a plain Celery producer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from broker_config import serializer
from broker_config.queues import TOOL_CALL_TASK, agent_of
from goondan_tasks.contract.calls import CallDraft, checked_draft, draft_call, require_sizes
from goondan_tasks.contract.errors import (
    PayloadTooLargeError,
    ToolInputValidationError,
    ToolNotInCatalogError,
)
from goondan_tasks.contract.events import EVENT_TASKS, EVENT_TYPE, call_fields, is_event, task_of
from goondan_tasks.contract.messages import (
    LONGEST_INSTANCE_KEY,
    CallLogFields,
    IpcMessage,
    JsonObject,
    ToolCall,
    faults_of,
)
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, EVENT_TOOL, read_traceparent
from goondan_tasks.contract.trace_context import sound_context

#: the fields that clients of ours always write
_FILLED_IN = {"agentName", "toolCallId", "traceId"}

_TRACE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as received: its task id, its queue, and its ``call`` or ``message`` as ``wire``."""

    id: str
    queue: str
    wire: Any
    task: str = TOOL_CALL_TASK
    #: the W3C header of the message as received
    traceparent: object = None
    #: those that go with it, as received
    trace_context: object = None
    #: the call in the record, if it was claimed as its message was reserved
    claimed: ToolCall | None = None
    #: whether the call was stored before or with the message: it was not queued by plain Celery
    was_stored: bool = False

    @property
    def is_event(self) -> bool:
        """Whether it is for the agent itself, rather than for one of its tools."""
        return self.task in EVENT_TASKS

    @property
    def is_only_told(self) -> bool:
        """Whether it brings an answer that the asker already has, so that it needs no handling."""
        return self._is_a("delegate_result") and self.wire.get("awaited") is True

    @property
    def is_shutdown(self) -> bool:
        """Whether it asks workers to drain; see :func:`workers.pool.drain.note_shutdown`."""
        return self._is_a("shutdown")

    def _is_a(self, kind: str) -> bool:
        return self.is_event and isinstance(self.wire, Mapping) and self.wire.get("type") == kind

    def call(self, max_args_bytes: int) -> ToolCall:
        """Read the call and fill in what a plain Celery producer left out (DESIGN "Records").

        Raises:
            ToolInputValidationError: it is not a call.
            ToolNotInCatalogError: it is an event that came as a tool call.
            PayloadTooLargeError: its arguments exceed ``max_args_bytes``, which only a report of how a call
                has ended may; or it exceeds another limit of :func:`require_sizes`.
        """
        if not isinstance(self.wire, Mapping):
            what = "message" if self.is_event else "call"
            raise ToolInputValidationError(f"The message carries no `{what}` object.")
        draft = self._draft()
        if draft.fault:
            raise ToolInputValidationError(draft.fault)
        if is_event(draft.call) and (not self.is_event or task_of(draft.call) != self.task):
            raise ToolNotInCatalogError(
                f"Tool '{draft.call.tool_name}' is not available in the current Tool Catalog."
            )
        if draft.call.agent_name != (agent_of(self.queue) or ""):
            raise ToolInputValidationError(
                f"The call names agent {draft.call.agent_name!r}, but came by queue {self.queue!r}."
            )
        args = {} if _is_report(draft.call) else draft.call.args
        try:
            require_sizes(draft.call, len(serializer.encode(args, serializer.DEEPEST)), max_args_bytes)
        except serializer.NotJsonError as error:
            raise ToolInputValidationError(f"The call is not valid JSON: {error}.") from error
        return draft.call

    def log_fields(self, worker: str) -> JsonObject:
        """Return the fields of each log line about this call; some are missing if it cannot be read."""
        return CallLogFields.of_call(self.id, self.placeholder(), worker).known()

    def placeholder(self) -> ToolCall:
        """Return a call that stands for this message when it is refused.

        It lacks the arguments and whatever is too large, but still names the asker of a request that can be
        read.
        """
        draft = self._draft()
        own: dict[str, Any] = {
            "args": {},
            "agent_name": agent_of(self.queue) or "",
            "instance_key": draft.call.instance_key[:LONGEST_INSTANCE_KEY],
        }
        try:
            require_sizes(draft.call.model_copy(update=own), 0, 0)
        except (PayloadTooLargeError, serializer.NotJsonError):
            own |= {"auth": None, "origin": None}
        if self.is_event and draft.fault:
            own["tool_name"] = EVENT_TOOL
        elif self.is_event:
            own["args"] = {**draft.call.args, "payload": {}}
        return draft.call.model_copy(update=own)

    def _draft(self) -> CallDraft:
        if self.claimed is not None:
            return checked_draft(self.claimed)
        wire = self.wire if isinstance(self.wire, Mapping) else {}
        if self.is_event:
            return self._event_draft(wire)
        return self._call_draft(wire)

    def _event_draft(self, wire: Mapping[str, Any]) -> CallDraft:
        try:
            fields = call_fields(IpcMessage.from_wire(wire))
        except (ValidationError, KeyError) as error:
            reason = error if isinstance(error, KeyError) else faults_of(error)
            return CallDraft(self._call_draft({}).call, f"The message is not valid: {reason}.")
        return self._call_draft({"turnId": f"turn-{self.id}", "correlationId": self.id, **fields})

    def _call_draft(self, wire: Mapping[str, Any]) -> CallDraft:
        if wire.keys() >= _FILLED_IN:
            return draft_call(wire)
        # taken from the message, so that a second delivery of it fills in the same values
        trace = self.id.replace("-", "")
        known: JsonObject = {
            "agentName": agent_of(self.queue) or "",
            "toolCallId": self.id,
            "traceId": trace if _TRACE_ID.fullmatch(trace) else None,
        }
        sender = read_traceparent(self.traceparent)
        if sender is not None and wire.keys().isdisjoint({"traceId", "trace_id"}):
            known |= {
                "traceId": sender.trace_id,
                "parentSpanId": sender.span_id,
                "traceContext": sound_context(self.trace_context),
            }
        return draft_call({**known, **wire})


def carried(task: str, kwargs: Any) -> Any:
    """Return the content of a task's arguments: ``message`` if it is an event, else ``call``."""
    if not isinstance(kwargs, Mapping):
        return None
    return kwargs.get("message" if task in EVENT_TASKS else "call")


def _is_report(call: ToolCall) -> bool:
    """Return whether it reports how a call has ended.

    A report holds outputs, which have their own limit. If it were refused, the asker would get no answer.
    """
    if call.tool_name == DELEGATE_RESULT_TOOL:
        return True
    payload = call.args.get("payload") if call.tool_name == EVENT_TOOL else None
    return isinstance(payload, Mapping) and payload.get("type") == EVENT_TYPE

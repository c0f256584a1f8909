"""Reading the call out of a message, from a client of ours or from plain Celery."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_config import serializer
from broker_config.queues import agent_of
from goondan_tasks.errors import PayloadTooLargeError, ToolInputValidationError
from goondan_tasks.messages import ToolCall
from goondan_tasks.new_call import Draft, draft_call

#: what clients of ours never leave out
_FILLED_IN = {"agentName", "toolCallId", "traceId"}

_TRACE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as it came: its task id, its queue, and what it carries as ``call``."""

    id: str
    queue: str
    wire: Any

    @classmethod
    def of(cls, task_id: str, request: Mapping[str, Any]) -> "Incoming":
        """Read what Celery hands to a pool: the task's id and its request."""
        kwargs = request["kwargs"]
        wire = kwargs.get("call") if isinstance(kwargs, Mapping) else None
        return cls(task_id, request["delivery_info"]["routing_key"] or "", wire)

    def call(self, max_args_bytes: int) -> ToolCall:
        """Read the call; what a plain Celery producer left out is filled in (DESIGN "Records").

        Raises:
            ToolInputValidationError: it is no call.
            PayloadTooLargeError: its arguments exceed ``max_args_bytes``.
        """
        if not isinstance(self.wire, Mapping):
            raise ToolInputValidationError("The message carries no `call` object.")
        draft = self._draft()
        if draft.fault:
            raise ToolInputValidationError(draft.fault)
        if draft.call.agent_name != (agent_of(self.queue) or ""):
            raise ToolInputValidationError(
                f"The call names agent {draft.call.agent_name!r}, but came by queue {self.queue!r}."
            )
        size = len(serializer.encode(draft.call.args))
        if size > max_args_bytes:
            raise PayloadTooLargeError(
                f"The arguments take {size} bytes; at most {max_args_bytes} are allowed."
            )
        return draft.call

    def placeholder(self) -> ToolCall:
        """Return a call without arguments to hang the refusal of this message on."""
        own = {"args": {}, "agent_name": agent_of(self.queue) or ""}
        return self._draft().call.model_copy(update=own)

    def _draft(self) -> Draft:
        wire = self.wire if isinstance(self.wire, Mapping) else {}
        if wire.keys() >= _FILLED_IN:
            return draft_call(wire)
        # fixed by the message, so that a second delivery of it fills in the same
        trace = self.id.replace("-", "")
        known = {
            "agentName": agent_of(self.queue) or "",
            "toolCallId": self.id,
            "traceId": trace if _TRACE_ID.fullmatch(trace) else None,
        }
        return draft_call({**known, **wire})

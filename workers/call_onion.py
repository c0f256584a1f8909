"""What the middlewares around a tool call are given, and what passes through them (003 §6)."""

from typing import Any

from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.contract.messages import Message
from workers.job import Job


class HandlerValue:
    """The value of a handler on its way through middlewares that do not see it, and which is not pending.

    A middleware that awaits its ``next()`` gets a ToolCallResult. Making one for nobody would cost as much as
    the rest of a short call.
    """

    __slots__ = ("value",)
    #: all that a middleware reads which awaits its ``next()`` alone
    status = "ok"

    def __init__(self, value: Any) -> None:
        self.value = value


class JobCallContext(ToolCallContext):
    """The context of a planned call; its Message is made when a middleware asks for it."""

    _job: Job

    @property
    def message(self) -> Message:  # type: ignore[override]
        """The assistant Message that holds the call."""
        return self._job.claim.run.message

    @classmethod
    def of(cls, job: Job) -> "JobCallContext":
        """Make the context of a call; its attributes are set at once, since setting each checks its name."""
        call = job.read()
        context = object.__new__(cls)
        context.__dict__.update(
            _job=job,
            tool_name=call["toolName"],
            tool_call_id=job.shown_id,
            args=call["args"],
            agent_name=job.agent,
            instance_key=call["instanceKey"],
            turn_id=call["turnId"],
            trace_id=call["traceId"],
            step_id=call.get("stepId"),
            metadata={},
        )
        return context

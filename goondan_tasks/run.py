"""One run of a call: who runs it, which attempt it is, and the results it can end with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from goondan_tasks.messages import (
    Message,
    ResultMeta,
    ToolCall,
    ToolCallError,
    ToolCallResult,
    assistant_message,
    iso_time,
)
from goondan_tasks.pending import Pending

#: milliseconds since the epoch, in Redis time where a Redis is involved
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Run:
    """A call in one worker's hands. Times are milliseconds since the epoch."""

    id: str
    call: ToolCall
    worker: str
    attempt: int
    queued_at: float
    clock: Clock
    #: how many runs of the call have failed and were tried again, and when the first of them began
    retries: int = 0
    begun_at: float | None = None
    #: who has approved the call, if it had to wait for that
    approved_by: str | None = None

    @property
    def message(self) -> Message:
        """The assistant Message that holds the call; one that came without gets one with this call alone."""
        call = self.call
        return call.message or assistant_message(
            call.shown_id,
            call.tool_name,
            call.args,
            step_id=call.step_id or call.turn_id,
            now=iso_time(self.queued_at),
        )

    def ok(self, output: Any, started_at: float | None, *, output_file: str | None = None) -> ToolCallResult:
        """Return the result of a run that ended well; ``output_file`` has the output if it is large."""
        result = self._result("ok", started_at, output=output)
        return result if output_file is None else with_meta(result, output_file=output_file)

    def pending(self, pending: Pending, started_at: float | None, *, expires_at: float) -> ToolCallResult:
        """Return the interim result of a call that waits, until ``expires_at`` at most."""
        result = self._result("pending", started_at, output=pending.output, handle=pending.handle)
        return with_meta(
            result,
            expires_at=iso_time(expires_at),
            awaits="approval" if pending.is_approval else "completion",
            attempt=self.attempt - pending.is_approval,  # one that is held was not run
        )

    def failed(self, error: ToolCallError, started_at: float | None) -> ToolCallResult:
        """Return the result of a run that failed, or that never started."""
        return self._result("error", started_at, error=error)

    def adopted(self, result: ToolCallResult, started_at: float | None) -> ToolCallResult:
        """Return a result that a middleware has made, as one of this run.

        Raises:
            ValueError: it is none: its status is unknown, or says error and there is no error.
        """
        is_failure = result.status == "error"
        if result.status not in ("ok", "error", "pending") or is_failure != (result.error is not None):
            raise ValueError(f"no result has status {result.status!r} and error {result.error!r}")
        is_held = result.meta.awaits == "approval"  # which is no attempt
        if result.meta.id == self.id and (result.meta.attempt == self.attempt or is_held):
            return result
        fields = {"output": result.output, "handle": result.handle, "error": result.error}
        return self._result(result.status, started_at, **fields)

    def _result(self, status: str, started_at: float | None, **fields: Any) -> ToolCallResult:
        return ToolCallResult(
            tool_call_id=self.call.shown_id,
            tool_name=self.call.tool_name,
            status=status,
            meta=self._meta(started_at),
            **fields,
        )

    def _meta(self, started_at: float | None) -> ResultMeta:
        finished_at = self.clock()
        return ResultMeta(
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
        )


def with_meta(result: ToolCallResult, **fields: Any) -> ToolCallResult:
    """Return ``result`` with other values in its ``meta``."""
    return result.model_copy(update={"meta": result.meta.model_copy(update=fields)})

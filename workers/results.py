"""Results: of plain calls, which are pending, how long a message of an error may be, what is masked."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from json.encoder import encode_basestring as quoted
from operator import itemgetter
from typing import Any

from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.call_fields import META_TEXTS, shown_id, template_of
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.failure import fitted_message
from goondan_tasks.contract.messages import (
    JsonObject,
    ResultMeta,
    ToolCallError,
    ToolCallResult,
    epoch_milliseconds,
    iso_time,
)
from goondan_tasks.contract.names import SYSTEM_TOOL
from goondan_tasks.contract.output import Pending
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from workers.job import Job

_meta_texts = itemgetter(*META_TEXTS)

#: as ``ToolCallResult.to_wire`` writes it
_RESULT = (
    '{"v":1,"toolCallId":%s,"toolName":%s,"status":"%s","%s":%s,"meta":{"id":%s,'
    f'{template_of(META_TEXTS)},"worker":%s,"attempt":%d,'
    '"queuedAt":"%s","startedAt":"%s","finishedAt":"%s","durationMs":%r}}'
)

_HELD = {"message": "The call waits for a person's approval; it has not been run."}


@dataclass(frozen=True, slots=True)
class Suspension:
    """The rules of one worker for calls that are suspended: those to be approved, and pending ones."""

    #: ``policy.toolCalls.approval`` of the Swarm: globs of full tool names
    approval: tuple[str, ...]
    #: how long a call waits unless its handler says otherwise
    ttl_seconds: float

    def hold(self, run: Run, bound: BoundTool) -> Pending | None:
        """Return the interim answer of a call that must be approved before it runs; ``None`` for others."""
        if run.approved_by is not None or not self.asks(bound):
            return None
        return Pending(run.id, _HELD, is_approval=True)

    def result(self, run: Run, pending: Pending, started_at: float | None) -> ToolCallResult:
        """Return the interim result of a suspended call.

        A call that waits for an approval expires at its deadline at the latest.
        """
        expires_at = run.clock() + (pending.ttl_seconds or self.ttl_seconds) * 1000
        if pending.is_approval and run.call.deadline is not None:
            expires_at = min(expires_at, epoch_milliseconds(run.call.deadline))
        return run.pending(pending, started_at, expires_at=expires_at)

    def asks(self, bound: BoundTool) -> bool:
        """Return whether calls of a tool wait for an approval."""
        if bound.export.requires_approval:
            return True
        if not self.approval or bound.tool.name == SYSTEM_TOOL:
            return False
        return any(fnmatchcase(bound.name, glob) for glob in self.approval)


def limited(result: ToolCallResult, message_limit: int) -> ToolCallResult:
    """Return a result whose error message, if any, has at most ``message_limit`` characters."""
    error = result.error
    if error is None:
        return result
    message = fitted_message(error.message, message_limit)
    if message == error.message:
        return result
    return result.model_copy(update={"error": error.model_copy(update={"message": message})})


def without_secrets(result: ToolCallResult) -> ToolCallResult:
    """Return a result with its secrets masked; the same object if it has none."""
    error = None if result.error is None else result.error.to_wire()
    fields = {"output": result.output, "handle": result.handle, "error": error}
    shown = KNOWN_SECRETS.hidden_in_answer(fields)
    if shown == fields:
        return result
    if error is not None:
        shown["error"] = ToolCallError.from_wire(shown["error"])
    return result.model_copy(update=shown)


def shown_result(job: Job, output: Any) -> ToolCallResult:
    """Return the result of a plain call that its middlewares see, as ``Run.ok`` makes it in more time."""
    call, finished_at = job.read(), job.clock()
    started_at = job.started_at or finished_at
    meta = {name: call[name] for name in META_TEXTS} | {
        "id": job.id,
        "worker": job.worker,
        "attempt": job.attempt,
        "queuedAt": iso_time(job.queued_at),
        "startedAt": iso_time(started_at),
        "finishedAt": iso_time(finished_at),
        "durationMs": round(finished_at - started_at, 3),
    }
    return ToolCallResult(
        tool_call_id=shown_id(call),
        tool_name=call["toolName"],
        status="ok",
        output=output,
        meta=ResultMeta.from_wire(meta),
    )


def result_of(job: Job, call: JsonObject, outcome: str, *, is_error: bool = False) -> bytes:
    """Return the JSON of the result of a call that has just ended; ``outcome`` is that of output or error."""
    finished_at = job.clock()
    started_at = job.started_at or finished_at
    if job.shown is None:
        job.ended_at, job.duration_ms = iso_time(finished_at), round(finished_at - started_at, 3)
    else:
        meta = job.shown.meta
        job.ended_at, job.duration_ms = meta.finished_at or iso_time(finished_at), meta.duration_ms or 0.0
    return (
        _RESULT
        % (
            quoted(shown_id(call)),
            quoted(call["toolName"]),
            *(("error", "error") if is_error else ("ok", "output")),
            outcome,
            quoted(job.id),
            *map(quoted, _meta_texts(call)),
            quoted(job.worker),
            job.attempt,
            iso_time(job.queued_at),
            iso_time(started_at),
            job.ended_at,
            job.duration_ms,
        )
    ).encode()

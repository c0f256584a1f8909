"""What every kind of call promises of each outcome, and whether it was kept (DESIGN "Delivery", docs).

:func:`broken` returns what a cell's call did otherwise: in its result, in what monitors, logs and metrics
tell of it, in what Redis still has of it, and in how often its handler began.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.contract.messages import CallLogFields, JsonObject, ToolCallResult, epoch_milliseconds
from goondan_tasks.fleet.call_counts import OK, REQUEUED
from tests.conformance.bench import LARGE, SHORT_ACTS
from tests.conformance.kinds import CELLS, INSTANCE, Cell
from tests.conformance.observed import Seen

HELP = "https://docs.goondan.ai/errors/"
RECEIVED, STARTED, SUCCEEDED = "task-received", "task-started", "task-succeeded"
RUN = (RECEIVED, STARTED)

#: lines that may be there: of an abandoned handler, and of a message that was not needed any more
_OPTIONAL = {"call.abandoned", "call.not_run"}
#: what an agent's errors are called
_OF_EVENTS = {
    "E_TOOL": "E_AGENT_FAILED",
    "E_TOOL_TIMEOUT": "E_HANDOFF_TIMEOUT",
    "E_TOOL_OUTCOME_UNKNOWN": "E_AGENT_OUTCOME_UNKNOWN",
}


@dataclass(frozen=True, slots=True)
class Promise:
    """What is promised of one outcome."""

    code: str = OK
    #: Celery's events about the call
    events: tuple[str, ...] = (*RUN, SUCCEEDED)
    begun: int = 1
    attempt: int = 1
    #: whether the end comes from outside a run: then other metrics and another line tell of it
    is_settled: bool = False
    #: the lines of the log beside that of the end
    lines: tuple[str, ...] = ()
    retried: int = 0
    requeued: int = 0
    #: whether there is a result at all
    has_result: bool = True
    #: whether a worker's death has cost the events that it had not sent
    loses_events: bool = False
    #: whether the handlers that are held have reported progress
    reports: bool = False
    #: the status of the interim result, and what it waits for
    awaits: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.code == OK


PROMISES = {
    "ok": Promise(),
    "raises": Promise("E_TOOL", (*RUN, "task-failed"), lines=("call.raised",)),
    "not-json": Promise("E_TOOL_BAD_OUTPUT", (*RUN, "task-failed")),
    "too-large": Promise(),
    "pending": Promise(
        events=(*RUN, "task-pending", SUCCEEDED),
        is_settled=True,
        lines=("call.finished",),
        awaits="completion",
    ),
    "approved": Promise(
        events=(RECEIVED, "task-pending", *RUN, SUCCEEDED), lines=("call.finished",), awaits="approval"
    ),
    "edited": Promise(
        events=(RECEIVED, "task-pending", *RUN, SUCCEEDED), lines=("call.finished",), awaits="approval"
    ),
    "denied": Promise(
        "E_APPROVAL_DENIED",
        (RECEIVED, "task-pending", "task-failed"),
        begun=0,
        attempt=0,
        is_settled=True,
        lines=("call.finished",),
        awaits="approval",
    ),
    "cancelled-before": Promise("E_TOOL_CANCELLED", ("task-revoked",), begun=0, attempt=0, is_settled=True),
    "cancelled": Promise("E_TOOL_CANCELLED", (*RUN, "task-revoked"), reports=True),
    "time-limit": Promise("E_TOOL_TIMEOUT", (*RUN, "task-failed"), reports=True),
    "retry": Promise(
        events=(*RUN, "task-retried", *RUN, SUCCEEDED),
        begun=2,
        attempt=2,
        lines=("call.raised", "call.put_off"),
        retried=1,
    ),
    "killed-before": Promise(
        events=("task-retried", *RUN, SUCCEEDED),
        attempt=2,
        requeued=1,
        lines=("call.settled",),
        loses_events=True,
    ),
    "killed": Promise(
        "E_TOOL_OUTCOME_UNKNOWN", ("task-failed",), is_settled=True, loses_events=True, reports=True
    ),
    "killed-again": Promise(
        events=("task-retried", *RUN, SUCCEEDED),
        begun=2,
        attempt=2,
        requeued=1,
        lines=("call.settled",),
        loses_events=True,
        reports=True,
    ),
    "redis-away": Promise(reports=True),
    "damaged": Promise("", RUN, has_result=False, lines=("call.not_stored",)),
    "drain": Promise(reports=True),
}


def broken(seen: Seen) -> list[str]:
    """Return the promises that were broken, each in a sentence."""
    promise, cell = PROMISES[seen.cell.outcome], seen.cell
    code = _OF_EVENTS.get(promise.code, promise.code) if cell.kind.is_event else promise.code
    checks = (
        _of_begins(seen, promise),
        _of_result(seen, promise, code),
        _of_monitors(seen, promise),
        _of_log(seen, promise, code),
        _of_metrics(seen, promise, code),
        _of_redis(seen, promise),
    )
    return [fault for check in checks for fault in check]


def _differs(what: str, seen: Any, promised: Any) -> Iterator[str]:
    if seen != promised:
        yield f"{what}: {seen!r}, not {promised!r}"


def _of_begins(seen: Seen, promise: Promise) -> Iterator[str]:
    yield from _differs("the handler began so often", seen.begun, promise.begun)
    if seen.cell.kind.has_middleware:  # it also stands around the question for an approval
        around = promise.begun + (promise.awaits == "approval")
        yield from _differs("the middleware began so often", seen.begun_around, around)


def _of_result(seen: Seen, promise: Promise, code: str) -> Iterator[str]:
    result = seen.submitted.result
    if not promise.has_result:
        yield from _differs("the producer's error", type(seen.submitted.error), CallNotFoundError)
        yield from _differs("result", result, None)
        return
    if result is None:
        yield f"no result, but {seen.submitted.error!r}"
        return
    yield from _differs("status", result.status, "ok" if promise.is_ok else "error")
    yield from _differs("code", OK if result.error is None else result.error.code, code)
    if promise.is_ok:
        yield from _of_output(seen.cell, result)
    else:
        yield from _differs("output of an error", result.output, None)
    if result.error is not None:
        yield from _of_error(seen.cell, result)
    yield from _of_meta(seen, promise, result)
    yield from _of_interim(seen, promise, result)


def _of_output(cell: Cell, result: ToolCallResult) -> Iterator[str]:
    if cell.outcome == "too-large":
        path = result.meta.output_file
        yield from _differs("size of the output", result.output.get("size"), LARGE + len('""'))
        yield from _differs("file of the output", result.output.get("path"), path or "a path")
    else:
        name = "resolved" if cell.outcome == "pending" else "cell"
        yield from _differs("output", result.output, {name: cell.name})


def _of_error(cell: Cell, result: ToolCallResult) -> Iterator[str]:
    error = result.error
    assert error is not None
    yield from _differs("link to help", error.help_url, HELP + error.code)
    if not error.suggestion:
        yield "the error suggests nothing"
    if cell.outcome == "raises":
        name = "Error" if cell.kind.name == "javascript" else "ValueError"
        yield from _differs("the error's name and message", (error.name, error.message), (name, "on purpose"))
    elif not (error.name.endswith("Error") and error.message.endswith((".", "today"))):
        yield f"the error is not one of ours: {error.name}: {error.message}"
    if "goondan__" in error.message:
        yield f"the message has an inner name: {error.message}"


def _of_meta(seen: Seen, promise: Promise, result: ToolCallResult) -> Iterator[str]:
    meta, cell = result.meta, seen.cell
    names = (meta.id, meta.agent_name, meta.instance_key, result.tool_name, meta.attempt)
    promised = (seen.submitted.call.id, cell.agent, INSTANCE, cell.tool, promise.attempt)
    yield from _differs("id, agent, instance, tool, attempt", names, promised)
    if not (meta.worker and meta.trace_id and meta.correlation_id):
        yield f"worker, trace or correlation are missing: {meta}"
    if promise.begun and seen.cell.outcome != "killed":
        yield from _differs("start is known", meta.started_at is not None, True)
    times = [epoch_milliseconds(at) for at in (meta.queued_at, meta.started_at, meta.finished_at) if at]
    yield from _differs("times", times, sorted(times))
    if meta.finished_at is None or (meta.started_at is None) != (meta.duration_ms is None):
        yield f"end or duration are missing: {meta}"


def _of_interim(seen: Seen, promise: Promise, result: ToolCallResult) -> Iterator[str]:
    interim, told = seen.submitted.interim, seen.submitted.told
    if promise.awaits is None:
        return
    if interim is None:
        yield "no interim result"
        return
    handle = f"handle-{seen.cell.name}" if promise.awaits == "completion" else result.meta.id
    shown = (interim.status, interim.meta.awaits, interim.handle, bool(interim.meta.expires_at))
    yield from _differs("interim result", shown, ("pending", promise.awaits, handle, True))
    yield from _differs("the event about the end was received so often", len(told), 1)
    for event in told:
        told_end: JsonObject = {
            "id": result.meta.id,
            "toolCallId": result.tool_call_id,
            "toolName": result.tool_name,
        }
        told_end |= {"handle": handle, "status": result.status}
        told_end |= {"error": result.error.to_wire()} if result.error else {"output": result.output}
        told_end |= {} if result.meta.edited is None else {"edited": result.meta.edited.to_wire()}
        yield from _differs("the event", (event.type, event.input), ("toolCall.completed", told_end))
    yield from _differs("it still awaits", (result.meta.awaits, result.meta.expires_at), (None, None))
    if promise.awaits == "completion":
        began = (interim.meta.worker, interim.meta.started_at)
        yield from _differs("who began it, and when", (result.meta.worker, result.meta.started_at), began)


def _of_monitors(seen: Seen, promise: Promise) -> Iterator[str]:
    events, promised = Counter(seen.events), Counter(promise.events)
    if promise.loses_events:  # what the dead worker had sent of its run
        events -= Counter({name: events[name] - promised[name] for name in RUN})
    if not (promise.has_result or events):  # those of a short call are sent with its end
        events = promised
    yield from _differs("Celery's events", events, promised)
    yield from _differs("final results announced", seen.finals, int(promise.has_result))


def _of_log(seen: Seen, promise: Promise, code: str) -> Iterator[str]:
    ends = [line for line in seen.lines if _is_end(line)]
    others = Counter(line["event"].partition(":")[0] for line in seen.lines if line not in ends)
    for optional in _OPTIONAL:
        others.pop(optional, None)
    yield from _differs("lines beside that of the end", others, Counter(promise.lines))
    yield from _differs("lines of the end", len(ends), int(promise.has_result))
    for line in ends:
        event = "call.settled" if promise.is_settled else "call.finished"
        yield from _differs("the end's line", line["event"].partition(":")[0], event)
        yield from _differs("its code", line.get("code") or OK, code)
        yield from _of_fields(line, seen, promise)
    levels = {line["event"] for line in seen.lines if line.get("level") == "error"}
    yield from _differs("errors logged", levels, set() if promise.has_result else {"call.not_stored"})


def _is_end(line: JsonObject) -> bool:
    if line["event"] == "call.finished":
        return bool(line["status"] != "pending")
    return bool(line["event"].startswith("call.settled") and line["code"] != REQUEUED)


def _of_fields(line: JsonObject, seen: Seen, promise: Promise) -> Iterator[str]:
    result = seen.submitted.result
    if result is None:
        return
    fields = CallLogFields.of_result(result).known()
    if promise.awaits is not None and promise.is_settled:
        del fields["worker"]  # the line names the producer that has completed it, the result who began it
    yield from _differs("its fields", {name: line.get(name) for name in fields}, fields)
    if not promise.is_settled:
        end = (line["status"], line["duration_ms"])
        yield from _differs("its status and duration", end, (result.status, result.meta.duration_ms))


def _of_metrics(seen: Seen, promise: Promise, code: str) -> Iterator[str]:
    in_run = promise.has_result and not promise.is_settled
    yield from _differs("runs counted", seen.ended, Counter({code: 1} if in_run else {}))
    yield from _differs("runs timed", seen.timed, int(in_run))
    retried = {_OF_EVENTS["E_TOOL"] if seen.cell.kind.is_event else "E_TOOL": promise.retried}
    yield from _differs("retries counted", seen.retried, +Counter(retried))
    settled = Counter({code: int(promise.is_settled), REQUEUED: promise.requeued})
    counted = seen.settled
    if not seen.cell.kind.is_event:  # the counter is that of all calls of the agent
        peers = [PROMISES[cell.outcome] for cell in CELLS if cell.agent == seen.cell.agent]
        settled[REQUEUED] *= sum(peer.requeued for peer in peers)
        counted = Counter({name: counted[name] for name in +settled})
    yield from _differs("settlements counted", counted, +settled)


def _of_redis(seen: Seen, promise: Promise) -> Iterator[str]:
    left_in, record, result = seen.left_in, seen.record, seen.submitted.result
    yield from _differs("keys without an expiry", seen.without_ttl, [])
    if not promise.has_result:  # a sweep looks at such a record again, once it would have expired
        yield from _differs("it is still named", set(left_in) - {"goondan:due"}, set())
        return
    if seen.cell.outcome == "killed":  # the next call that needs the permit of a lost one frees it
        left_in = [key for key in left_in if not key.startswith("goondan:holders:")]
    failed = result is not None and result.status == "error"
    lists = [f"goondan:failures:{seen.cell.agent}"] if failed else []
    if seen.cell.outcome in {"approved", "edited", "denied"}:  # a person has decided
        lists.append("goondan:audit")
    yield from _differs("it is named in", sorted(left_in), sorted(lists))
    if record is None or result is None or record.result is None:
        yield "no record, or no result in it"
        return
    yield from _differs("record", (record.status, record.outcome), ("done", result.status))
    yield from _differs("stored result", ToolCallResult.from_json(record.result), result)
    is_edited = seen.cell.outcome == "edited"
    approver = "ann" if is_edited or seen.cell.outcome == "approved" else None
    yield from _differs("approver", record.approved_by, approver)
    edits = (record.call.edited is not None, result.meta.edited is not None)
    yield from _differs("edited, by record and result", edits, (is_edited, is_edited))
    reported = record.progress and (record.progress.done, record.progress.total, record.progress.message)
    is_short = seen.cell.kind.name == "sync" and seen.cell.outcome in SHORT_ACTS
    promised = (1, 2, seen.cell.name) if promise.reports and not is_short else None
    yield from _differs("progress", reported, promised)

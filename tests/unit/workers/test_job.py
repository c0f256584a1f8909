"""Claimed calls, what makes one plain, and the results of plain calls."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from broker_config import serializer
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.contract.calls import MAX_CONTEXT_BYTES, new_call, with_meta
from goondan_tasks.contract.errors import ToolCancelledError
from goondan_tasks.contract.events import event_args
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import (
    ToolCall,
    ToolCallError,
    ToolCallResult,
    assistant_message,
    iso_time,
    wall_clock,
)
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL, EVENT_TOOL
from goondan_tasks.ledger.record import Verdict
from workers.concurrency.slots import KeptSlot, ReleasedSlot, Wait
from workers.extensions.events import running, running_log_fields
from workers.job import Job, JobState, is_plain
from workers.plain_context import PlainContext
from workers.results import result_of, shown_result

CALL = new_call("coder", "calc__add", {"a": 1}, {"tool_call_id": "c-1", "turn_id": "t-1"})


def job_of(call: ToolCall = CALL, *, retried: bytes | None = None, approved: bytes | None = None) -> Job:
    """Make the job of a call that was claimed just now."""
    text = serializer.encode(call.to_wire())
    answer = (b"run", 2, 1_700_000_000_123, 0, retried, approved, text, b"", b"id-1")
    return Job("agent.coder", "token-1", answer, asked_at=0.0, clock=wall_clock, worker="w1@host")


def test_wire_record_of_client_is_plain() -> None:
    assert is_plain(job_of().read(), "coder")


@pytest.mark.parametrize(
    "changed",
    [
        {"agentName": "other"},
        {"v": 2},
        {"toolName": 5},
        {"traceId": None},
        {"replayOf": "another"},
        {"stepId": 5},
        {"modelCallId": 5},
        {"message": {}},
        {"bundleRef": "git:1"},
        {"toolName": EVENT_TOOL},
        {"instanceKey": ""},
    ],
)
def test_extra_or_different_fields_make_call_not_plain(changed: dict[str, Any]) -> None:
    assert not is_plain({**job_of().read(), **changed}, "coder")


def test_agents_call_is_plain_keeping_whole_record() -> None:
    own = CALL.model_copy(
        update={
            "args": {"callChain": [], "args": 1},
            "call_chain": ("planner@default",),
            "waiting": 1,
            "parent_id": "p-1",
            "auth": {"actor": "u1"},
        }
    )
    producers, agents = job_of(), job_of(own)
    assert producers.classify()
    assert agents.classify()
    assert (agents.is_plain, agents.is_bare) == (True, False)
    kinds = [job.row[5] for job in (producers, agents)]
    assert kinds == ["plain", ""]
    assert agents.args_text is None  # what looks like them is a part of them
    assert agents.claim.run.call == own


def test_counted_figures_of_call_match_its_result() -> None:
    job = job_of(CALL.model_copy(update={"auth": {"subjects": {"user": "u1"}}}))
    job.started_at, job.attempt = job.clock() - 20, 1
    run = job.claim.run
    asked = with_meta(run.ok({}, job.started_at), usage={"input": 3, "output": 2})
    failed = run.failed(describe(ToolCancelledError(), help_url=""), job.started_at)
    refused = run.failed(describe(ToolCancelledError(), help_url=""), None)

    for result, code, usage in (
        (asked, "ok", asked.meta.usage),
        (failed, "E_TOOL_CANCELLED", None),
        (refused, "E_TOOL_CANCELLED", None),
    ):
        job.started_at = None if result is refused else job.started_at
        job.end_with(result)
        seconds = None if result is refused else (result.meta.duration_ms or 0) / 1000
        waited = None if job.started_at is None else (job.started_at - job.queued_at) / 1000
        counted = (job.agent, job.tool_name, code, waited, seconds, usage, job.ended_at, "u1", "")
        assert job.counted == counted


def test_rerun_turn_counts_sender_without_wait_or_tokens() -> None:
    args = event_args("planner", "default", {}, awaited=True)
    event = new_call("coder", DELEGATE_TOOL, args, {})
    answer = event.model_copy(update={"tool_name": DELEGATE_RESULT_TOOL})
    outside = event.model_copy(update={"args": {**args, "from": "No Agent"}, "auth": {"subjects": 7}})
    for call, sender in ((event, "planner"), (answer, ""), (outside, "client")):
        job = job_of(call)
        job.started_at, job.attempt = job.clock(), 2
        job.end_with(with_meta(job.claim.run.ok({}, job.started_at), usage={"input": 3}))
        counted = job.counted
        assert (counted.wait, counted.tokens, counted.user, counted.sender) == (None, None, "", sender)


@pytest.mark.parametrize(
    "changed",
    [
        {"callChain": ["planner@default", 3]},
        {"callChain": None},
        {"parentId": 7},
        {"waiting": -1},
        {"auth": "token"},
    ],
)
def test_call_with_unsound_origin_is_not_begun(changed: dict[str, Any]) -> None:
    job = job_of()
    job.call = {**job.read(), **changed}
    assert not job.classify()
    assert not job.is_plain


def in_step(**fields: Any) -> ToolCall:
    """Return a call of a Step, with a message that holds it, as a client makes it."""
    shown = fields.get("model_call_id", CALL.tool_call_id)
    message = assistant_message(shown, CALL.tool_name, CALL.args, "s-1", iso_time(0))
    return CALL.model_copy(update={"step_id": "s-1", "message": message, **fields})


@pytest.mark.parametrize("call", [in_step(), in_step(model_call_id="c-0"), in_step(message=None)])
def test_step_call_is_plain_keeping_whole_record(call: ToolCall) -> None:
    job = job_of(call)
    assert job.classify()
    assert (job.is_plain, job.is_bare) == (True, False)
    assert job.claim.run.call == call


@pytest.mark.parametrize(
    "changed",
    [
        {"source": {"type": "tool"}},
        {"data": {"role": "user", "content": []}},
        {"data": {"role": "assistant", "content": "c-1"}},
        {"data": {"role": "assistant", "content": [{"toolCallId": "c-2"}]}},
    ],
)
def test_call_foreign_to_its_message_is_not_plain(changed: dict[str, Any]) -> None:
    call = in_step()
    assert call.message is not None
    job = job_of(call.model_copy(update={"message": call.message.model_copy(update=changed)}))
    assert job.classify()
    assert not job.is_plain


def test_call_with_unsound_message_is_not_begun() -> None:
    job = job_of(in_step())
    job.call = {**job.read(), "message": {**job.read()["message"], "id": 5}}
    assert not job.classify()


def test_call_with_oversized_context_is_not_plain() -> None:
    job = job_of(CALL.model_copy(update={"auth": {"token": "x" * MAX_CONTEXT_BYTES}}))
    assert job.classify()
    assert not job.is_plain


def test_tool_call_in_event_queue_is_not_begun() -> None:
    job = job_of()
    job.queue = "agent.coder.events"
    job.call = {**job.read(), "parentId": "p-1"}
    assert not job.classify()


def test_damaged_retry_data_lets_call_end() -> None:
    for damaged in (b"", b"three", b"1 2 3", b"\xff 5"):
        assert job_of(retried=damaged, approved=b"\xff").claim.run.retries == 0


def test_call_without_recorded_arguments_is_not_plain() -> None:
    wire = dict(job_of().read())
    del wire["args"]
    assert not is_plain(wire, "coder")


def test_calls_log_fields_last_until_handler_ends() -> None:
    job = job_of()
    running.set(job)
    assert running_log_fields() == job.claim.run.log_fields
    job.state = JobState.ENDED
    assert running_log_fields() == {}
    running.set(None)
    assert running_log_fields() == {}


def test_unreadable_calls_log_lines_carry_known_fields() -> None:
    answer = (b"run", 2, 1_700_000_000_123, 0, None, None, b"[", b"", b"id-1")
    job = Job("agent.coder", "token-1", answer, asked_at=0.0, clock=wall_clock, worker="w1@host")
    known = {"agent": "coder", "attempt": 2, "call_id": "id-1", "worker": "w1@host"}
    assert job.log_fields.known() == known


@pytest.mark.parametrize("call", [CALL, in_step(model_call_id='call "1"')])
@pytest.mark.parametrize("output", [{"sum": 3}, None, 'snowman ☃ "quoted" \\ \n', [1.5, True, []], ""])
def test_result_of_plain_call_equals_general_result(output: Any, call: ToolCall) -> None:
    job = job_of(call.model_copy(update={"instance_key": 'ключ "1"\n'}))
    job.started_at = job.clock()
    wire = result_of(job, job.read(), serializer.encode(output).decode())
    result = ToolCallResult.from_json(wire)
    general = job.claim.run.ok(output, job.started_at)
    times = {"finished_at": result.meta.finished_at, "duration_ms": result.meta.duration_ms}
    assert result == general.model_copy(update={"meta": general.meta.model_copy(update=times)})
    assert serializer.decode(wire) == result.to_wire()
    seen = shown_result(job, output)
    times = {"finished_at": seen.meta.finished_at, "duration_ms": seen.meta.duration_ms}
    assert seen == general.model_copy(update={"meta": general.meta.model_copy(update=times)})
    assert (job.ended_at, job.duration_ms) == (result.meta.finished_at, result.meta.duration_ms)


def test_failed_plain_call_has_general_result() -> None:
    job = job_of()
    job.started_at = job.clock()
    error = ToolCallError(
        code="E_TOOL", name="Odd", message='no "\u2603"', suggestion=None, help_url="https://x"
    )
    text = error.model_dump_json(by_alias=True, exclude_none=True)
    result = ToolCallResult.from_json(result_of(job, job.read(), text, is_error=True))
    general = job.claim.run.failed(error, job.started_at)
    times = {"finished_at": result.meta.finished_at, "duration_ms": result.meta.duration_ms}
    assert result == general.model_copy(update={"meta": general.meta.model_copy(update=times)})


def test_claim_has_fields_from_ledger() -> None:
    claim = job_of(retried=b"1 1700000000000", approved=b"ann").claim
    assert (claim.token, claim.verdict, claim.run.call) == ("token-1", Verdict.RUN, CALL)
    assert (claim.run.attempt, claim.run.retries, claim.run.begun_at) == (2, 1, 1_700_000_000_000)
    assert claim.run.approved_by == "ann"
    retried = job_of(retried=b"1 1700000000000")
    assert (retried.classify(), retried.is_plain, retried.is_bare) == (True, True, False)


@pytest.mark.parametrize(("text", "reason"), [(b"[1]", "not an object"), (None, "empty")])
def test_record_that_is_no_call_is_reported(text: bytes | None, reason: str) -> None:
    job = Job(
        "agent.coder",
        "t",
        (b"run", 1, 0, 0, None, None, text, b"", b"x"),
        asked_at=0,
        clock=wall_clock,
        worker="w",
    )
    with pytest.raises(ValueError, match=reason):
        job.read()
    assert not job.classify()


def test_mark_at_lease_age_limit_is_requested_again() -> None:
    job = job_of()
    job.state, job.fresh_until = JobState.STARTED, monotonic()
    job.require_fresh()
    assert job.state is JobState.CLAIMED


class Services:
    """What the context takes of a worker, and what it has been asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _note(self, name: str, value: Any) -> Any:
        self.asked.append(name)
        return value

    def logger(self, job: Job) -> Any:
        return self._note("logger", job.id)

    def workdir(self, job: Job) -> Path:
        return self._note("workdir", Path("/"))  # type: ignore[no-any-return]

    def progress(self, job: Job) -> Any:
        return self._note("progress", print)

    def emit(self, job: Job) -> Any:
        return self._note("emit", print)

    def release_slot(self, job: Job, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        return KeptSlot(wait)

    def context(self, job: Job) -> ToolContext:
        names = ("agent_name", "instance_key", "turn_id", "trace_id", "tool_call_id")
        others = ("workdir", "logger", "progress", "run_process")
        fields: dict[str, Any] = dict.fromkeys([*names, *others], "of the whole")
        message = CALL.message or job.claim.run.message
        return self._note("context", ToolContext(**fields, message=message))  # type: ignore[no-any-return]


def test_plain_call_context_makes_fields_when_read() -> None:
    job, services = job_of(), Services()
    context = PlainContext(job, services)
    assert isinstance(context, ToolContext)
    assert (context.agent_name, context.tool_call_id, context.cancelled) == ("coder", "c-1", False)
    assert services.asked == []
    assert [str(context.workdir), context.logger, str(context.workdir)] == ["/", "id-1", "/"]
    assert services.asked == ["workdir", "logger"]
    assert str(context.run_process) == "of the whole"
    assert context.message.to_wire()["data"]["role"] == "assistant"
    assert services.asked == ["workdir", "logger", "context"]
    with pytest.raises(AttributeError, match="oauth"):
        _ = context.oauth


def limited_job() -> tuple[Job, list[str]]:
    """Return a job within middlewares, and what was noted of its handler's limits."""
    noted: list[str] = []
    job = job_of()
    job.begin(is_wrapped=True)
    return job, noted


def note_limits(noted: list[str]) -> Callable[[float], Callable[[], None]]:
    def limit(seconds: float) -> Callable[[], None]:
        noted.append("running" if seconds > 0 else "begins")
        return lambda: noted.append("called off")

    return limit


def test_detached_running_handler_is_limited_until_end() -> None:
    job, noted = limited_job()
    job.begin_handler()
    assert job.limit_handler(note_limits(noted))
    job.end_handler()
    assert noted == ["running", "called off"]
    assert job.started_at is not None


def test_handler_beginning_after_detachment_is_limited_from_start() -> None:
    job, noted = limited_job()
    assert job.limit_handler(note_limits(noted))
    assert noted == []
    job.begin_handler()
    job.end_handler()
    assert noted == ["begins", "called off"]


def test_handler_ended_before_detachment_has_no_limit() -> None:
    job, noted = limited_job()
    job.begin_handler()
    job.end_handler()
    assert not job.limit_handler(note_limits(noted))
    assert noted == []


def test_handler_of_cancelled_call_does_not_begin() -> None:
    job, _ = limited_job()
    job.ensure_cancellation().set(ToolCancelledError())
    with pytest.raises(ToolCancelledError):
        job.begin_handler()

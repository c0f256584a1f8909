"""The story of one call, as the ledger keeps it."""

from dataclasses import replace

import pytest
from redis import Redis

from goondan_tasks.contract.calls import Run, identity_of, new_call
from goondan_tasks.contract.errors import ToolError
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.history.trace import SHOWN_CHARACTERS, CallStory, excerpt, read_story
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.former_runs import LONGEST_TRACEBACK
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import LimitScripts
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim
from goondan_tasks.ledger.timer import Timer
from tests.unit.goondan_tasks.ledger.calls import AGAIN, ONCE, a_call, claimed, record_of, submit
from tests.unit.goondan_tasks.ledger.test_finished_records import finish_plainly, submitted


def story(ledger: Ledger, call: ToolCall) -> CallStory:
    return read_story(ledger, record_of(ledger, call))


def test_queued_call_omits_attempts_and_unknown_values(ledger: Ledger) -> None:
    submit(ledger, a_call(timeout_seconds=5))

    told = story(ledger, a_call())

    assert (told.state, told.attempts, told.runs_left, told.retries) == ("queued", (), None, 0)
    assert told.summary.startswith("queued for ")
    assert told.args.text == '{"command":"ls"}'
    assert told.deadline is not None
    assert told.deadline > told.queued_at
    assert told.timeout_seconds == 5
    assert (told.parent, told.children, told.error, told.output) == (None, (), None, None)


def test_running_call_shows_attempt_and_runs_left(ledger: Ledger) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call(), AGAIN)
    ledger.start([claim.id_and_token]).run(ledger.redis)

    told = story(ledger, a_call())

    [attempt] = told.attempts
    assert (attempt.number, attempt.worker, attempt.ended_at, attempt.ended) == (1, "w1", None, None)
    assert attempt.started_at is not None
    assert (told.state, told.runs_left) == ("running", 2)


def test_retried_attempt_keeps_its_worker_times_and_error(ledger: Ledger) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call(), AGAIN)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    ledger.retry(claim, pause_ms=0, begun_at=1_000, code="E_TOOL", message=b"again").run(ledger.redis)
    scheduled = story(ledger, a_call())
    Timer(ledger).wake().run(ledger.redis)
    queued = story(ledger, a_call())
    claimed(ledger, a_call(), AGAIN)

    told = story(ledger, a_call())

    for between in (scheduled, queued):
        assert [(one.worker, one.ended) for one in between.attempts] == [("w1", "E_TOOL")]
        assert between.runs_left == 2
    first, second = told.attempts
    assert (first.worker, first.ended) == ("w1", "E_TOOL")
    assert first.started_at is not None
    assert first.ended_at is not None
    assert (second.number, second.worker) == (2, "w1")
    assert told.retries == 1


def lost(ledger: Ledger, terms: ClaimTerms, *, has_started: bool = True) -> Claim:
    """Let a worker claim a call after 60 s in the queue, and die 5 s later; return the claim of a sweep."""
    submit(ledger, a_call())
    claim = claimed(ledger, a_call(), terms)
    if has_started:
        ledger.start([claim.id_and_token]).run(ledger.redis)
    claimed_at = record_of(ledger, a_call()).claimed_at
    assert claimed_at is not None
    key = ledger.keys.call(claim.run.id)
    ledger.redis.hset(key, mapping={"queuedAt": claimed_at - 130_000, "claimedAt": claimed_at - 70_000})
    ledger.redis.zadd(ledger.keys.due, {claim.run.id: claimed_at - 5_000})  # the lease lasts for 60 s
    [swept] = ledger.sweep("sweeper").run(ledger.redis)
    return swept


def test_dead_workers_call_counts_as_run_not_waiting(ledger: Ledger) -> None:
    Reaper(ledger, "").settle(lost(ledger, ONCE))

    told = story(ledger, a_call())

    assert told.error is not None
    assert told.error.code == "E_TOOL_OUTCOME_UNKNOWN"
    assert (told.waiting_seconds, told.running_seconds) == (60, 5)
    [attempt] = told.attempts
    assert (attempt.worker, attempt.ended, told.settled_by) == ("w1", "its worker died", "sweeper")
    assert attempt.ended_at is not None
    assert attempt.ended_at < (told.finished_at or "")


def test_run_ends_before_outage_that_delays_its_result(ledger: Ledger) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call(), ONCE)
    result = claim.run.ok(1, claim.run.clock())
    ledger.finish(claim, result).run(ledger.redis)
    stored_at = (record_of(ledger, a_call()).finished_at or 0) + 170_000
    ledger.redis.hset(ledger.keys.call(claim.run.id), "finishedAt", stored_at)

    told = story(ledger, a_call())

    assert told.running_seconds is not None
    assert told.running_seconds < 160
    assert [one.ended_at for one in told.attempts] == [result.meta.finished_at]


def test_rerun_keeps_workers_of_lost_attempts(ledger: Ledger) -> None:
    Reaper(ledger, "").settle(lost(ledger, AGAIN))
    queued = story(ledger, a_call())
    second = ledger.claim(ClaimRequest(identity_of(a_call()), a_call(), "w2", AGAIN)).run(ledger.redis)
    ledger.finish(second, second.run.ok(1, second.run.clock())).run(ledger.redis)

    told = story(ledger, a_call())

    assert [(one.worker, one.ended) for one in queued.attempts] == [("w1", "its worker died")]
    assert [(one.worker, one.ended) for one in told.attempts] == [("w1", "its worker died"), ("w2", "ok")]
    assert told.waiting_seconds == pytest.approx(125, abs=2)  # 130 s since it was queued, without 5 s


def test_unstarted_lost_attempt_is_reported_as_unstarted(ledger: Ledger) -> None:
    Reaper(ledger, "").settle(lost(ledger, ONCE, has_started=False))

    [attempt] = story(ledger, a_call()).attempts

    assert (attempt.worker, attempt.ended) == ("w1", "its worker died before it had started")


def test_damaged_line_about_former_run_hides_no_other(ledger: Ledger, redis: Redis) -> None:
    Reaper(ledger, "").settle(lost(ledger, AGAIN))
    key = ledger.keys.call(identity_of(a_call()))
    redis.eval(
        "redis.call('HSET', KEYS[1], 'former', '\\255 1 2\\n' .. redis.call('HGET', KEYS[1], 'former'))",
        1,
        key,
    )

    assert [one.worker for one in record_of(ledger, a_call()).former] == ["w1"]


def failed(run: Run, traceback: str) -> ToolCallResult:
    error = describe(ToolError("no"), help_url="https://help/")
    return run.failed(error.with_traceback(traceback), None)


def test_end_of_traceback_is_kept_with_result(ledger: Ledger, redis: Redis) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    claim.run.lines.add("a line")
    result = failed(claim.run, "x" * LONGEST_TRACEBACK + " at the end \ud800")
    ledger.finish(claim, result).run(redis)

    told, record = story(ledger, a_call()), record_of(ledger, a_call())

    assert told.traceback is not None
    assert told.traceback.endswith("x at the end \\ud800")
    assert record.lines == {1: "a line"}
    assert redis.ttl(ledger.keys.call(claim.run.id)) > 0


def test_lines_of_latest_three_attempts_are_kept(ledger: Ledger, redis: Redis) -> None:
    submit(ledger, a_call())
    for attempt in range(1, 6):
        claim = claimed(ledger, a_call(), AGAIN)
        ledger.start([claim.id_and_token]).run(redis)
        claim.run.lines.add(f"line of {attempt}")
        retry = ledger.retry(claim, pause_ms=0, begun_at=1_000, code="E_TOOL", message=b"again")
        assert [retry.run(redis), retry.run(redis)] == [1, 1]  # the answer of the first may be lost
        assert Timer(ledger).wake().run(redis).queued == 1

    record = record_of(ledger, a_call())

    assert record.lines == {number: f"line of {number}" for number in (3, 4, 5)}
    assert record.traceback is None
    assert redis.ttl(ledger.keys.call(record.id)) > 0


def test_run_that_is_given_back_keeps_its_lines(ledger: Ledger, redis: Redis) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call(), AGAIN)
    ledger.start([claim.id_and_token]).run(redis)
    claim.run.lines.add("a line")

    assert ledger.release(claim, died=False).run(redis)

    assert record_of(ledger, a_call()).lines == {1: "a line"}


def test_unstored_result_leaves_no_lines_or_traceback(ledger: Ledger, redis: Redis) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    ledger.start([claim.id_and_token]).run(redis)
    claim.run.lines.add("a line")
    ledger.cancel(claim.run.id, "p").run(redis)

    for one in (claim, replace(claim, token="another")):
        ledger.finish(one, failed(one.run, "a traceback")).run(redis)

    record = record_of(ledger, a_call())
    assert (record.status, record.lines, record.traceback) == ("running", {}, None)


def test_failed_call_shows_error_and_omits_runs_left(ledger: Ledger) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    error = describe(ToolError("no", suggestion="Try this."), help_url="https://help/")
    ledger.finish(claim, claim.run.failed(error, None)).run(ledger.redis)

    told = story(ledger, a_call())

    assert told.error == error
    assert (told.state, told.runs_left, told.retries) == ("error", None, None)
    assert [attempt.ended for attempt in told.attempts] == ["E_TOOL"]
    assert told.settled_by is None


def test_succeeded_plain_call_is_shown_from_three_fields(ledger: Ledger, redis: Redis) -> None:
    call = submitted(ledger, {"command": "ls"})
    finish_plainly(ledger, claimed(ledger, call), {"n": 1})
    assert redis.hlen(ledger.keys.call(identity_of(call))) == 3

    told = story(ledger, call)

    assert (told.state, told.worker, told.args.text) == ("ok", "w1", '{"command":"ls"}')
    assert told.output is not None
    assert told.output.text == '{"n":1}'
    [attempt] = told.attempts
    assert (attempt.worker, attempt.ended, attempt.started_at) == ("w1", "ok", told.started_at)
    assert (told.runs_left, told.retries, told.deadline) == (None, None, None)


def test_call_names_its_parent_and_its_children(ledger: Ledger) -> None:
    first = a_call()
    first_id = submit(ledger, first)
    chain = {"parent_id": first_id, "root_id": first_id, "trace_id": first.trace_id}
    second = new_call("planner", "plan__outline", {}, {"tool_call_id": "call_2", **chain})
    second_id = submit(ledger, second)

    above, below = story(ledger, first), story(ledger, second)

    assert [(child.id, child.agent, child.state) for child in above.children] == [
        (second_id, "planner", "queued")
    ]
    assert below.parent is not None
    assert (below.parent.id, below.parent.tool) == (first_id, "bash__exec")
    assert below.children == ()


def test_waiting_call_names_limits_and_calls_ahead(ledger: Ledger) -> None:
    limits = "seats 1 0 - concurrency:desk\nrate 5 1000 - rate:desk"
    scripts = LimitScripts(ledger)
    calls = [a_call(turn_id=turn) for turn in ("first", "second", "third")]
    for call in calls:
        call_id = submit(ledger, call)
        scripts.admit(call_id, call, limits, message=b"m", run_seconds=1).run(ledger.redis)

    last = story(ledger, calls[2])

    assert (last.state, last.waiting_for) == ("waiting", "concurrency:desk")
    assert last.limits == ("concurrency:desk", "rate:desk")
    assert last.ahead == 1
    assert last.summary.startswith("waiting for the limit concurrency:desk, queued ")


def test_secrets_in_arguments_are_hidden_before_cutting() -> None:
    args = {"password": "hunter2hunter2", "header": "Authorization: Bearer abcdefghijk", "n": "x" * 1_000_000}

    shown = excerpt(args)

    assert "hunter2" not in shown.text
    assert "abcdefghijk" not in shown.text
    assert (len(shown.text), shown.is_cut) == (SHOWN_CHARACTERS, True)
    assert shown.size > 1_000_000
    assert not excerpt({"a": 1}).is_cut

"""Settling calls that nobody may run any more."""

import time
from dataclasses import replace

import pytest
from redis import Redis

from broker_config.settings import Settings
from goondan_tasks.client.status import read_backlogs
from goondan_tasks.client.submitter import Submitter
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.contract.names import NO_CALL_TOOL
from goondan_tasks.fleet.agent_registry import AgentRegistry
from goondan_tasks.fleet.call_counts import CountStore
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import SWEEP_BATCH, Ledger
from goondan_tasks.ledger.reaper import CAUSES, Reaper
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.submission import Submission
from tests.unit.goondan_tasks.cli.fake_client import worker
from tests.unit.goondan_tasks.ledger.calls import (
    AGAIN,
    ONCE,
    a_call,
    an_event,
    claimed,
    record_of,
    submission,
    submit,
)
from tests.waiting import wait_until


def test_one_sweep_settles_all_late_calls(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goondan_tasks.ledger.reaper.monotonic", lambda: 0.0)  # its time is limited
    ledger = Ledger(redis, Settings(lease_seconds=60, queue_timeout_seconds=0.02))
    calls = [a_call(tool_call_id=f"call_{number}") for number in range(2 * SWEEP_BATCH + 1)]
    ledger.submit_all([submission(call) for call in calls], "p1")
    wait_until(lambda: redis.zcount(ledger.keys.due, "-inf", time.time() * 1000) == len(calls))

    assert Reaper(ledger, "").sweep("sweeper") == len(calls)

    assert {record_of(ledger, call).status for call in calls} == {"done"}


class Stumbling(Reaper):
    """Has a fault that one of the calls meets."""

    stumbles_over = ""

    def answer(self, claim: Claim, result: ToolCallResult) -> Submission | None:
        if claim.run.id == self.stumbles_over:
            raise LookupError("a fault of ours")
        return super().answer(claim, result)


def test_unsettleable_call_does_not_stop_sweep(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(redis, Settings(lease_seconds=60, queue_timeout_seconds=0.02))
    calls = [a_call(tool_call_id=f"call_{number}") for number in range(3)]
    ledger.submit_all([submission(call) for call in calls], "p1")
    wait_until(lambda: redis.zcount(ledger.keys.due, "-inf", time.time() * 1000) == len(calls))
    reaper = Stumbling(ledger, "")
    reaper.stumbles_over = identity_of(calls[0])

    reaper.sweep("sweeper")

    assert [record_of(ledger, call).status for call in calls] == ["running", "done", "done"]
    assert f"call {reaper.stumbles_over} cannot be settled" in caplog.text


def test_call_with_unreadable_shared_result_ends_unrun(redis: Redis, ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    claim = replace(claimed(ledger, call), verdict=Verdict.SHARED, about="id-1")
    redis.hset(ledger.keys.call("id-1"), "result", b'{"v":99}')
    Reaper(ledger, "").settle(claim)
    result = ledger.result(claim.run.id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_BAD_OUTPUT"
    assert "id-1" in result.error.message


def test_settled_message_without_call_becomes_dead_letter(
    redis: Redis,
) -> None:
    ledger = Ledger(redis, Settings())
    call = new_call("coder", NO_CALL_TOOL, {"reason": "it is not an object"}, {"tool_call_id": "call_1"})
    claim = replace(claimed(ledger, call), verdict=Verdict.REQUEUE)

    Reaper(ledger, "").settle(claim)

    result = ledger.result(identity_of(call))
    assert record_of(ledger, call).status == "dead"
    assert redis.zcard(ledger.keys.dead_letters(call.agent_name)) == 1
    assert result is not None
    assert result.error is not None
    assert result.error.message == "The message holds no call: it is not an object."


def test_next_sweep_ends_only_dead_process_leases(ledger: Ledger, redis: Redis) -> None:
    theirs, others, waiting = (a_call(tool_call_id=name) for name in ("theirs", "others", "waiting"))
    ledger.submit_all([submission(call) for call in (theirs, others, waiting)], "p1")
    for call, process in ((theirs, "dead"), (others, "live")):
        request = ClaimRequest(identity_of(call), call, "w1", ClaimTerms(), f"{process}-0")
        ledger.claim(request).run(redis)
    redis.set(ledger.keys.call("not-ours"), "text")
    redis.zadd(ledger.keys.due, {"not-ours": 0})

    assert ledger.end_leases("dead").run(redis) == 1
    redis.delete(ledger.keys.swept)  # there were no sweeps for long: live workers get time to renew theirs
    Reaper(ledger, "").sweep("sweeper")

    records = [record_of(ledger, call) for call in (theirs, others, waiting)]
    assert [(record.status, record.worker) for record in records] == [
        ("queued", None),
        ("running", "w1"),
        ("queued", None),
    ]


def test_without_process_no_lease_is_ended(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="a process has an id"):
        ledger.end_leases("")


def died(ledger: Ledger, terms: ClaimTerms) -> None:
    """Let a worker die whose lease has run out, and settle its call."""
    submit(ledger, a_call())
    claim = claimed(ledger, a_call(), terms)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    ledger.redis.zadd(ledger.keys.due, {claim.run.id: 1})
    assert Reaper(ledger, "").sweep("coder-8@host") == 1


@pytest.mark.parametrize(
    ("terms", "how", "code"),
    [
        (AGAIN, "queued again", "requeued"),
        (ONCE, "ended with E_TOOL_OUTCOME_UNKNOWN", "E_TOOL_OUTCOME_UNKNOWN"),
        (ClaimTerms(idempotent=True, max_attempts=1), "ended with E_TOOL_POISONED", "E_TOOL_POISONED"),
    ],
)
def test_log_names_outcome_of_dead_workers_call(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, terms: ClaimTerms, how: str, code: str
) -> None:
    died(ledger, terms)

    [line] = caplog.records
    assert line.message == f"call.settled: {how}, the lease of worker w1 ended during attempt 1{CAUSES}"
    fields = vars(line)
    assert (fields["code"], fields["lost_by"], fields["worker"]) == (code, "w1", "coder-8@host")
    assert (fields["call_id"], line.levelname) == (identity_of(a_call()), "WARNING")
    counts = CountStore(ledger.redis, ledger.keys).totals()
    assert (counts.settled, counts.lost) == ({("coder", code): 1}, {"coder": 1})


def test_cancelled_unclaimed_call_is_logged_and_counted(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    submit(ledger, a_call())

    Reaper(ledger, "").cancel(identity_of(a_call()), "producer")

    [line] = caplog.records
    assert (line.message, line.levelname) == ("call.settled: ended with E_TOOL_CANCELLED", "INFO")
    counts = CountStore(ledger.redis, ledger.keys).totals()
    assert (counts.settled, counts.lost) == ({("coder", "E_TOOL_CANCELLED"): 1}, {})


def sent(ledger: Ledger, call: ToolCall) -> str:
    """Submit a call as a producer does."""
    submitter = Submitter(ledger, Reaper(ledger, ""), max_args_bytes=100_000)
    prepared = submitter.prepare_event(call) if is_event(call) else submitter.prepare_call(call)
    submitter.accept([prepared], "p1")
    return prepared.id


def backlog(ledger: Ledger) -> int:
    return read_backlogs(ledger.redis, ledger.keys, ["coder"])["coder"].queue.backlog


def test_cancelled_call_leaves_queue_of_agent_without_workers(ledger: Ledger, redis: Redis) -> None:
    ids = [sent(ledger, a_call(tool_call_id=f"c{number}")) for number in range(3)]

    Reaper(ledger, "").cancel(ids[1], "producer")

    newest, oldest = redis.lrange("agent.coder", 0, -1)
    assert ids[2].encode() in newest
    assert ids[0].encode() in oldest
    assert backlog(ledger) == 2


def test_expired_call_leaves_queue_of_agent_without_workers(redis: Redis) -> None:
    ledger = Ledger(redis, Settings(lease_seconds=60, queue_timeout_seconds=0.02))
    call_id = sent(ledger, a_call())
    reaper = Reaper(ledger, "")

    wait_until(lambda: reaper.sweep("sweeper") == 1)

    assert ledger.record(call_id) is not None
    assert backlog(ledger) == 0


def test_cancelled_event_leaves_queue_of_agent_without_workers(ledger: Ledger) -> None:
    call_id = sent(ledger, an_event(1))

    Reaper(ledger, "").cancel(call_id, "producer")

    assert backlog(ledger) == 0


def test_message_is_left_to_worker_that_reads_queue(ledger: Ledger) -> None:
    AgentRegistry(ledger.redis, ledger.keys).publish_worker(worker(), 60)
    call_id = sent(ledger, a_call())

    Reaper(ledger, "").cancel(call_id, "producer")

    assert backlog(ledger) == 1


@pytest.mark.parametrize("bounds", [(1, 1_000_000), (1_000, 10)])
def test_only_first_messages_of_queue_are_searched(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, int]
) -> None:
    monkeypatch.setattr("goondan_tasks.ledger.ledger.SEARCHED", bounds)
    first, second = (sent(ledger, a_call(tool_call_id=f"c{number}")) for number in range(2))
    reaper = Reaper(ledger, "")

    reaper.cancel(second, "producer")
    assert backlog(ledger) == 2
    reaper.cancel(first, "producer")

    assert backlog(ledger) == 1

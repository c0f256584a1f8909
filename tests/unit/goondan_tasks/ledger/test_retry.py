"""Further runs in the ledger, and how runs are counted."""

import time

import pytest
from redis import Redis

from broker_config.settings import Settings
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger.claim_request import ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Stored, Verdict
from tests.unit.goondan_tasks.ledger.calls import AGAIN, ONCE, a_call, claimed, record_of, submit, swept


def grants(ledger: Ledger, claim: Claim, pause_ms: int = 0) -> bool:
    """Ask for one more run."""
    script_call = ledger.retry(
        claim, pause_ms=pause_ms, begun_at=1_790_000_000_000.0, code="E_TOOL", message=b"again"
    )
    return bool(script_call.run(ledger.redis))


@pytest.fixture
def reaper(ledger: Ledger) -> Reaper:
    return Reaper(ledger, "https://help/")


def failed(ledger: Ledger, call: ToolCall, terms: ClaimTerms = AGAIN) -> Claim:
    """Submit a call, claim it and let its run begin."""
    submit(ledger, call)
    claim = claimed(ledger, call, terms)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    return claim


def test_waiting_retry_is_scheduled_call_without_claim(ledger: Ledger, redis: Redis) -> None:
    call = a_call()
    claim = failed(ledger, call)
    before = claim.run.clock()
    assert grants(ledger, claim, 20_000)
    record, keys = record_of(ledger, call), ledger.keys
    assert (record.status, record.attempt, record.retries, record.worker) == ("scheduled", 1, 1, None)
    assert before + 19_000 < (record.not_before or 0) < claim.run.clock() + 21_000
    assert record.not_before == redis.zscore(keys.due, claim.run.id)
    assert record.not_before == redis.zscore(keys.scheduled("coder"), claim.run.id)
    assert redis.zscore(keys.running("coder"), claim.run.id) is None
    assert ledger.renew([claim.id_and_token]).run(redis) == {claim.run.id}
    assert "scheduled, in" in record.state_text(claim.run.clock())
    assert record.state_text(claim.run.clock()).endswith("after attempt 1")


def test_next_claim_knows_of_runs_before(ledger: Ledger, reaper: Reaper) -> None:
    call = a_call()
    first = failed(ledger, call)
    assert (first.run.retries, first.run.begun_at) == (0, None)
    assert grants(ledger, first)
    assert grants(ledger, first), "asked twice, because the answer was lost"
    assert reaper.wake().queued == 1
    assert grants(ledger, first), "asked again after the pause"
    second = claimed(ledger, call, AGAIN)
    assert (second.run.attempt, second.run.retries, second.run.begun_at) == (2, 1, 1_790_000_000_000.0)


def test_next_run_heads_queue_and_keeps_deadline(ledger: Ledger, reaper: Reaper, redis: Redis) -> None:
    call = a_call()
    claim = failed(ledger, call)
    record = record_of(ledger, call)
    assert grants(ledger, claim, 30_000)
    submit(ledger, a_call(tool_call_id="another"))
    reaper.run_now(claim.run.id)
    assert redis.lindex("agent.coder", -1) == b"again"
    queued = record_of(ledger, call)
    assert (queued.status, queued.queued_at) == ("queued", record.queued_at)
    assert queued.deadline == record.deadline == redis.zscore(ledger.keys.due, claim.run.id)
    assert not redis.hexists(ledger.keys.call(claim.run.id), "message")


def test_retry_woken_past_deadline_is_not_run(ledger: Ledger, redis: Redis) -> None:
    call = a_call()
    claim = failed(ledger, call)
    assert grants(ledger, claim)
    redis.hset(ledger.keys.call(claim.run.id), "deadline", 1)
    late = swept(ledger)
    assert (late.verdict, late.run.attempt) == (Verdict.EXPIRED, 1)


def test_retry_that_waits_is_cancelled_at_once(ledger: Ledger, reaper: Reaper, redis: Redis) -> None:
    call = a_call()
    claim = failed(ledger, call)
    assert grants(ledger, claim, 30_000)
    reaper.cancel(claim.run.id, "operator")
    error = record_of(ledger, call).error
    assert error is not None
    assert error.code == "E_TOOL_CANCELLED"
    assert redis.zcard(ledger.keys.scheduled("coder")) == 0
    assert redis.zscore(ledger.keys.due, claim.run.id) is None
    assert ledger.finish(claim, claim.run.ok(1, None)).run(redis) is Stored.LOST


def test_second_message_of_retry_that_waits_is_dropped(ledger: Ledger) -> None:
    call = a_call()
    assert grants(ledger, failed(ledger, call), 30_000)
    assert claimed(ledger, call, AGAIN).verdict is Verdict.HELD


@pytest.mark.parametrize("died", [False, True])
def test_every_message_of_rerun_call_runs_original(ledger: Ledger, died: bool) -> None:
    call = a_call()
    submit(ledger, call)
    first = claimed(ledger, call, AGAIN)
    ledger.start([first.id_and_token]).run(ledger.redis)
    assert ledger.release(first, died=died, message=b"again").run(ledger.redis)
    forged = call.model_copy(update={"args": {"command": "rm -rf /"}})
    assert claimed(ledger, forged, AGAIN).run.call == call


def test_granted_run_begins_though_claim_knew_no_tool(ledger: Ledger, reaper: Reaper) -> None:
    call = a_call()
    assert grants(ledger, failed(ledger, call, ONCE))
    assert reaper.wake().queued == 1
    assert claimed(ledger, call, AGAIN).verdict is Verdict.RUN


def test_no_run_is_granted_beyond_deadline(ledger: Ledger) -> None:
    claim = failed(ledger, a_call())
    assert not grants(ledger, claim, 61_000)
    assert grants(ledger, claim, 50_000)


@pytest.mark.parametrize(
    ("field", "value"), [("deadline", "nan"), ("deadline", "inf"), ("deadline", "soon"), ("attempt", "x")]
)
def test_unclaimable_call_is_not_run_again(ledger: Ledger, redis: Redis, field: str, value: str) -> None:
    call = a_call()
    claim = failed(ledger, call, AGAIN)
    redis.hset(ledger.keys.call(claim.run.id), field, value)
    assert not grants(ledger, claim)
    assert not ledger.release(claim, died=False, message=b"again").run(redis)
    assert redis.lrange("agent.coder", 0, -1) == [b"message"]
    assert ledger.finish(claim, claim.run.ok(1, None)).run(redis) is Stored.YES


def test_cancel_or_lost_claim_grants_no_run(ledger: Ledger, hasty: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    lost = claimed(hasty, call, AGAIN)
    taken = swept(ledger)
    assert not grants(ledger, lost)
    ledger.cancel(call_id, "producer").run(ledger.redis)
    assert not grants(ledger, taken)


def test_only_deaths_count_for_most_attempts(ledger: Ledger, redis: Redis) -> None:
    hasty = Ledger(redis, Settings(lease_seconds=0.02, queue_timeout_seconds=60))
    call, terms = a_call(), ClaimTerms(idempotent=True, max_attempts=2)
    submit(ledger, call)
    for _ in range(5):
        failed = claimed(ledger, call, terms)
        ledger.start([failed.id_and_token]).run(ledger.redis)
        assert ledger.release(failed, died=False).run(ledger.redis)
    hasty.start([claimed(hasty, call, terms).id_and_token]).run(hasty.redis)
    died = swept(ledger)
    assert (died.verdict, died.run.attempt) == (Verdict.REQUEUE, 6)
    assert ledger.release(died, died=True).run(ledger.redis)
    hasty.start([claimed(hasty, call, terms).id_and_token]).run(hasty.redis)
    again = swept(ledger)
    assert (again.verdict, again.run.attempt) == (Verdict.POISONED, 7)


@pytest.mark.parametrize("report", [b'{"done":1}', b'{"done":1.5,"total":3,"message":"x"}'])
def test_progress_is_kept_in_record(ledger: Ledger, report: bytes) -> None:
    call = a_call()
    submit(ledger, call)
    claim = claimed(ledger, call)
    assert record_of(ledger, call).progress is None
    assert ledger.progress(claim.run.id, claim.token, report).run(ledger.redis) == 1
    kept = record_of(ledger, call).progress
    assert kept is not None
    assert kept.done in {1, 1.5}
    assert kept.updated_at[:4] == time.strftime("%Y", time.gmtime())


def test_progress_without_claim_is_not_kept(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    claim = claimed(ledger, call)
    ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)
    assert ledger.progress(claim.run.id, claim.token, b'{"done":1}').run(ledger.redis) == 0
    assert record_of(ledger, call).progress is None

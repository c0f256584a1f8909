"""Further runs in the ledger, and how runs are counted."""

import time

import pytest
from redis import Redis

from broker_config.settings import Settings
from goondan_tasks.ledger.claim_request import ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Verdict
from tests.unit.goondan_tasks.ledger.calls import AGAIN, ONCE, a_call, claimed, record_of, submit, swept


def grants(ledger: Ledger, claim: Claim, pause_ms: int = 100) -> bool:
    """Ask for one more run."""
    script_call = ledger.retry(claim, pause_ms=pause_ms, begun_at=1_790_000_000_000.0, code="E_TOOL")
    return bool(script_call.run(ledger.redis))


def test_the_next_claim_knows_of_the_runs_before(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    first = claimed(ledger, call, AGAIN)
    ledger.start([first.id_and_token]).run(ledger.redis)
    assert (first.run.retries, first.run.begun_at) == (0, None)
    assert grants(ledger, first)
    assert grants(ledger, first), "asked twice, because the answer was lost"
    assert ledger.release(first, died=False, message=b"again").run(ledger.redis)
    second = claimed(ledger, call, AGAIN)
    assert (second.run.attempt, second.run.retries, second.run.begun_at) == (2, 1, 1_790_000_000_000.0)


@pytest.mark.parametrize("died", [False, True])
def test_another_message_of_a_call_that_is_run_again_runs_the_same(ledger: Ledger, died: bool) -> None:
    call = a_call()
    submit(ledger, call)
    first = claimed(ledger, call, AGAIN)
    ledger.start([first.id_and_token]).run(ledger.redis)
    assert ledger.release(first, died=died, message=b"again").run(ledger.redis)
    forged = call.model_copy(update={"args": {"command": "rm -rf /"}})
    assert claimed(ledger, forged, AGAIN).run.call == call


def test_a_granted_run_begins_though_the_claim_did_not_know_the_tool(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    claim = claimed(ledger, call, ONCE)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    assert grants(ledger, claim)
    assert ledger.release(claim, died=False, message=b"again").run(ledger.redis)
    assert claimed(ledger, call, AGAIN).verdict is Verdict.RUN


def test_no_run_is_granted_beyond_the_deadline(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    claim = claimed(ledger, call, AGAIN)
    assert not grants(ledger, claim, 61_000)
    assert grants(ledger, claim, 50_000)


def test_no_run_is_granted_to_a_cancelled_call_or_a_lost_claim(ledger: Ledger, hasty: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    lost = claimed(hasty, call, AGAIN)
    taken = swept(ledger)
    assert not grants(ledger, lost)
    assert grants(ledger, taken)
    ledger.cancel(call_id, "producer").run(ledger.redis)
    assert not grants(ledger, taken)


def test_only_deaths_count_for_the_most_attempts(ledger: Ledger, redis: Redis) -> None:
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
def test_progress_is_kept_in_the_record(ledger: Ledger, report: bytes) -> None:
    call = a_call()
    submit(ledger, call)
    claim = claimed(ledger, call)
    assert record_of(ledger, call).progress is None
    assert ledger.progress(claim.run.id, claim.token, report).run(ledger.redis) == 1
    kept = record_of(ledger, call).progress
    assert kept is not None
    assert kept.done in {1, 1.5}
    assert kept.updated_at[:4] == time.strftime("%Y", time.gmtime())


def test_progress_without_the_claim_is_not_kept(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    claim = claimed(ledger, call)
    ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)
    assert ledger.progress(claim.run.id, claim.token, b'{"done":1}').run(ledger.redis) == 0
    assert record_of(ledger, call).progress is None

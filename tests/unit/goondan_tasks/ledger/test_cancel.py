"""Cancelling in the ledger: one script decides, and every other one obeys."""

import pytest
from redis import Redis

from goondan_tasks.contract.errors import (
    CallClosedError,
    CallNotFoundError,
    ToolCancelledError,
    ToolExpiredError,
)
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Stored, Verdict
from tests.unit.goondan_tasks.ledger.calls import AGAIN, a_call, claimed, record_of, submit, swept


@pytest.fixture
def reaper(ledger: Ledger) -> Reaper:
    return Reaper(ledger, "https://help/")


def code_of(ledger: Ledger, call_id: str) -> str | None:
    result = ledger.result(call_id)
    return None if result is None or result.error is None else result.error.code


def test_cancelling_queued_call_ends_it_at_once(ledger: Ledger, reaper: Reaper) -> None:
    call_id = submit(ledger, a_call())
    reaper.cancel(call_id, "producer")
    assert code_of(ledger, call_id) == "E_TOOL_CANCELLED"
    record = record_of(ledger, a_call())
    assert (record.status, record.outcome, record.attempt, record.is_cancelled) == ("done", "error", 0, True)
    assert claimed(ledger, a_call()).verdict is Verdict.DONE


def test_cancellation_that_is_sent_twice_gets_same_claim(ledger: Ledger) -> None:
    cancel = ledger.cancel(submit(ledger, a_call()), "producer")
    first, again = cancel.run(ledger.redis), cancel.run(ledger.redis)
    assert first is not None
    assert again is not None
    assert (first.token, first.verdict) == (again.token, again.verdict)


def test_queued_call_whose_canceller_dies_ends_as_cancelled(ledger: Ledger, hasty: Ledger) -> None:
    call_id = submit(ledger, a_call())
    lost = hasty.cancel(call_id, "producer").run(hasty.redis)
    assert lost is not None
    assert claimed(ledger, a_call()).verdict is Verdict.HELD
    assert swept(ledger).verdict is Verdict.CANCELLED
    assert ledger.finish(lost, lost.run.ok(1, None)).run(ledger.redis) is Stored.LOST


def test_cancelled_running_call_takes_no_other_result(ledger: Ledger, reaper: Reaper) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = claimed(ledger, call)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    assert ledger.cancelled_ids([call_id, "another"]).run(ledger.redis) == set()
    assert ledger.cancel(call_id, "producer").run(ledger.redis) is None
    assert ledger.cancel(call_id, "producer").run(ledger.redis) is None
    assert ledger.cancelled_ids([call_id, "another"]).run(ledger.redis) == {call_id}
    result = claim.run.ok({"x": 1}, 1_790_000_000_000.0)
    assert ledger.finish(claim, result).run(ledger.redis) is Stored.CANCELLED
    assert ledger.result(call_id) is None
    assert ledger.finish(claim, reaper.cancelled(result)).run(ledger.redis) is Stored.YES
    stored = ledger.result(call_id)
    assert stored is not None
    assert (stored.status, stored.output, stored.meta) == ("error", None, result.meta)


def test_cancelled_call_ends_cancelled_despite_other_error(ledger: Ledger, reaper: Reaper) -> None:
    call_id = submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    ledger.cancel(call_id, "producer").run(ledger.redis)
    reaper.fail(claim, ToolExpiredError())
    assert code_of(ledger, call_id) == "E_TOOL_CANCELLED"


def test_call_ended_cancelled_may_be_cancelled_again(ledger: Ledger, reaper: Reaper) -> None:
    call_id = submit(ledger, a_call())
    reaper.cancel(call_id, "producer")
    reaper.cancel(call_id, "producer")
    assert code_of(ledger, call_id) == "E_TOOL_CANCELLED"


def test_final_call_cannot_be_cancelled(ledger: Ledger) -> None:
    call_id = submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    result = claim.run.ok(1, None)
    ledger.finish(claim, result).run(ledger.redis)
    with pytest.raises(CallClosedError):
        ledger.cancel(call_id, "producer").run(ledger.redis)
    assert ledger.result(call_id) == result
    assert not record_of(ledger, a_call()).is_cancelled


def test_run_cancelled_before_handler_is_unstarted(ledger: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = claimed(ledger, call)
    ledger.cancel(call_id, "producer").run(ledger.redis)
    assert Stored(ledger.start([claim.id_and_token]).run(ledger.redis)[0]) is Stored.CANCELLED
    record = ledger.record(call_id)
    assert record is not None
    assert not record.has_started


def test_unknown_call_cannot_be_cancelled_and_leaves_nothing(ledger: Ledger, redis: Redis) -> None:
    before = redis.keys()
    with pytest.raises(CallNotFoundError):
        ledger.cancel("nobody", "producer").run(ledger.redis)
    assert redis.keys() == before


@pytest.mark.parametrize("starts", [False, True])
def test_cancelled_call_of_dead_worker_never_reruns(
    ledger: Ledger, hasty: Ledger, redis: Redis, starts: bool
) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    redis.delete("agent.coder")
    claim = claimed(hasty, call, AGAIN)
    if starts:
        hasty.start([claim.id_and_token]).run(hasty.redis)
    assert ledger.cancel(call_id, "producer").run(ledger.redis) is None
    assert swept(ledger).verdict is Verdict.CANCELLED
    assert not ledger.release(claim, died=False, message=b"again").run(ledger.redis)
    assert redis.llen("agent.coder") == 0


def test_call_cancelled_while_handed_on_is_not_queued(
    ledger: Ledger, hasty: Ledger, redis: Redis, reaper: Reaper
) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    redis.delete("agent.coder")
    claimed(hasty, call, AGAIN)
    taken = swept(ledger)
    assert taken.verdict is Verdict.REQUEUE
    ledger.cancel(call_id, "producer").run(ledger.redis)
    reaper.settle(taken)
    assert code_of(ledger, call_id) == ToolCancelledError.code
    assert redis.llen("agent.coder") == 0


@pytest.mark.parametrize("call_json", [b"{", b'{"v":2}'])
def test_call_that_cannot_be_read_is_not_found(ledger: Ledger, redis: Redis, call_json: bytes) -> None:
    call_id = submit(ledger, a_call())
    redis.hset(ledger.keys.call(call_id), "call", call_json)
    with pytest.raises(CallNotFoundError):
        ledger.cancel(call_id, "producer").run(ledger.redis)

"""A Step of a producer is kept with the result of the call that has opened it, or not at all."""

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.history import StepRecord, StepStore
from goondan_tasks.history.store import digest_of_catalog
from goondan_tasks.ledger.endings import finish_step
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Stored
from tests.unit.goondan_tasks.ledger.calls import AGAIN, a_call, claimed, submit

CATALOG = b"[]"


def record_of(call: ToolCall, block: str) -> StepRecord:
    return StepRecord(
        id=identity_of(call),
        agent_name=call.agent_name,
        instance_key=call.instance_key,
        turn_id=call.turn_id,
        trace_id=call.trace_id,
        index=0,
        catalog=digest_of_catalog(CATALOG),
        blocks=({"type": block},),
    )


def finish(ledger: Ledger, claim: Claim, block: str) -> int:
    """End a call that opens a Step with this block, as its worker does."""
    call, store = claim.run.call, StepStore(ledger.redis, ledger.keys, 60)
    stored = ledger.finish_many([ledger.ended_with(claim, claim.run.ok({"by": block}, 0.0))])
    keeping = store.keeping(record_of(call, block), CATALOG, message={"role": "user"})
    [answer] = finish_step(ledger.scripts.finish_step, stored, keeping).run(ledger.redis)
    return answer


def blocks(ledger: Ledger, call: ToolCall) -> list[str]:
    kept = StepStore(ledger.redis, ledger.keys, 60).read(identity_of(call))
    return [] if kept is None else [block["type"] for block in kept.record.blocks]


def lines(ledger: Ledger, call: ToolCall) -> int:
    store = StepStore(ledger.redis, ledger.keys, 60)
    return len(store.turn(call.agent_name, call.instance_key, call.turn_id))


def test_step_and_result_are_stored_together(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    assert finish(ledger, claimed(ledger, call), "first") > Stored.LOST
    assert (blocks(ledger, call), lines(ledger, call)) == (["first"], 1)
    result = ledger.result(identity_of(call))
    assert result is not None
    assert result.output == {"by": "first"}


def test_run_whose_claim_is_lost_keeps_no_step(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    frozen = claimed(ledger, call, AGAIN)
    ledger.redis.hset(ledger.keys.call(identity_of(call)), "token", "that of the next run")
    assert finish(ledger, frozen, "late") == Stored.LOST
    assert (blocks(ledger, call), lines(ledger, call)) == ([], 0)


def test_cancelled_call_keeps_no_step(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    claim = claimed(ledger, call)
    ledger.redis.hset(ledger.keys.call(identity_of(call)), "cancelled", "producer")
    assert finish(ledger, claim, "unwanted") == Stored.CANCELLED
    assert blocks(ledger, call) == []


def test_broken_off_end_of_claim_leaves_step_unchanged(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    claim = claimed(ledger, call)
    finish(ledger, claim, "first")
    ledger.redis.hset(ledger.keys.call(identity_of(call)), "token", claim.token)
    assert finish(ledger, claim, "second") > Stored.LOST
    assert (blocks(ledger, call), lines(ledger, call)) == (["first"], 1)


def test_step_without_result_is_replaced(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    store = StepStore(ledger.redis, ledger.keys, 60)
    store.run(store.keeping(record_of(call, "of a worker that died"), CATALOG, message={"role": "user"}))
    store.note_unregistered(identity_of(call), ["gone"])
    assert finish(ledger, claimed(ledger, call), "first") > Stored.LOST
    assert blocks(ledger, call) == ["first"]
    assert store.left_by(identity_of(call), call).unregistered == ()


def test_call_whose_step_cannot_be_kept_is_still_claimed(ledger: Ledger, redis: Redis) -> None:
    call = a_call()
    submit(ledger, call)
    claim, key = claimed(ledger, call), ledger.keys.step(identity_of(call))
    redis.set(key, "of another program")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        finish(ledger, claim, "first")
    assert ledger.result(identity_of(call)) is None
    redis.delete(key)
    assert finish(ledger, claim, "first") > Stored.LOST

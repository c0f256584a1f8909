"""What is kept of a call that has ended, and what is read from it."""

import json
from typing import Any, cast

import pytest
from redis import Redis

from broker_config import serializer
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.errors import CallClosedError
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger.call_filter import ids_beginning_with
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim
from goondan_tasks.ledger.submission import Submission, call_json, digest_of
from tests.unit.goondan_tasks.ledger.calls import ONCE, a_call, claimed, record_of, submit

#: what tells a plain call's arguments from the rest stands in them, too
TRICKY = {"callChain": [], "args": '"callChain":[],"args":', "v": 1}


def submitted(ledger: Ledger, args: Any) -> ToolCall:
    """Submit a call as a client does."""
    call = new_call("coder", "bash__exec", args, {})
    written = serializer.encode(call.args)
    submission = Submission(identity_of(call), call, call_json(call, written), digest_of(call), b"message")
    ledger.submit_all([submission], "p1")
    return call


def finish_plainly(ledger: Ledger, claim: Claim, output: Any = 1, *, is_marked: bool = True) -> None:
    """Finish a call as the lead does whose handler has returned."""
    if is_marked:
        ledger.start([claim.id_and_token]).run(ledger.redis)
    result = claim.run.ok(output, claim.run.clock())
    row = ledger.ended(claim, serializer.encode(result.to_wire()), outcome="ok", kind="plain")
    assert ledger.finish_many([row]).run(ledger.redis)[0] > 0


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("args", [{}, {"command": "ls\n"}, TRICKY, {"a": [{"b": None}], "ü": "\u2028"}])
def test_of_plain_call_arguments_and_result_are_kept(
    ledger: Ledger, redis: Redis, args: Any, is_marked: bool
) -> None:
    call = submitted(ledger, args)
    before = record_of(ledger, call)
    finish_plainly(ledger, claimed(ledger, call), is_marked=is_marked)
    fields = redis.hkeys(ledger.keys.call(identity_of(call)))
    assert sorted(cast("list[bytes]", fields)) == [b"args", b"result", b"status"]
    after = record_of(ledger, call)
    assert after.call == call
    assert (after.status, after.outcome, after.attempt, after.worker) == ("done", "ok", 1, "w1")
    assert abs(after.queued_at - before.queued_at) <= 1
    assert (after.claimed_at or 0) <= (after.finished_at or 0) + 1
    result = ledger.result(identity_of(call))
    assert result is not None
    assert result.output == 1


@pytest.mark.parametrize(
    "damage",
    [{"args": b""}, {"args": b"digest 1"}, {"args": b"digest 1 {"}, {"result": b"{}"}, {"result": b""}],
    ids=str,
)
def test_plain_record_that_is_damaged_is_not_record(
    ledger: Ledger, redis: Redis, damage: dict[str, bytes]
) -> None:
    call = submitted(ledger, {})
    finish_plainly(ledger, claimed(ledger, call))
    redis.hset(ledger.keys.call(identity_of(call)), mapping=damage)  # type: ignore[arg-type]
    assert ledger.record(identity_of(call)) is None


def test_ended_plain_call_is_known_when_resubmitted(ledger: Ledger) -> None:
    call = submitted(ledger, {"command": "ls"})
    finish_plainly(ledger, claimed(ledger, call))
    again = Submission(identity_of(call), call, b"{}", digest_of(call), b"message")
    other = again._replace(digest="another")
    assert [one.status for one in ledger.submit_all([again], "p2")] == ["done"]
    assert [one.is_conflict for one in ledger.submit_all([other], "p2")] == [True]
    with pytest.raises(CallClosedError):
        ledger.cancel(identity_of(call), "somebody").run(ledger.redis)
    assert not ledger.claim(ClaimRequest(identity_of(call), call, "w2", ONCE)).run(ledger.redis).is_ours


def test_finished_call_keeps_its_history_in_record(ledger: Ledger) -> None:
    call = submitted(ledger, {"command": "ls"})
    ledger.release(claimed(ledger, call), died=True).run(ledger.redis)
    finish_plainly(ledger, claimed(ledger, call))
    record = record_of(ledger, call)
    assert (record.call, record.attempt, record.outcome) == (call, 2, "ok")


def test_celery_reads_results_of_its_own_calls_only(ledger: Ledger, redis: Redis) -> None:
    ours, theirs = a_call(), a_call(turn_id="theirs")
    submit(ledger, ours)
    for call in (ours, theirs):
        claim = claimed(ledger, call)
        ledger.finish(claim, claim.run.ok("done", None)).run(ledger.redis)
    assert redis.get(ledger.keys.celery_result(identity_of(ours))) is None
    stored = redis.get(ledger.keys.celery_result(identity_of(theirs)))
    assert isinstance(stored, bytes)
    record = json.loads(stored)
    assert (record["status"], record["result"]["output"]) == ("SUCCESS", "done")


def test_id_prefix_finds_call_behind_many_newer_calls(ledger: Ledger, redis: Redis) -> None:
    call_id = submit(ledger, a_call())
    agent = a_call().agent_name
    redis.zadd(ledger.keys.calls(agent), {f"newer-{number}": 1e15 + number for number in range(3000)})
    redis.set(ledger.keys.calls("damaged"), "overwritten")

    agents = ["damaged", agent]

    assert ids_beginning_with(ledger, call_id[:8], agents) == [call_id]
    assert ids_beginning_with(ledger, "*", agents) == []
    assert len(ids_beginning_with(ledger, "newer-", agents)) == 3000

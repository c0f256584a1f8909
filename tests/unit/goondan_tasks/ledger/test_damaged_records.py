"""Scripts and readers of several records: one that is overwritten concerns its call alone."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from broker_config.queues import call_queue
from broker_config.scripts import ScriptCall
from goondan_tasks.client.status import read_backlogs, read_unfetched_mail
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.instances.housekeeping import LiveCalls
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.losses import losses_of_agents
from goondan_tasks.ledger.record import Claim, Outcome, Stored, Verdict
from tests.unit.goondan_tasks.ledger.calls import (
    AGAIN,
    a_call,
    an_event,
    claimed,
    record_of,
    reserved,
    submission,
    submit,
    swept,
)
from tests.unit.goondan_tasks.ledger.test_mailboxes import QUEUE, Post


def overwrite(redis: Redis, *keys: str) -> None:
    for key in keys:
        redis.set(key, "overwritten")


@pytest.fixture
def three(ledger: Ledger) -> list[ToolCall]:
    """Three calls that were submitted."""
    calls = [a_call(tool_call_id=f"call_{number}") for number in range(3)]
    ledger.submit_all([submission(call) for call in calls], "p1")
    return calls


def claims_around_a_damaged_one(ledger: Ledger, redis: Redis, calls: Sequence[ToolCall]) -> list[Claim]:
    """Claim the calls, and overwrite the record of the second."""
    claims = [claimed(ledger, call) for call in calls]
    overwrite(redis, ledger.keys.call(identity_of(calls[1])))
    return claims


def pairs(claims: Sequence[Claim]) -> list[tuple[str, str]]:
    return [claim.id_and_token for claim in claims]


def test_marks_of_others_count_beside_damaged_record(
    ledger: Ledger, redis: Redis, three: list[ToolCall]
) -> None:
    claims = claims_around_a_damaged_one(ledger, redis, three)
    answers = ledger.start(pairs(claims)).run(redis)
    assert answers == [Stored.YES, Stored.DAMAGED, Stored.YES]
    assert record_of(ledger, three[2]).has_started


def test_leases_of_others_are_renewed_beside_damaged_record(
    ledger: Ledger, redis: Redis, three: list[ToolCall]
) -> None:
    claims = claims_around_a_damaged_one(ledger, redis, three)
    for claim in claims:
        redis.zadd(ledger.keys.due, {claim.run.id: 1})
    assert ledger.renew(pairs(claims)).run(redis) == {claims[1].run.id}
    assert [redis.zscore(ledger.keys.due, claim.run.id) == 1 for claim in claims] == [False, True, False]


def test_cancels_of_others_are_seen_beside_damaged_record(
    ledger: Ledger, redis: Redis, three: list[ToolCall]
) -> None:
    ids = [claim.run.id for claim in claims_around_a_damaged_one(ledger, redis, three)]
    ledger.cancel(ids[2], "p1").run(redis)
    assert ledger.cancelled_ids(ids).run(redis) == {ids[2]}


def test_results_of_others_are_stored_beside_damaged_record(
    ledger: Ledger, redis: Redis, three: list[ToolCall]
) -> None:
    claims = claims_around_a_damaged_one(ledger, redis, three)
    ended = [ledger.ended(claim, b"{}", outcome="ok", kind="") for claim in claims]
    first, damaged, last = ledger.finish_many(ended).run(redis)
    assert (first > 0, damaged, last > 0) == (True, Stored.DAMAGED, True)
    assert redis.zcard(ledger.keys.due) == redis.zcard(ledger.keys.running("coder")) == 0


@pytest.mark.parametrize("family", ["running", "calls", "dead_letters"])
def test_damaged_agent_list_stops_neither_claim_nor_end(ledger: Ledger, redis: Redis, family: str) -> None:
    overwrite(redis, getattr(ledger.keys, family)("coder"))
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    assert redis.zscore(ledger.keys.due, claim.run.id) is not None
    assert ledger.finish(claim, claim.run.ok(1, None)).run(redis) is Stored.YES
    assert record_of(ledger, a_call()).status == "done"


def test_batch_accepts_calls_beside_damaged_record(ledger: Ledger, redis: Redis) -> None:
    calls = [a_call(tool_call_id=f"call_{number}", correlation_id="c") for number in range(3)]
    overwrite(redis, ledger.keys.call(identity_of(calls[1])), ledger.keys.trace("c"))
    admissions = ledger.submit_all([submission(call) for call in calls], "p1")
    assert [one.is_damaged for one in admissions] == [False, True, False]
    assert redis.llen(call_queue("coder")) == redis.zcard(ledger.keys.due) == 2


def test_only_event_for_damaged_mailbox_is_refused(redis: Redis) -> None:
    post = Post(redis)
    overwrite(redis, post.ledger.keys.mailbox("coder@broken"))
    events = [an_event(number, instance) for number, instance in enumerate(("i", "broken", "j"))]
    post.put(*events)
    assert post.messages() == ["e0", "e2"]
    assert post.ledger.record(identity_of(events[1])) is None


def test_message_with_damaged_record_awaits_own_claim(ledger: Ledger, redis: Redis) -> None:
    terms = ledger.claim_on_reserve("w1", 3, {"agent.coder": {}})
    submit(ledger, a_call())
    overwrite(redis, ledger.keys.call(identity_of(a_call())))
    assert not reserved(redis, terms, a_call())
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        claimed(ledger, a_call())


def test_sweep_takes_others_and_logs_damaged_call_lost(
    hasty: Ledger, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    redis.hset(hasty.keys.agents, "coder", "{}")
    calls = [a_call(tool_call_id=name) for name in ("damaged", "good")]
    for call in calls:
        submit(hasty, call)
        claimed(hasty, call, AGAIN)
    damaged, good = map(identity_of, calls)
    overwrite(redis, hasty.keys.call(damaged))
    assert swept(hasty).run.id == good
    assert f"call '{damaged}' is lost: its record is damaged" in caplog.text
    assert redis.zscore(hasty.keys.running("coder"), damaged) is None
    caplog.clear()
    assert swept(hasty).run.id == good
    assert damaged not in caplog.text


@pytest.mark.parametrize("is_damaged_key", [True, False], ids=["a key of due", "a worker's name"])
def test_sweep_takes_other_calls_despite_undecodable_name(
    ledger: Ledger, redis: Redis, three: list[ToolCall], is_damaged_key: bool
) -> None:
    for call in three:
        claimed(ledger, call)
        redis.zadd(ledger.keys.due, {identity_of(call): 1})
    ledger.sweep("sweeper").run(redis)
    if is_damaged_key:
        redis.set(ledger.keys.call("").encode() + b"\xff", "text")
        redis.zadd(ledger.keys.due, {b"\xff": 0})
    else:
        redis.hset(ledger.keys.call(identity_of(three[1])), "worker", b"\xff")
    for call in three:
        redis.zadd(ledger.keys.due, {identity_of(call): 1})

    assert len(ledger.sweep("sweeper").run(redis)) == 3


def test_other_submissions_count_despite_undecodable_status(
    ledger: Ledger, redis: Redis, three: list[ToolCall]
) -> None:
    redis.hset(ledger.keys.call(identity_of(three[1])), "status", b"\xff")
    fresh = a_call(tool_call_id="fresh")

    admissions = ledger.submit_all([submission(call) for call in (*three, fresh)], "p1")

    assert [admission.is_new for admission in admissions] == [False, False, False, True]


def test_event_comes_when_sweep_finds_damaged_predecessor(redis: Redis) -> None:
    post = Post(redis, lease_seconds=0.02)
    redis.hset(post.ledger.keys.agents, "coder", "{}")
    first, second = an_event(0), an_event(1)
    post.put(first, second)
    post.claim_event(first)
    post.claim_event(second)
    post.take_messages()
    overwrite(redis, post.ledger.keys.call(identity_of(first)))
    redis.zadd(post.ledger.keys.due, {identity_of(first): 1})
    post.ledger.sweep("sweeper").run(redis)
    assert post.take_messages() == ["e1"]


def test_event_comes_when_damaged_predecessor_ends(redis: Redis) -> None:
    post = Post(redis)
    first, second = an_event(0), an_event(1)
    post.put(first, second)
    claim = post.claim_event(first)
    post.claim_event(second)
    post.take_messages()
    overwrite(redis, post.ledger.keys.call(identity_of(first)))
    assert post.end(claim) is Stored.DAMAGED
    assert post.take_messages() == ["e1"]
    assert post.claim_event(second).verdict is Verdict.RUN


def test_producer_fetches_past_damaged_event_and_mailbox(redis: Redis) -> None:
    post = Post(redis)
    events = [an_event(0, "a"), an_event(1, "b"), an_event(2, "b")]
    post.put(*events)
    overwrite(redis, post.ledger.keys.mailbox("coder@a"), post.ledger.keys.call(identity_of(events[1])))
    redis.delete(QUEUE)
    redis.lpush(QUEUE, f'{{"headers":{{"lang":"py","task":"t","id":"{identity_of(events[1])}"')
    fetched = post.fetch()
    assert fetched is not None
    assert fetched.run.id == identity_of(events[2])
    assert post.messages() == []


def test_parked_events_are_released_despite_damaged_mailboxes(redis: Redis) -> None:
    post = Post(redis)
    events = [an_event(0, "a"), an_event(1, "b"), an_event(2, "c")]
    post.put(*events)
    for event in events:
        post.claim_event(event, is_handled_here=False)
    post.take_messages()
    overwrite(redis, post.ledger.keys.mailbox("coder@a"), post.ledger.keys.call(identity_of(events[1])))
    post.reaper.release_events("coder")
    assert post.take_messages() == ["e2"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda ledger, claim: ledger.cancel(claim.run.id, "p1"),
        lambda ledger, claim: ledger.resolve(claim.run.id, Outcome(1), "p1"),
        lambda ledger, claim: ledger.approve(claim.run.id, claim.run.call, "p1"),
    ],
    ids=["cancel", "complete", "approve"],
)
def test_operation_on_damaged_record_finds_no_call(
    ledger: Ledger, redis: Redis, operation: Callable[[Ledger, Claim], ScriptCall[Any]]
) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    overwrite(redis, ledger.keys.call(claim.run.id))
    with pytest.raises(CallNotFoundError, match="damaged"):
        operation(ledger, claim).run(redis)


@pytest.mark.parametrize(
    "operation",
    [
        lambda ledger, claim: ledger.progress(claim.run.id, claim.token, b"1"),
        lambda ledger, claim: ledger.emit(claim.run.id, claim.token, claim.run.id, b"[]"),
        lambda ledger, claim: ledger.retry(claim, pause_ms=1, begun_at=1, code="E_TOOL", message=b"again"),
        lambda ledger, claim: ledger.release(claim, died=False),
        lambda ledger, claim: ledger.replayed(claim.run.id, "by", 1),
    ],
    ids=["progress", "emit", "retry", "release", "replayed"],
)
def test_operation_of_holder_on_damaged_record_changes_nothing(
    ledger: Ledger, redis: Redis, operation: Callable[[Ledger, Claim], ScriptCall[Any]]
) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    key = ledger.keys.call(claim.run.id)
    overwrite(redis, key)
    assert not operation(ledger, claim).run(redis)
    assert redis.get(key) == b"overwritten"


def test_readers_omit_damaged_record_logging_its_key(
    ledger: Ledger, redis: Redis, three: list[ToolCall], caplog: pytest.LogCaptureFixture
) -> None:
    claims = claims_around_a_damaged_one(ledger, redis, three)
    ids = [claim.run.id for claim in claims]
    for call_id in ids:  # as if the leases were about to end
        redis.zadd(ledger.keys.due, {call_id: 1})
    assert [one is None for one in ledger.records(ids)] == [False, True, False]
    assert {one.id for one in ledger.recent(["coder"], 10)} == {ids[0], ids[2]}
    assert {loss.worker for loss in losses_of_agents(ledger, ["coder"])["coder"]} == {"w1"}
    assert {one.id for one in LiveCalls(ledger).all()} == {ids[0], ids[2]}
    assert ledger.keys.call(ids[1]) in caplog.text
    with pytest.raises(ValueError, match="WRONGTYPE"):
        ledger.result(ids[1])


@pytest.mark.parametrize(("field", "text"), [("status", "asleep"), ("status", ""), ("outcome", "maybe")])
def test_record_with_unknown_state_is_unreadable(
    ledger: Ledger, redis: Redis, three: list[ToolCall], field: str, text: str
) -> None:
    redis.hset(ledger.keys.call(identity_of(three[1])), field, text)
    records = ledger.records([identity_of(call) for call in three])
    assert [one is None for one in records] == [False, True, False]


def test_damaged_lists_hide_no_other_agents_queue(ledger: Ledger, redis: Redis) -> None:
    submit(ledger, a_call())
    keys = ledger.keys
    overwrite(redis, keys.running("planner"), keys.dead_letters("planner"), keys.mailboxes("planner"))
    overwrite(redis, call_queue("planner"))
    backlogs = read_backlogs(redis, keys, ["planner", "coder"])
    assert [backlogs[name].queue.backlog for name in ("planner", "coder")] == [0, 1]


def test_unfetched_mail_is_counted_past_damaged_event(redis: Redis) -> None:
    post = Post(redis)
    events = [an_event(0, "a"), an_event(1, "b")]
    post.put(*events)
    overwrite(redis, post.ledger.keys.call(identity_of(events[0])))
    [mail] = read_unfetched_mail(redis, post.ledger.keys, ["coder"], older_than_seconds=0)
    assert mail.mailboxes == 1


def test_wrong_type_fails_one_row_refusal_fails_all(
    ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = ResponseError("OOM command not allowed when used memory > 'maxmemory'.")
    monkeypatch.setattr("redis.client.Pipeline.execute", lambda *_, **__: [refused])
    with pytest.raises(ResponseError, match="maxmemory"):
        ledger.records(["id-1"])

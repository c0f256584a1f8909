"""A script that fails keeps what it has written before: no call is lost, and none waits without end."""

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.in_flight import ReservationFactory
from broker_config.queues import call_queue
from broker_config.settings import Settings
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Stored, Verdict
from goondan_tasks.ledger.submission import Submission
from tests.unit.goondan_tasks.ledger.calls import a_call, an_event, claimed, record_of, submission, submit
from tests.unit.goondan_tasks.ledger.test_mailboxes import QUEUE, Post
from tests.waiting import wait_until

CODER = call_queue("coder")


def overwrite(redis: Redis, key: str) -> None:
    redis.delete(key)
    redis.set(key, "overwritten")


@pytest.mark.parametrize("key", [CODER, "goondan:due"])
def test_failed_submit_is_queued_when_repeated(ledger: Ledger, redis: Redis, key: str) -> None:
    overwrite(redis, key)
    with pytest.raises(ResponseError):
        ledger.submit_all([submission(a_call())], "p1")
    redis.delete(key)
    [admission] = ledger.submit_all([submission(a_call())], "p1")
    assert admission.is_new
    assert redis.lrange(CODER, 0, -1) == [b"message"]


def test_call_twice_in_batch_is_accepted_once(ledger: Ledger, redis: Redis) -> None:
    one = submission(a_call())
    admissions = ledger.submit_all([one, one, one._replace(digest="0")], "p1")
    assert [admission.is_new for admission in admissions] == [True, False, False]
    assert [admission.is_conflict for admission in admissions] == [False, False, True]
    assert redis.llen(CODER) == 1


def test_messages_stay_queued_when_their_reservation_fails(ledger: Ledger, redis: Redis) -> None:
    ours = b'{"headers":{"lang":"py","task":"goondan.tool_call","id":"%b","shadow":"bash__exec",'
    call_id = submit(ledger, a_call())
    messages = [b"of plain Celery", ours % call_id.encode()]
    redis.delete(CODER)
    redis.lpush(CODER, *messages)
    overwrite(redis, ledger.keys.due)
    reservations = ReservationFactory()
    reservations.claim_with(ledger.claim_on_reserve("w1", 3, {CODER: {}}))
    with pytest.raises(ResponseError):
        reservations.make([CODER], 2).script_call.run(redis)
    assert redis.lrange(CODER, 0, -1) == messages[::-1]
    assert record_of(ledger, a_call()).status == "queued"


def test_reservation_of_some_leaves_others_in_order(redis: Redis) -> None:
    redis.lpush(CODER, "1", "2", "3", "4")
    _, taken = ReservationFactory().make([CODER], 3).script_call.run(redis)
    assert taken[2::4] == [b"1", b"2", b"3"]
    assert redis.lrange(CODER, 0, -1) == [b"4"]


def test_claim_is_kept_when_its_release_fails(ledger: Ledger, redis: Redis) -> None:
    call_id = submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    lease = redis.zscore(ledger.keys.due, call_id)
    overwrite(redis, CODER)
    with pytest.raises(ResponseError):
        ledger.release(claim, died=False, message=b"again").run(redis)
    assert record_of(ledger, a_call()).status == "running"
    assert redis.zscore(ledger.keys.due, call_id) == lease


def test_death_counts_though_release_was_broken_off(ledger: Ledger, redis: Redis) -> None:
    call_id = submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    overwrite(redis, ledger.keys.due)
    release = ledger.release(claim, died=True, message=b"again")
    with pytest.raises(ResponseError):
        release.run(redis)
    redis.delete(ledger.keys.due)
    assert release.run(redis)
    assert redis.hmget(ledger.keys.call(call_id), "status", "deaths", "attempt") == [b"queued", b"1", b"1"]


def test_result_is_stored_though_deadlines_are_damaged(ledger: Ledger, redis: Redis) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    overwrite(redis, ledger.keys.due)
    assert ledger.finish(claim, claim.run.ok(1, None)).run(redis) is Stored.YES


def test_message_of_damaged_event_admits_next(redis: Redis) -> None:
    post = Post(redis)
    damaged, following = an_event(0), an_event(1)
    post.put(damaged, following)
    post.claim_event(following)
    post.take_messages()
    overwrite(redis, post.ledger.keys.call(submission(damaged).id))
    with pytest.raises(ResponseError):
        post.claim_event(damaged)
    assert post.messages() == ["e1"]
    assert post.claim_event(following).verdict is Verdict.RUN


def test_next_event_is_admitted_despite_unsendable_answer(redis: Redis) -> None:
    post = Post(redis)
    events = [an_event(number, asker="planner", awaited=False) for number in range(2)]
    post.put(*events)
    claim = post.claim_event(events[0])
    post.claim_event(events[1])
    post.take_messages()
    overwrite(redis, "agent.planner.events")
    result = claim.run.ok(None, 0.0)
    answer = post.reaper.answer(claim, result)
    assert post.ledger.finish(claim, result, answer).run(redis) is Stored.YES
    assert post.messages() == ["e1"]
    assert redis.llen(QUEUE) == 1


def test_queued_call_due_too_early_regains_deadline(ledger: Ledger, redis: Redis) -> None:
    call_id = submit(ledger, a_call())
    deadline = redis.zscore(ledger.keys.due, call_id)
    redis.zadd(ledger.keys.due, {call_id: 1})
    assert ledger.sweep("s").run(redis) == []
    assert record_of(ledger, a_call()).status == "queued"
    assert redis.zscore(ledger.keys.due, call_id) == deadline


def test_ended_call_still_due_leaves_all_lists(ledger: Ledger, redis: Redis) -> None:
    call_id = submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    ledger.finish(claim, claim.run.ok(1, None)).run(redis)
    redis.hset(ledger.keys.agents, "coder", "{}")
    redis.zadd(ledger.keys.running("coder"), {call_id: 1})
    redis.zadd(ledger.keys.due, {call_id: 1})
    redis.persist(ledger.keys.call(call_id))
    assert ledger.sweep("s").run(redis) == []
    assert redis.zcard(ledger.keys.running("coder")) == 0
    assert redis.zscore(ledger.keys.due, call_id) is None
    assert redis.ttl(ledger.keys.call(call_id)) > 0


def test_stored_result_survives_later_end_of_claim(ledger: Ledger, redis: Redis) -> None:
    call_id = submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    stored = serializer.encode(claim.run.ok("first", None).to_wire())
    redis.hset(ledger.keys.call(call_id), mapping={"status": "done", "outcome": "ok", "result": stored})
    assert ledger.finish(claim, claim.run.ok("second", None)).run(redis) is Stored.YES
    result = ledger.result(call_id)
    assert result is not None
    assert result.output == "first"
    assert not redis.hexists(ledger.keys.call(call_id), "token")


def test_sweep_admits_event_behind_one_that_has_ended(redis: Redis) -> None:
    post = Post(redis)
    first, following = an_event(0), an_event(1)
    post.put(first, following)
    post.claim_event(first)
    post.claim_event(following)
    post.take_messages()
    call_id = submission(first).id
    redis.hset(post.ledger.keys.call(call_id), "status", "done")
    redis.hdel(post.ledger.keys.call(call_id), "token")
    redis.zadd(post.ledger.keys.due, {call_id: 1})
    assert post.ledger.sweep("s").run(redis) == []
    assert post.messages() == ["e1"]


@pytest.mark.parametrize("is_overwritten", [False, True])
def test_sweep_restores_deadlines_removed_by_another_program(
    ledger: Ledger, redis: Redis, *, is_overwritten: bool
) -> None:
    redis.hset(ledger.keys.agents, "coder", "{}")
    waiting = a_call(tool_call_id="call_2")
    call_id, waiting_id = submit(ledger, a_call()), submit(ledger, waiting)
    claimed(ledger, a_call())
    deadline = redis.zscore(ledger.keys.due, waiting_id)
    redis.delete(ledger.keys.due)
    if is_overwritten:
        redis.set(ledger.keys.due, "overwritten")
    assert ledger.sweep("s").run(redis) == []
    assert redis.zscore(ledger.keys.due, waiting_id) == deadline
    assert redis.zscore(ledger.keys.due, call_id) is not None
    assert redis.ttl(ledger.keys.due) > 0


def test_call_without_lease_is_taken_from_dead_worker(redis: Redis) -> None:
    ledger = Ledger(redis, Settings(lease_seconds=0.2))
    redis.hset(ledger.keys.agents, "coder", "{}")
    submit(ledger, a_call())
    claimed(ledger, a_call())
    redis.delete(ledger.keys.due)
    claims: list[Claim] = []

    def has_taken() -> bool:
        claims.extend(ledger.sweep("s").run(redis))
        return bool(claims)

    wait_until(has_taken)
    assert claims[0].verdict is Verdict.REQUEUE


def test_sweep_continues_despite_damaged_last_sweep_time(ledger: Ledger, redis: Redis) -> None:
    redis.set(ledger.keys.swept, "overwritten")
    assert ledger.sweep("s").run(redis) == []
    assert redis.get(ledger.keys.swept) != b"overwritten"


def test_first_sweep_drops_ended_call_spared_once(ledger: Ledger, redis: Redis) -> None:
    call_id = submit(ledger, a_call())
    redis.hset(ledger.keys.call(call_id), mapping={"status": "done", "spared": "token"})
    redis.zadd(ledger.keys.due, {call_id: 1})
    redis.delete(ledger.keys.swept)
    assert ledger.sweep("s").run(redis) == []
    assert redis.zscore(ledger.keys.due, call_id) is None


def end_with_an_answer(post: Post, damaged: str) -> Submission:
    """End an event whose asker must handle the answer, when a key has been overwritten; return the answer."""
    event = an_event(0, asker="planner", awaited=False)
    post.put(event)
    claim = post.claim_event(event)
    overwrite(post.redis, damaged)
    result = claim.run.ok(None, 0.0)
    answer = post.reaper.answer(claim, result)
    assert answer is not None
    assert post.ledger.finish(claim, result, answer).run(post.redis) is Stored.YES
    return answer


def test_answer_is_accepted_though_deadlines_are_damaged(redis: Redis) -> None:
    post = Post(redis)
    redis.hset(post.ledger.keys.agents, "planner", "{}")
    answer = end_with_an_answer(post, post.ledger.keys.due)
    assert redis.lrange("agent.planner.events", 0, -1) == [answer.message]
    post.ledger.sweep("s").run(redis)
    deadline = redis.hget(post.ledger.keys.call(answer.id), "deadline")
    assert deadline is not None
    assert redis.zscore(post.ledger.keys.due, answer.id) == float(deadline)


def test_answer_waits_while_askers_queue_is_damaged(redis: Redis) -> None:
    post, queue = Post(redis), "agent.planner.events"
    answer = end_with_an_answer(post, queue)
    redis.delete(queue)
    following = an_event(1, "j", asker="planner").model_copy(update={"agent_name": "planner"})
    post.put(following)
    assert post.claim_event(following).verdict is Verdict.WAITING
    assert answer.message in redis.lrange(queue, 0, -1)

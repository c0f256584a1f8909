"""The ledger's verbs, on a Redis in memory."""

import dataclasses
import time
from collections.abc import Callable

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Stored, Verdict
from goondan_tasks.ledger.submission import event_submission
from tests.unit.goondan_tasks.ledger.calls import (
    AGAIN,
    ONCE,
    a_call,
    an_event,
    claimed,
    submission,
    submit,
    swept,
)
from tests.waiting import wait_until


def test_submitted_call_is_recorded_queued_and_indexed(ledger: Ledger, redis: Redis) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    record = ledger.record(call_id)
    assert record is not None
    assert (record.status, record.call, record.attempt) == ("queued", call, 0)
    assert redis.lrange("agent.coder", 0, -1) == [b"message"]
    assert [found.id for found in ledger.recent(["coder"], 10)] == [call_id]


def test_same_call_again_is_same_call(ledger: Ledger, redis: Redis) -> None:
    first, again = (ledger.submit_all([submission(a_call())], producer) for producer in ("p1", "p2"))
    assert [(admission.is_new, admission.status) for admission in first + again] == [
        (True, "queued"),
        (False, "queued"),
    ]
    assert redis.llen("agent.coder") == 1


def test_same_identity_with_other_arguments_is_conflict(ledger: Ledger) -> None:
    submit(ledger, a_call())
    other = a_call().model_copy(update={"args": {"command": "rm"}})
    beside = a_call(turn_id="turn-2")
    admissions = ledger.submit_all([submission(other), submission(beside)], "p1")
    assert [(admission.is_conflict, admission.is_new) for admission in admissions] == [
        (True, False),
        (False, True),
    ]


def test_call_has_one_claim_at_a_time(ledger: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    assert ledger.claim(ClaimRequest(call_id, call, "w1", ONCE)).run(ledger.redis).verdict is Verdict.RUN
    assert ledger.claim(ClaimRequest(call_id, call, "w2", ONCE)).run(ledger.redis).verdict is Verdict.HELD


def test_plain_celery_call_gets_record_when_claimed(ledger: Ledger) -> None:
    call = a_call()
    claim = ledger.claim(ClaimRequest("plain-id", call, "w1", ONCE)).run(ledger.redis)
    assert (claim.verdict, claim.run.attempt) == (Verdict.RUN, 1)
    record = ledger.record("plain-id")
    assert record is not None
    assert record.call == call


def test_plain_call_past_deadline_is_not_run(ledger: Ledger) -> None:
    late = a_call().model_copy(update={"deadline": "2020-01-01T00:00:00.000Z"})
    assert (
        ledger.claim(ClaimRequest("plain-id", late, "w1", ONCE)).run(ledger.redis).verdict is Verdict.EXPIRED
    )


def test_result_is_stored_once_and_read_back(ledger: Ledger, redis: Redis) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = ledger.claim(ClaimRequest(call_id, call, "w1", ONCE)).run(ledger.redis)
    assert Stored(ledger.start([claim.id_and_token]).run(ledger.redis)[0]) is Stored.YES
    result = claim.run.ok({"x": None}, claim.run.clock())
    assert ledger.finish(claim, result).run(ledger.redis) is Stored.YES
    assert ledger.finish(claim, result).run(ledger.redis) is Stored.LOST
    assert ledger.result(call_id) == result
    record = ledger.record(call_id)
    assert record is not None
    assert (record.status, record.outcome) == ("done", "ok")
    assert ledger.claim(ClaimRequest(call_id, call, "w2", ONCE)).run(ledger.redis).verdict is Verdict.DONE


def test_result_without_current_token_is_not_stored(ledger: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = ledger.claim(ClaimRequest(call_id, call, "w1", ONCE)).run(ledger.redis)
    stale = dataclasses.replace(claim, token="another")
    assert Stored(ledger.start([stale.id_and_token]).run(ledger.redis)[0]) is Stored.LOST
    assert not ledger.finish(stale, claim.run.ok(1, None)).run(ledger.redis)
    assert ledger.renew([stale.id_and_token]).run(ledger.redis) == {call_id}
    assert ledger.renew([claim.id_and_token]).run(ledger.redis) == set()


def test_all_submitters_are_notified_of_result(ledger: Ledger, redis: Redis) -> None:
    call = a_call()
    listener = redis.pubsub()  # type: ignore[no-untyped-call]
    listener.subscribe("goondan:results:p1", "goondan:results:p2")
    call_id = submit(ledger, call, "p1")
    submit(ledger, call, "p2")
    claim = ledger.claim(ClaimRequest(call_id, call, "w1", ONCE)).run(ledger.redis)
    ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)
    told = [m for m in iter(lambda: listener.get_message(timeout=1), None) if m["type"] == "message"]
    assert {m["channel"] for m in told} == {b"goondan:results:p1", b"goondan:results:p2"}
    assert all(m["data"].startswith(call_id.encode()) for m in told)
    listener.close()


def test_call_that_waited_past_its_deadline_is_swept(hasty: Ledger) -> None:
    submit(hasty, a_call())
    assert swept(hasty).verdict is Verdict.EXPIRED


def test_call_of_dead_sweeper_still_expires(ledger: Ledger, hasty: Ledger) -> None:
    submit(hasty, a_call())
    assert swept(hasty).verdict is Verdict.EXPIRED
    assert swept(ledger).verdict is Verdict.EXPIRED


@pytest.mark.parametrize(
    ("terms", "starts", "verdict"),
    [(ONCE, False, Verdict.REQUEUE), (ONCE, True, Verdict.UNKNOWN), (AGAIN, True, Verdict.REQUEUE)],
)
def test_after_workers_death_only_rerunnable_call_is_requeued(
    ledger: Ledger, hasty: Ledger, terms: ClaimTerms, starts: bool, verdict: Verdict
) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = hasty.claim(ClaimRequest(call_id, call, "w1", terms)).run(hasty.redis)
    if starts:
        assert hasty.start([claim.id_and_token]).run(hasty.redis) == [Stored.YES]
    assert swept(ledger).verdict is verdict


def test_call_whose_every_attempt_died_is_poisoned(ledger: Ledger, hasty: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = hasty.claim(ClaimRequest(call_id, call, "w1", ClaimTerms(idempotent=True, max_attempts=1))).run(
        hasty.redis
    )
    assert hasty.start([claim.id_and_token]).run(hasty.redis) == [Stored.YES]
    assert swept(ledger).verdict is Verdict.POISONED


def test_worker_death_before_start_weighs_one_fifth(ledger: Ledger, hasty: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    for _ in range(4):
        hasty.claim(ClaimRequest(call_id, call, "w1", ClaimTerms(max_attempts=1))).run(hasty.redis)
        waited = swept(ledger)
        assert waited.verdict is Verdict.REQUEUE
        assert ledger.release(waited, died=True, message=b"again").run(ledger.redis)
    hasty.claim(ClaimRequest(call_id, call, "w1", ClaimTerms(max_attempts=1))).run(hasty.redis)
    assert swept(ledger).verdict is Verdict.POISONED


def test_swept_call_is_queued_again_with_message(ledger: Ledger, hasty: Ledger, redis: Redis) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    redis.delete("agent.coder")
    lost = hasty.claim(ClaimRequest(call_id, call, "w1", AGAIN)).run(hasty.redis)
    assert ledger.release(swept(ledger), died=True, message=b"again").run(ledger.redis)
    assert redis.lrange("agent.coder", 0, -1) == [b"again"]
    assert not hasty.finish(lost, lost.run.ok(1, None)).run(hasty.redis)
    assert ledger.claim(ClaimRequest(call_id, call, "w2", AGAIN)).run(ledger.redis).run.attempt == 2


def test_claim_given_back_does_not_count_as_attempt(ledger: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    assert ledger.release(
        ledger.claim(ClaimRequest(call_id, call, "w1", ONCE)).run(ledger.redis), died=False
    ).run(ledger.redis)
    assert ledger.claim(ClaimRequest(call_id, call, "w2", ONCE)).run(ledger.redis).run.attempt == 1


def test_record_of_released_claim_lives_until_deadline(ledger: Ledger, redis: Redis) -> None:
    call = a_call(deadline=iso_time((time.time() + 3 * 86_400) * 1000))
    call_id = submit(ledger, call)
    claim = ledger.claim(ClaimRequest(call_id, call, "w1", ONCE)).run(redis)
    ledger.renew([claim.id_and_token]).run(redis)  # the lease has its own lifetime
    assert redis.ttl(ledger.keys.call(call_id)) < 2 * 86_400

    assert ledger.release(claim, died=False, message=b"again").run(redis)

    assert redis.ttl(ledger.keys.call(call_id)) >= 3 * 86_400


def test_sweep_after_pause_presumes_no_worker_dead(ledger: Ledger, hasty: Ledger, redis: Redis) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = hasty.claim(ClaimRequest(call_id, call, "w1", ONCE)).run(hasty.redis)
    wait_until(lambda: (redis.zscore("goondan:due", call_id) or 0) < time.time() * 1000)
    redis.delete("goondan:swept")
    assert ledger.sweep("sweeper").run(ledger.redis) == []
    assert ledger.sweep("sweeper").run(ledger.redis) == []
    assert ledger.renew([claim.id_and_token]).run(ledger.redis) == set()


def test_rare_sweeps_spare_dead_workers_call_once(hasty: Ledger) -> None:
    call = a_call()
    hasty.claim(ClaimRequest(submit(hasty, call), call, "w1", AGAIN)).run(hasty.redis)
    assert swept(hasty).verdict is Verdict.REQUEUE  # each of these sweeps comes late for so short a lease


def test_claim_that_was_renewed_is_spared_again(ledger: Ledger, hasty: Ledger, redis: Redis) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = hasty.claim(ClaimRequest(call_id, call, "w1", AGAIN)).run(hasty.redis)
    for _ in range(2):
        redis.delete(ledger.keys.swept)
        assert ledger.sweep("sweeper").run(ledger.redis) == []
        assert hasty.renew([claim.id_and_token]).run(hasty.redis) == set()
        wait_until(lambda: (redis.zscore(ledger.keys.due, call_id) or 0) < time.time() * 1000)


def test_claim_renewed_by_mark_is_spared_again(ledger: Ledger, hasty: Ledger, redis: Redis) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = hasty.claim(ClaimRequest(call_id, call, "w1", AGAIN)).run(hasty.redis)
    for _ in range(2):
        redis.delete(ledger.keys.swept)
        assert ledger.sweep("sweeper").run(ledger.redis) == []
        assert hasty.start([claim.id_and_token]).run(hasty.redis) == [Stored.YES]
        wait_until(lambda: (redis.zscore(ledger.keys.due, call_id) or 0) < time.time() * 1000)


def test_event_with_outlasting_handler_is_spared_again(ledger: Ledger, hasty: Ledger, redis: Redis) -> None:
    event = event_submission(an_event(1))
    ledger.submit_all([event], "p1")
    request = ClaimRequest(event.id, event.call, "w1", ONCE)
    claim = hasty.claim_event(request, event.message, is_handled_here=True).run(hasty.redis)
    redis.delete(ledger.keys.swept)
    assert ledger.sweep("sweeper").run(ledger.redis) == []

    assert hasty.finish(claim, claim.run.ok(1, None), still_runs=True).run(hasty.redis)
    wait_until(lambda: (redis.zscore(ledger.keys.due, event.id) or 0) < time.time() * 1000)
    redis.delete(ledger.keys.swept)

    assert ledger.sweep("sweeper").run(ledger.redis) == []


def test_event_with_result_is_neither_started_nor_released(ledger: Ledger, redis: Redis) -> None:
    ledger.sweep("sweeper").run(redis)
    event = event_submission(an_event(1))
    ledger.submit_all([event], "p1")
    request = ClaimRequest(event.id, event.call, "w1", AGAIN)
    claim = ledger.claim_event(request, event.message, is_handled_here=True).run(redis)
    ledger.start([claim.id_and_token]).run(redis)
    # its worker could do nothing for longer than its limit, and a sweep has ended it
    assert ledger.finish(claim, claim.run.ok(1, None), still_runs=True).run(redis)

    assert not ledger.release(claim, died=False, message=event.message, is_untouched=True).run(redis)
    assert ledger.retry(claim, pause_ms=1, begun_at=0, code="E_TOOL", message=b"again").run(redis) == 0
    assert ledger.start([claim.id_and_token]).run(redis) == [Stored.LOST]

    record = ledger.record(event.id)
    assert record is not None
    assert (record.status, record.outcome) == ("done", "ok")
    [due] = ledger.sweep("sweeper").run(redis)  # the next event of the mailbox need not wait for the lease
    assert due.has_result


def test_started_non_idempotent_call_is_not_released(ledger: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = ledger.claim(ClaimRequest(call_id, call, "w1", ONCE)).run(ledger.redis)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    assert not ledger.release(claim, died=False).run(ledger.redis)
    assert ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)


def test_claim_asked_for_again_is_same_claim(ledger: Ledger) -> None:
    call = a_call()
    request = ClaimRequest(submit(ledger, call), call, "w1", ONCE)
    first, again = ledger.claim(request).run(ledger.redis), ledger.claim(request).run(ledger.redis)
    assert (again.verdict, again.run.attempt, again.token) == (Verdict.RUN, 1, first.token)


def test_live_claim_is_not_swept(ledger: Ledger) -> None:
    call = a_call()
    submit(ledger, call)
    ledger.claim(ClaimRequest(identity_of(call), call, "w1", ONCE)).run(ledger.redis)
    assert ledger.sweep("sweeper").run(ledger.redis) == []


def test_later_call_shortens_no_index_of_waiting_call(ledger: Ledger, redis: Redis) -> None:
    long = submission(a_call(correlation_id="c"))._replace(patience_ms=1_000_000_000)
    ledger.submit_all([long], "p1")
    indexes = ["goondan:due", "goondan:calls:coder", "goondan:trace:c"]
    short = a_call(tool_call_id="call_2", correlation_id="c")
    submit(ledger, short)
    claim = ledger.claim(ClaimRequest(identity_of(short), short, "w1", ONCE)).run(ledger.redis)
    ledger.renew([claim.id_and_token]).run(ledger.redis)
    submit(ledger, a_call(tool_call_id="call_3"))
    ledger.cancel(identity_of(a_call(tool_call_id="call_3")), "p1").run(ledger.redis)

    assert [redis.ttl(key) >= 1_000_000 for key in indexes] == [True] * 3


def test_every_key_of_ours_has_ttl(ledger: Ledger, redis: Redis) -> None:
    for turn in ("turn-1", "turn-2"):
        submit(ledger, a_call(turn_id=turn))
    call = a_call(turn_id="turn-1")
    claim = ledger.claim(ClaimRequest(identity_of(call), call, "w1", ONCE)).run(ledger.redis)
    before = {key: redis.ttl(key) for key in redis.scan_iter("goondan:*")}
    ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)
    after = {key: redis.ttl(key) for key in redis.scan_iter() if not key.startswith(b"agent.coder")}
    assert len(before) == 6
    assert -1 not in {*before.values(), *after.values()}


@pytest.mark.parametrize("number", ["", "x", "nan", "inf", "1e400", "-1"])
@pytest.mark.parametrize("field", ["attempt", "queuedAt", "deadline", "deaths"])
def test_record_with_unreadable_numbers_stays_unclaimed_and_unchanged(
    ledger: Ledger, redis: Redis, field: str, number: str
) -> None:
    key = ledger.keys.call(submit(ledger, a_call()))
    redis.hset(key, field, number)
    before = redis.hgetall(key)
    with pytest.raises(ResponseError, match="a number in its record cannot be read"):
        claimed(ledger, a_call())
    assert redis.hgetall(key) == before
    assert ledger.recent(["coder"], 10) == []


UNREADABLE_CALLS = [b"{", b"\xff", b'{"v":2}', b"[]"]


@pytest.mark.parametrize("call_json", UNREADABLE_CALLS)
def test_unreadable_record_is_left_out_and_logged(
    ledger: Ledger, redis: Redis, caplog: pytest.LogCaptureFixture, call_json: bytes
) -> None:
    good, bad = (submit(ledger, a_call(turn_id=turn)) for turn in ("good", "bad"))
    redis.hset(ledger.keys.call(bad), "call", call_json)
    assert [record.id for record in ledger.recent(["coder"], 10)] == [good]
    assert bad in caplog.text


@pytest.mark.parametrize("call_json", UNREADABLE_CALLS)
def test_unreadable_record_does_not_stop_sweep(hasty: Ledger, redis: Redis, call_json: bytes) -> None:
    bad, good = (submit(hasty, a_call(turn_id=turn)) for turn in ("bad", "good"))
    redis.hset(hasty.keys.call(bad), "call", call_json)
    assert swept(hasty).run.id == good


def pack(redis: Redis, key: str) -> None:
    redis.set(key, b"\x02 a record in one piece")


def forget_all_but_the_call(redis: Redis, key: str) -> None:
    redis.hdel(key, *(name for name in redis.hkeys(key) if name != b"call"))


def count_in_words(redis: Redis, key: str) -> None:
    redis.hset(key, mapping={"status": "running", "worker": "w1", "notStarted": "1", "deaths": "two"})


def be_in_another_state(redis: Redis, key: str) -> None:
    redis.hset(key, "status", "resting")


@pytest.mark.parametrize(
    "alter", [pack, forget_all_but_the_call, count_in_words, be_in_another_state], ids=lambda f: f.__name__
)
def test_record_of_other_layout_stays_due_others_are_swept(
    hasty: Ledger, redis: Redis, caplog: pytest.LogCaptureFixture, alter: Callable[[Redis, str], None]
) -> None:
    other, good = (submit(hasty, a_call(turn_id=turn)) for turn in ("other", "good"))
    alter(redis, hasty.keys.call(other))
    assert swept(hasty).run.id == good
    assert other in caplog.text
    assert redis.zscore(hasty.keys.due, other) is not None


@pytest.mark.parametrize("stored", [b"", b"{", b"[]", b"{}", b'{"v":2}', b"1"])
def test_result_that_cannot_be_read_is_value_error(ledger: Ledger, redis: Redis, stored: bytes) -> None:
    redis.hset(ledger.keys.call("id-1"), "result", stored)
    with pytest.raises(ValueError):
        ledger.result("id-1")


def test_forgotten_call_leaves_no_key(ledger: Ledger, redis: Redis) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    claim = ledger.claim(ClaimRequest(call_id, call, "w1", ONCE)).run(ledger.redis)
    ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)
    ledger.forget(call_id, "coder")
    assert ledger.recent(["coder"], 10) == []
    assert [key for key in redis.scan_iter() if call_id.encode() in key] == []

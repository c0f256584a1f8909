"""Scheduled calls and events: nobody gets them before their time, and then they are queued once."""

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from broker_config.connections import redis_time
from broker_config.settings import Settings
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError
from goondan_tasks.contract.events import mailbox_of
from goondan_tasks.contract.messages import ToolCall, iso_time
from goondan_tasks.ledger.call_filter import scheduled_calls
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import CallRecord, Verdict
from goondan_tasks.ledger.submission import Submission, event_submission
from goondan_tasks.ledger.timer import WAKE_BATCH, WAKE_SECONDS
from tests.unit.goondan_tasks.ledger.calls import a_call, an_event, submission

QUEUE, EVENTS = "agent.coder", "agent.coder.events"
HOUR = 3_600_000


@pytest.fixture
def redis() -> Redis:
    return fakeredis.FakeRedis()


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Settings.model_validate({"lease_seconds": 60}))


@pytest.fixture
def reaper(ledger: Ledger) -> Reaper:
    return Reaper(ledger, "https://help/")


def later(ledger: Ledger, call: ToolCall, ms: int = HOUR) -> ToolCall:
    return call.model_copy(update={"not_before": iso_time(redis_time(ledger.redis) + ms)})


def put(ledger: Ledger, one: Submission) -> str:
    ledger.submit_all([one], "p1")
    return one.id


def record_of(ledger: Ledger, call_id: str) -> CallRecord:
    record = ledger.record(call_id)
    assert record is not None
    return record


def come(ledger: Ledger, call_id: str) -> None:
    """Let the time of a scheduled call come."""
    ledger.redis.zadd(ledger.keys.due, {call_id: redis_time(ledger.redis) - 1})


def test_scheduled_call_is_due_later_and_not_queued(ledger: Ledger) -> None:
    call = later(ledger, a_call())
    call_id = put(ledger, submission(call))

    record = record_of(ledger, call_id)
    assert ledger.redis.llen(QUEUE) == 0
    assert record.status == "scheduled"
    assert ledger.redis.zscore(ledger.keys.due, call_id) == record.not_before
    assert record.deadline == (record.not_before or 0) + HOUR  # the queue timeout counts from then
    assert [one.id for one in scheduled_calls(ledger, ["coder"], 10)] == [call_id]
    assert record.state_text(record.queued_at).startswith("scheduled, in 60.0 min")


def test_time_that_has_passed_is_now(ledger: Ledger) -> None:
    put(ledger, submission(later(ledger, a_call(), -1)))

    assert ledger.redis.llen(QUEUE) == 1


def test_waking_takes_nothing_before_its_time(ledger: Ledger, reaper: Reaper) -> None:
    put(ledger, submission(later(ledger, a_call())))

    assert reaper.wake().queued == 0
    assert reaper.sweep("w") == 0
    assert ledger.redis.llen(QUEUE) == 0


@pytest.mark.parametrize("way", ["wake", "sweep"])
def test_call_is_queued_once_at_its_time(ledger: Ledger, reaper: Reaper, way: str) -> None:
    call_id = put(ledger, submission(later(ledger, a_call())))
    come(ledger, call_id)

    for _ in range(2):
        reaper.wake() if way == "wake" else ledger.sweep("w").run(ledger.redis)

    record = record_of(ledger, call_id)
    assert record.status == "queued"
    assert record.queued_at <= redis_time(ledger.redis)
    assert ledger.redis.lrange(QUEUE, 0, -1) == [b"message"]
    assert ledger.redis.llen(f"{QUEUE}.bell") == 1
    assert ledger.redis.zscore(ledger.keys.due, call_id) == record.deadline
    assert ledger.redis.zcard(ledger.keys.scheduled("coder")) == 0
    assert not ledger.redis.hexists(ledger.keys.call(call_id), "message")


def test_waking_says_when_next_call_is_due(ledger: Ledger, reaper: Reaper) -> None:
    idle = reaper.wake().seconds
    put(ledger, submission(a_call()))  # its deadline is no time to look at
    ledger.redis.zadd(ledger.keys.due, dict.fromkeys(("q1", "q2"), redis_time(ledger.redis) + 100))
    other = reaper.wake().seconds
    put(ledger, submission(later(ledger, a_call(tool_call_id="soon"), 300)))
    soon = reaper.wake().seconds

    assert (idle, other) == (WAKE_SECONDS, WAKE_SECONDS)
    assert 0 < soon <= 0.3


def test_waking_says_when_next_wait_queue_is_due(ledger: Ledger, reaper: Reaper) -> None:
    now = redis_time(ledger.redis)
    ledger.redis.zadd(ledger.keys.limits, {"rate:notes": now + 200, "rate:other": now + 4_000})
    assert 0 < reaper.wake().seconds <= 0.201  # whole ms; the script may read a part of one less


def test_overwritten_limit_times_stop_no_scheduled_call(ledger: Ledger, reaper: Reaper) -> None:
    ledger.redis.set(ledger.keys.limits, "overwritten")
    come(ledger, put(ledger, submission(later(ledger, a_call()))))
    assert reaper.wake() == (1, None, WAKE_SECONDS)


def test_one_look_queues_all_simultaneous_calls(ledger: Ledger, reaper: Reaper) -> None:
    calls = [later(ledger, a_call(tool_call_id=f"call_{number}")) for number in range(2 * WAKE_BATCH + 1)]
    ids = [put(ledger, submission(call)) for call in calls]
    for call_id in ids:
        come(ledger, call_id)

    assert reaper.wake() == (len(ids), None, WAKE_SECONDS)
    assert ledger.redis.llen(QUEUE) == len(ids)


def test_many_due_calls_hide_no_scheduled_call(
    ledger: Ledger, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "goondan_tasks.ledger.reaper.SWEEP_SECONDS", 60.0
    )  # a busy machine may need longer than a sweep
    call_id = put(ledger, submission(later(ledger, a_call())))
    come(ledger, call_id)
    ledger.redis.zadd(ledger.keys.due, {f"overdue-{number}": number for number in range(4_500)})

    assert reaper.wake().queued == 1
    assert record_of(ledger, call_id).status == "queued"


def test_call_past_its_deadline_ends_as_expired(ledger: Ledger, reaper: Reaper) -> None:
    call_id = put(ledger, submission(later(ledger, a_call())))
    ledger.redis.hset(ledger.keys.call(call_id), "deadline", redis_time(ledger.redis) - 1)
    come(ledger, call_id)

    assert reaper.sweep("w") == 1

    result = ledger.result(call_id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_EXPIRED"
    assert ledger.redis.zcard(ledger.keys.scheduled("coder")) == 0


def test_second_message_of_scheduled_call_is_not_run(ledger: Ledger) -> None:
    call = later(ledger, a_call())
    call_id = put(ledger, submission(call))

    claim = ledger.claim(ClaimRequest(call_id, call, "w1", ClaimTerms())).run(ledger.redis)

    assert claim.verdict is Verdict.HELD


def test_call_resubmitted_for_other_time_keeps_first(ledger: Ledger) -> None:
    call = later(ledger, a_call())
    call_id = put(ledger, submission(call))
    first = record_of(ledger, call_id).not_before

    [admission] = ledger.submit_all([submission(later(ledger, a_call(), 2 * HOUR))], "p2")

    assert (admission.is_new, admission.is_conflict, admission.status) == (False, False, "scheduled")
    assert record_of(ledger, call_id).not_before == first


def test_cancelled_call_is_in_no_list(ledger: Ledger, reaper: Reaper) -> None:
    call_id = put(ledger, submission(later(ledger, a_call())))

    reaper.cancel(call_id, "someone")

    assert record_of(ledger, call_id).state == "error"
    assert ledger.redis.zcard(ledger.keys.scheduled("coder")) == 0
    assert ledger.redis.zcard(ledger.keys.due) == 0


def test_run_now_queues_call_before_its_time(ledger: Ledger, reaper: Reaper) -> None:
    call_id = put(ledger, submission(later(ledger, a_call())))

    reaper.run_now(call_id)
    reaper.run_now(call_id)  # its time has come

    assert record_of(ledger, call_id).status == "queued"
    assert ledger.redis.llen(QUEUE) == 1


def test_run_now_refuses_ended_and_unknown_calls(ledger: Ledger, reaper: Reaper) -> None:
    call_id = put(ledger, submission(later(ledger, a_call())))
    reaper.cancel(call_id, "someone")

    with pytest.raises(CallClosedError):
        reaper.run_now(call_id)
    with pytest.raises(CallNotFoundError):
        reaper.run_now("nobody")


def test_scheduled_event_enters_mailbox_at_its_time(ledger: Ledger, reaper: Reaper) -> None:
    first = event_submission(later(ledger, an_event(1)))
    second = event_submission(an_event(2))
    put(ledger, first)
    put(ledger, second)
    box = ledger.keys.mailbox(mailbox_of(first.call))

    before = ledger.redis.lrange(box, 0, -1)
    come(ledger, first.id)
    reaper.wake()

    assert before == [second.id.encode()]
    assert ledger.redis.lrange(box, 0, -1) == [second.id.encode(), first.id.encode()]
    assert ledger.redis.llen(EVENTS) == 2


def test_damaged_queue_delays_only_its_call_by_lease(ledger: Ledger, reaper: Reaper) -> None:
    stuck = put(ledger, submission(later(ledger, a_call())))
    other = put(ledger, submission(later(ledger, a_call(tool_call_id="call_2"))))
    ledger.redis.hset(ledger.keys.call(stuck), "queue", "agent.broken")
    ledger.redis.set("agent.broken", "another program's")
    for call_id in (stuck, other):
        come(ledger, call_id)

    assert reaper.wake().queued == 1

    assert record_of(ledger, other).status == "queued"
    assert record_of(ledger, stuck).status == "scheduled"
    assert (ledger.redis.zscore(ledger.keys.due, stuck) or 0) > redis_time(ledger.redis) + 50_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempt", "x"),
        ("deadline", "x"),
        ("deadline", None),
        ("queue", "x"),
        ("queue", None),
        ("message", None),
    ],
)
@pytest.mark.parametrize("way", ["wake", "sweep", "run_now"])
def test_queuing_damaged_record_leaves_no_message(
    ledger: Ledger, reaper: Reaper, way: str, field: str, value: str | None
) -> None:
    call_id = put(ledger, submission(later(ledger, a_call())))
    key = ledger.keys.call(call_id)
    ledger.redis.hdel(key, field) if value is None else ledger.redis.hset(key, field, value)

    for _ in range(2):
        come(ledger, call_id)
        if way == "wake":
            assert reaper.wake().queued == 0
        elif way == "sweep":
            ledger.sweep("w").run(ledger.redis)
        else:
            with pytest.raises(CallNotFoundError, match="damaged"):
                reaper.run_now(call_id)

    assert ledger.redis.llen(QUEUE) == 0
    assert ledger.redis.hget(key, "status") != b"queued"


def test_run_now_refuses_event_with_damaged_mailbox(ledger: Ledger, reaper: Reaper) -> None:
    call_id = put(ledger, event_submission(later(ledger, an_event(1))))
    ledger.redis.set(ledger.keys.mailbox(mailbox_of(an_event(1))), "another program's")

    with pytest.raises(CallNotFoundError, match="damaged"):
        reaper.run_now(call_id)

    assert ledger.redis.llen(EVENTS) == 0


def test_run_now_reports_fault_outside_record(ledger: Ledger, reaper: Reaper) -> None:
    call_id = put(ledger, submission(later(ledger, a_call())))
    ledger.redis.set(QUEUE, "another program's")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        reaper.run_now(call_id)


def test_sweep_finds_scheduled_calls_after_due_deletion(ledger: Ledger) -> None:
    call_id = put(ledger, submission(later(ledger, a_call())))
    ledger.redis.hset(ledger.keys.agents, "coder", "{}")
    ledger.redis.delete(ledger.keys.due)

    ledger.sweep("w").run(ledger.redis)

    assert ledger.redis.zscore(ledger.keys.due, call_id) == record_of(ledger, call_id).not_before


def test_record_lives_beyond_its_time(ledger: Ledger) -> None:
    call = later(ledger, a_call(), 30 * 24 * HOUR)
    put(ledger, submission(call))

    for key in (ledger.keys.call(identity_of(call)), ledger.keys.due, ledger.keys.scheduled("coder")):
        assert ledger.redis.ttl(key) > 30 * 86_400


def test_deleted_record_no_longer_counts_as_scheduled(ledger: Ledger, reaper: Reaper) -> None:
    call_id = put(ledger, submission(later(ledger, a_call())))
    ledger.redis.hset(ledger.keys.agents, "coder", "")
    ledger.redis.delete(ledger.keys.call(call_id))
    come(ledger, call_id)
    reaper.sweep("sweeper")
    assert ledger.redis.zscore(ledger.keys.due, call_id) is None
    assert ledger.redis.zcard(ledger.keys.scheduled("coder")) == 0

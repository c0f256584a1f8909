"""The scripts of limits, on a Redis in memory."""

import json
import time
from collections.abc import Iterator
from typing import cast

import fakeredis
import pytest
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.errors import ToolCancelledError
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import JsonObject, ToolCall, iso_time
from goondan_tasks.contract.output import Pending
from goondan_tasks.fleet.pauses import Pauses, pause_name
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.completions import Completions
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import LimitAnswer, Limiter, Limits, LimitScripts
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Stored
from goondan_tasks.ledger.submission import Submission
from goondan_tasks.ledger.timer import WAKE_SECONDS, Timer
from tests.waiting import wait_until

QUEUE = "agent.coder"
ONE = "seats 1 0 - concurrency:notes"
TWO = "seats 2 0 - concurrency:notes"
SERIAL_A, SERIAL_B = "seats 1 0 - serial:notes@a", "seats 1 0 - serial:notes@b"
RATE = "rate 2 1500 - rate:notes"
#: a little less than the deadline of a call leaves it, so that the next one may wait
HOURLY = "rate 1 3500000 - h"
TWO_AN_HOUR = "rate 2 3500000 - h"
TOKENS = "tokens 20 60000 - tokens:small"
SLOW_RATE = "rate 1 7200000 - rate:notes"


def key(digest: str = "d") -> str:
    return f"key 1 0 {digest} key:k"


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


class Door:
    """Submits calls and asks for their admission, as workers do."""

    def __init__(self, redis: Redis, lease_seconds: float = 60) -> None:
        self.redis = redis
        self.settings = Settings(lease_seconds=lease_seconds)
        self.ledger = Ledger(redis, self.settings)
        self.script_calls = LimitScripts(self.ledger)
        self.claims: dict[str, Claim] = {}

    def submit(self, turn: str, **fields: object) -> ToolCall:
        call = new_call("coder", "notes__find", {}, {"turn_id": turn, "tool_call_id": "call_1"})
        call = call.model_copy(update=fields)
        wire = serializer.encode(call.to_wire())
        self.ledger.submit_all([Submission(identity_of(call), call, wire, "digest")], "p")
        return call

    def admit(
        self,
        call: ToolCall,
        call_limits: str,
        message: bytes | None = None,
        token: str = "",
        *,
        is_on_record: bool = True,
    ) -> LimitAnswer:
        script_call = self.script_calls.admit(
            identity_of(call),
            call,
            call_limits,
            message=call.turn_id.encode() if message is None else message,
            run_seconds=1,
            token=token,
            is_on_record=is_on_record,
        )
        return script_call.run(self.redis)

    def run(self, turn: str, call_limits: str) -> ToolCall:
        """Submit a call that is admitted, claim it, and begin its handler."""
        call = self.submit(turn)
        assert self.admit(call, call_limits).word == "go"
        self.claim(call)
        self.begin(call, call_limits)
        return call

    def begin(self, call: ToolCall, call_limits: str) -> None:
        claim = self.claims[call.turn_id]
        assert self.ledger.start([claim.id_and_token]).run(self.redis) == [1]
        self.script_calls.begin(*claim.id_and_token, call_limits).run(self.redis)

    def claim(self, call: ToolCall, *, idempotent: bool = False) -> None:
        request = ClaimRequest(identity_of(call), call, "w1", ClaimTerms(idempotent=idempotent))
        self.claims[call.turn_id] = self.ledger.claim(request).run(self.ledger.redis)

    def wait(self, turn: str, call_limits: str) -> ToolCall:
        """Submit a call that has to wait."""
        call = self.submit(turn)
        assert self.admit(call, call_limits).word == "wait"
        return call

    def end(self, call: ToolCall, code: str | None = None) -> Stored:
        """End a call that was claimed, well or with an error."""
        claim = self.claims[call.turn_id]
        result = claim.run.ok("found", None)
        if code is not None:
            error = {"code": code, "name": "E", "message": '"code":"E_TOOL_OUTCOME_UNKNOWN"'}
            result = result.model_validate({**result.to_wire(), "status": "error", "error": error})
        return self.ledger.finish(claim, result).run(self.ledger.redis)

    def retry(self, call: ToolCall) -> bool:
        """Let a call whose run has failed pause before another one."""
        claim = self.claims[call.turn_id]
        message, begun_at = call.turn_id.encode(), claim.run.clock()
        retry = self.ledger.retry(claim, pause_ms=0, begun_at=begun_at, code="E_TOOL", message=message)
        return bool(retry.run(self.redis))

    def wake(self) -> None:
        """Queue the calls whose pauses are over."""
        Timer(self.ledger).wake().run(self.redis)

    def hold(self, call: ToolCall) -> None:
        """Let a call that was claimed wait for an approval."""
        claim = self.claims[call.turn_id]
        held = claim.run.pending(
            Pending("h", {}, is_approval=True), None, expires_at=claim.run.clock() + 60_000
        )
        self.ledger.suspend(claim, held).run(self.redis)

    def approve(self, call: ToolCall, args: JsonObject) -> None:
        """Approve a call that is held, with other arguments."""
        record = self.ledger.record(identity_of(call))
        assert record is not None
        Completions(self.ledger, Reaper(self.ledger, "https://help/")).approve(record, "ann", args)
        self.redis.delete(QUEUE)

    def look(self) -> bool:
        """Check the wait queues that are due; return whether calls still wait."""
        Timer(self.ledger).wake().run(self.redis)
        return bool(self.redis.exists(self.ledger.keys.limits))

    def queue(self) -> list[str]:
        """Return the turns that were given, the next one first."""
        messages = cast("list[bytes]", self.redis.lrange(QUEUE, 0, -1))
        return [message.decode().strip() for message in reversed(messages)]


@pytest.fixture
def door(redis: Redis) -> Door:
    return Door(redis)


def test_limit_admits_its_number_others_wait(door: Door, redis: Redis) -> None:
    for turn in ("t1", "t2"):
        door.run(turn, TWO)
    waiting = door.wait("t3", TWO)
    record = door.ledger.record(identity_of(waiting))
    assert record is not None
    assert (record.status, record.waiting_for) == ("queued", "concurrency:notes")
    assert door.queue() == []
    assert redis.zcard("goondan:waiting:coder") == 1


def test_ended_calls_admit_next_in_submission_order(door: Door) -> None:
    running = [door.run(turn, TWO) for turn in ("r1", "r2")]
    calls = [door.submit(turn) for turn in ("t1", "t2", "t3")]
    for call in (calls[0], calls[1], calls[2]):
        assert door.admit(call, TWO).word == "wait"
    for call in running:
        door.end(call)
    assert door.queue() == ["t1", "t2"]
    assert door.ledger.redis.lrange(f"{QUEUE}.bell", 0, -1) == [b"1"]
    assert [door.admit(call, TWO).word for call in calls] == ["go", "go", "wait"]


def test_wait_order_is_submission_order_not_meeting_order(door: Door, redis: Redis) -> None:
    running = door.run("r", ONE)
    calls = [door.submit(f"t{number}") for number in range(20)]
    for call in reversed(calls):
        door.admit(call, ONE)
    order = []
    for _ in calls:
        door.end(running)
        [turn] = door.queue()
        order.append(turn)
        redis.delete(QUEUE)
        running = next(call for call in calls if call.turn_id == turn)
        door.claim(running)
    assert order == [call.turn_id for call in calls]


def test_given_turn_goes_behind_turns_before_messages(door: Door, redis: Redis) -> None:
    running = [door.run(turn, TWO) for turn in ("r1", "r2")]
    for turn in ("t1", "t2"):
        door.wait(turn, TWO)
    redis.lpush(QUEUE, "other")
    for call in running:
        door.end(call)
    assert door.queue() == ["t1", "t2", "other"]


def test_repeated_admission_keeps_permit_and_place(door: Door, redis: Redis) -> None:
    running = door.run("r", ONE)
    first = door.wait("t1", ONE)
    second = door.wait("t2", ONE)
    assert [door.admit(call, ONE).word for call in (second, first)] == ["wait", "wait"]
    assert redis.zcard("goondan:line:concurrency:notes") == 2
    door.end(running)
    assert [door.admit(first, ONE).word for _ in range(2)] == ["go", "go"]


def test_limit_per_instance_lets_other_instances_go_on(door: Door) -> None:
    door.run("a1", f"{SERIAL_A}\n{TWO}")
    door.wait("a2", f"{SERIAL_A}\n{TWO}")
    door.run("b1", f"{SERIAL_B}\n{TWO}")


def test_several_limits_are_taken_all_or_none(door: Door, redis: Redis) -> None:
    door.run("b1", f"{SERIAL_B}\n{ONE}")
    door.wait("a1", f"{SERIAL_A}\n{ONE}\n{RATE}")
    assert redis.zcard("goondan:holders:serial:notes@a") == 0
    assert redis.zcard("goondan:holders:rate:notes") == 0


def test_call_moving_to_other_limit_lets_others_by(door: Door) -> None:
    a, b = f"{SERIAL_A}\n{TWO}", f"{SERIAL_B}\n{TWO}"
    running = [door.run("a1", a), door.run("x", TWO)]
    stands_in_both = door.submit("a2")
    behind = door.submit("b1")
    assert door.admit(stands_in_both, a).word == "wait"
    assert door.admit(behind, b).word == "wait"
    door.end(running[1])
    assert door.queue() == ["b1"]
    door.end(running[0])
    assert door.queue() == ["b1", "a2"]


def test_rate_admits_count_per_period_scheduling_next_look(door: Door) -> None:
    for turn in ("t1", "t2"):
        door.run(turn, RATE)
    call = door.submit("t3")
    answer = door.admit(call, RATE)
    assert answer.word == "wait"
    assert 0 < Timer(door.ledger).wake().run(door.redis).seconds <= WAKE_SECONDS
    assert door.queue() == []
    wait_until(lambda: not door.look())
    assert door.queue() == ["t3"]
    assert door.admit(call, RATE).word == "go"


def test_rate_counts_handler_start_not_admission(door: Door) -> None:
    first, second = door.submit("t1"), door.submit("t2")
    admissions = [door.admit(call, RATE) for call in (first, second)]
    admitted_at = admissions[-1].now
    waiting = door.submit("t3")
    # neither of them has started, however long ago they were admitted
    wait_until(lambda: door.admit(waiting, RATE).now > admitted_at + 1_500)
    assert door.admit(waiting, RATE).word == "wait"
    for call in (first, second):
        door.claim(call)
        door.begin(call, RATE)
        door.begin(call, RATE)  # sent twice, it counts once
    assert door.admit(waiting, RATE).word == "wait"
    wait_until(lambda: not door.look())
    assert door.queue() == ["t3"]
    assert door.admit(waiting, RATE).word == "go"


def test_each_run_of_retried_call_uses_rate(door: Door, redis: Redis) -> None:
    failed = door.submit("t1")
    assert door.admit(failed, HOURLY).word == "go"
    door.claim(failed)
    door.begin(failed, HOURLY)
    assert door.retry(failed)
    door.wake()
    assert door.admit(failed, HOURLY).word in ("wait", "late")


def test_unstarted_ended_call_frees_rate_place(door: Door) -> None:
    ended = door.submit("t1")
    assert door.admit(ended, HOURLY).word == "go"
    door.claim(ended)
    waiting = door.wait("t2", HOURLY)
    door.end(ended)
    assert door.queue() == ["t2"]
    assert door.admit(waiting, HOURLY).word == "go"


def test_start_of_short_run_counts_when_it_ends(door: Door, redis: Redis) -> None:
    short = door.submit("t1")
    assert door.admit(short, HOURLY).word == "go"
    door.claim(short)
    door.ledger.start([door.claims["t1"].id_and_token]).run(redis)
    door.end(short)
    assert door.admit(door.submit("t2"), HOURLY).word in ("wait", "late")


def test_start_with_lost_claim_keeps_next_reservation(door: Door, redis: Redis) -> None:
    call = door.submit("t1")
    assert door.admit(call, TWO_AN_HOUR).word == "go"
    door.claim(call)
    lost = door.claims["t1"]
    assert door.ledger.release(lost, died=False).run(redis)
    assert door.admit(call, TWO_AN_HOUR).word == "go"
    door.claim(call)
    door.script_calls.begin(*lost.id_and_token, TWO_AN_HOUR).run(redis)
    assert door.admit(door.submit("t2"), TWO_AN_HOUR).word in ("wait", "late")


def test_start_counts_when_worker_death_releases_run(door: Door, redis: Redis) -> None:
    dead = door.submit("t1")
    assert door.admit(dead, TWO_AN_HOUR).word == "go"
    door.claim(dead, idempotent=True)
    door.ledger.start([door.claims["t1"].id_and_token]).run(redis)
    assert door.ledger.release(door.claims["t1"], died=True).run(redis)
    assert door.admit(dead, TWO_AN_HOUR).word == "go"
    assert door.admit(door.submit("t2"), TWO_AN_HOUR).word in ("wait", "late")


def test_reservation_of_dead_worker_ends_after_lease(redis: Redis) -> None:
    door = Door(redis, lease_seconds=0.5)
    dead = door.submit("t1")
    assert door.admit(dead, HOURLY).word == "go"
    door.wait("t2", HOURLY)
    wait_until(lambda: not door.look())
    assert door.queue() == ["t2"]


def test_held_call_does_not_count_for_rate(door: Door) -> None:
    held = door.submit("t1")
    assert door.admit(held, HOURLY).word == "go"
    door.claim(held)
    waiting = door.wait("t2", HOURLY)
    door.hold(held)
    assert door.queue() == ["t2"]
    assert door.admit(waiting, HOURLY).word == "go"


def test_held_call_takes_key_of_approved_arguments(door: Door) -> None:
    limits, asked = Limits(key_arguments=("word",)), {"word": "tea"}
    held, same = (door.submit(turn, args=asked) for turn in ("t1", "t2"))
    assert door.admit(held, limits.for_call(held)).word == "go"
    door.claim(held)
    assert door.admit(same, limits.for_call(same)).word == "wait"
    door.hold(held)
    assert door.queue() == ["t2"]
    assert door.admit(same, limits.for_call(same)).word == "go"
    edited = held.model_copy(update={"args": {"word": "coffee"}})
    third = door.submit("t3", args=edited.args)
    door.approve(held, edited.args)
    assert door.admit(edited, limits.for_call(edited)).word == "go"
    assert door.admit(third, limits.for_call(third)).word == "wait"


def test_call_held_after_run_keeps_its_key(door: Door) -> None:
    held = door.run("t1", key())
    waiting = door.wait("t2", key())
    assert door.retry(held)
    door.wake()
    assert door.admit(held, key()).word == "go"
    door.claim(held)
    door.hold(held)
    assert door.admit(waiting, key()).word == "wait"


def test_approved_call_is_asked_with_recorded_arguments(door: Door) -> None:
    held, edited = door.submit("t1", args={"word": "tea"}), {"word": "coffee"}
    door.claim(held)
    door.hold(held)
    door.approve(held, edited)
    answer = door.admit(held, ONE, is_on_record=False)
    assert (answer.word, json.loads(answer.about)["args"]) == ("approved", edited)
    assert door.redis.zcard("goondan:holders:concurrency:notes") == 0
    assert door.admit(held, ONE).word == "go"


def test_turn_taken_up_too_late_counts_again(door: Door) -> None:
    for turn in ("r1", "r2"):
        door.run(turn, RATE)
    calls = [door.wait(turn, RATE) for turn in ("t1", "t2", "t3", "t4")]
    wait_until(lambda: not door.look())
    assert door.queue() == ["t1", "t2", "t3", "t4"]
    words = [door.admit(call, RATE).word for call in calls]
    assert words.count("go") == 2


def test_rate_wait_past_deadline_is_late_at_once(door: Door, redis: Redis) -> None:
    door.run("t1", SLOW_RATE)
    late = door.admit(door.submit("t2"), SLOW_RATE)
    assert (late.word, late.about) == ("late", "rate:notes")
    assert redis.zcard("goondan:waiting:coder") == 0
    assert redis.zcard("goondan:line:rate:notes") == 0


@pytest.mark.parametrize("status", ["running", "done", "dead"])
def test_waiter_no_longer_queued_is_left_out(door: Door, redis: Redis, status: str) -> None:
    running = door.run("r", ONE)
    gone, following = (door.wait(turn, ONE) for turn in ("t1", "t2"))
    redis.hset(door.ledger.keys.call(identity_of(gone)), "status", status)
    door.end(running)
    assert door.queue() == [following.turn_id]
    assert redis.zcard("goondan:waiting:coder") == 0
    assert not redis.exists(door.ledger.keys.waiter(identity_of(gone)))


def test_overdue_waiting_call_is_swept_as_limited(door: Door, redis: Redis) -> None:
    running = door.run("r", ONE)
    call = door.wait("t1", ONE)
    redis.hset(door.ledger.keys.call(identity_of(call)), "deadline", 1)
    redis.zadd(door.ledger.keys.due, {identity_of(call): 1})
    door.end(running)
    assert door.queue() == []
    assert [claim.verdict for claim in door.ledger.sweep("s").run(door.ledger.redis)] == ["limited"]


def test_call_stays_waiting_while_queue_is_damaged(door: Door, redis: Redis) -> None:
    running = door.run("r", ONE)
    door.wait("t1", ONE)
    redis.set(QUEUE, "overwritten")
    door.end(running, ONE)
    assert redis.zcard("goondan:line:concurrency:notes") == 1
    redis.delete(QUEUE)
    redis.zadd(door.ledger.keys.limits, {"concurrency:notes": 1})
    door.look()
    assert door.queue() == ["t1"]
    assert redis.zcard("goondan:line:concurrency:notes") == 0


def test_next_look_frees_permit_of_ended_call(redis: Redis) -> None:
    door = Door(redis, lease_seconds=0.5)
    running = door.run("r", ONE)
    door.wait("t1", ONE)
    redis.hset(door.ledger.keys.call(identity_of(running)), "status", "done")
    wait_until(lambda: not door.look())
    assert door.queue() == ["t1"]


def test_permit_unclaimed_within_lease_is_free_again(redis: Redis) -> None:
    door = Door(redis, lease_seconds=0.5)
    never_claimed = door.submit("r")
    assert door.admit(never_claimed, ONE).word == "go"
    following = door.wait("t1", ONE)
    wait_until(lambda: not door.look())
    assert door.queue() == ["t1"]
    patient = Door(redis)
    assert patient.admit(following, ONE).word == "go"
    assert patient.admit(never_claimed, ONE).word == "wait"


def test_call_pausing_before_rerun_yields_its_permit(door: Door, redis: Redis) -> None:
    paused = door.run("r", ONE)
    following = door.wait("t1", ONE)
    assert door.retry(paused)
    assert door.queue() == ["t1"]
    assert door.admit(following, ONE).word == "go"
    door.claim(following)
    door.wake()
    assert door.queue() == ["r", "t1"]
    assert door.admit(paused, ONE).word == "wait"
    door.end(following)
    assert door.queue() == ["r", "r", "t1"]


def test_call_awaits_same_key_call_pausing_before_rerun(door: Door) -> None:
    failed = door.run("r", key())
    following = door.wait("t1", key())
    assert door.retry(failed)
    assert door.queue() == []
    assert door.admit(following, key()).word == "wait"
    door.wake()
    assert door.admit(failed, key()).word == "go"
    door.claim(failed)
    door.end(failed)
    assert door.admit(following, key()).word == "share"


def test_released_call_keeps_permit_until_next_worker_could_claim(
    redis: Redis,
) -> None:
    door = Door(redis, lease_seconds=2)
    running, limit = door.run("r", ONE), "concurrency:notes"
    door.wait("t1", ONE)
    redis.zadd(door.ledger.keys.holders(limit), {identity_of(running): 1})  # it was admitted long ago
    assert door.ledger.release(door.claims["r"], died=False, message=b"r", is_untouched=True).run(redis)
    redis.hdel(door.ledger.keys.limit(limit), "looked")
    redis.zadd(door.ledger.keys.limits, {limit: 1})
    door.look()
    assert door.queue() == ["r"]
    wait_until(lambda: not door.look())
    assert door.queue() == ["t1", "r"]


def test_earlier_call_takes_unmet_later_calls_turn(redis: Redis) -> None:
    door = Door(redis, lease_seconds=0.5)
    running = door.run("r", ONE)
    calls = [door.wait(turn, ONE) for turn in ("t1", "t2", "t3")]
    door.end(running)
    wait_until(lambda: not door.look())
    assert door.queue() == ["t1", "t2", "t3"]
    patient = Door(redis)
    assert [patient.admit(call, ONE).word for call in calls] == ["go", "wait", "wait"]


def test_admitted_call_keeps_permit_until_claimed(door: Door) -> None:
    earlier, later = (door.submit(turn) for turn in ("t1", "t2"))
    assert door.admit(later, ONE).word == "go"
    assert door.admit(earlier, ONE).word == "wait"


def test_call_running_longer_than_lease_keeps_permit(redis: Redis) -> None:
    door = Door(redis, lease_seconds=0.03)
    door.run("r", ONE)
    door.wait("t1", ONE)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        door.look()
    assert door.queue() == []


def test_lost_claims_result_keeps_other_runs_permit(door: Door, redis: Redis) -> None:
    running = door.run("r", ONE)
    lost = door.claims["r"]
    door.wait("t1", ONE)
    assert door.ledger.release(lost, died=False, is_untouched=True).run(redis)
    assert door.admit(running, ONE).word == "go"
    door.claim(running)
    door.ledger.finish(lost, lost.run.ok(1, None)).run(redis)
    assert door.queue() == []


def test_second_call_with_key_shares_first_result(door: Door) -> None:
    first = door.run("t1", key())
    calls = [door.wait(turn, key()) for turn in ("t2", "t3")]
    door.end(first)
    assert door.queue() == ["t2", "t3"]
    for call in calls:
        answer = door.admit(call, key())
        assert (answer.word, answer.about) == ("share", identity_of(first))


def test_unknown_outcome_is_shared_other_errors_not(door: Door) -> None:
    first = door.run("t1", key())
    second, third = (door.wait(turn, key()) for turn in ("t2", "t3"))
    door.end(first, "E_TOOL")
    assert door.queue() == ["t2"]
    assert door.admit(second, key()).word == "go"
    door.claim(second)
    door.end(second, "E_TOOL_OUTCOME_UNKNOWN")
    answer = door.admit(third, key())
    assert (answer.word, answer.about) == ("share", identity_of(second))


def test_replay_runs_despite_shared_unknown_outcome(
    door: Door,
) -> None:
    limits, arguments = Limits(key_arguments=("word",)), {"word": "tea"}
    first = door.submit("t1", args=arguments)
    assert door.admit(first, limits.for_call(first)).word == "go"
    door.claim(first)
    door.end(first, "E_TOOL_OUTCOME_UNKNOWN")
    other = door.submit("t2", args=arguments)
    assert door.admit(other, limits.for_call(other)).word == "share"
    replays = [
        door.submit(f"t{number}", args=arguments, replay_of=identity_of(one))
        for number, one in ((3, first), (4, other))
    ]
    # the key holds among replays, too
    assert [door.admit(replay, limits.for_call(replay)).word for replay in replays] == ["go", "wait"]


@pytest.mark.parametrize(("has_begun", "word"), [(True, "wait"), (False, "go")])
def test_started_call_keeps_key_during_other_limits_wait(door: Door, has_begun: bool, word: str) -> None:
    first, second, both = door.submit("t1"), door.submit("t2"), f"{key()}\n{ONE}"
    door.admit(first, key())
    request = ClaimRequest(identity_of(first), first, "w1", ClaimTerms(idempotent=True))
    claim = door.ledger.claim(request).run(door.redis)
    if has_begun:
        door.ledger.start([claim.id_and_token]).run(door.redis)
    door.ledger.release(claim, died=has_begun).run(door.redis)
    door.run("other", ONE)

    assert door.admit(first, both).word == "wait"
    assert door.admit(second, key()).word == word


def test_other_arguments_under_same_key_are_conflict(door: Door) -> None:
    first = door.run("t1", key("x"))
    answer = door.admit(door.submit("t2"), key("y"))
    assert (answer.word, answer.about) == ("conflict", identity_of(first))
    door.end(first, "E_TOOL")
    assert door.admit(door.submit("t3"), key("y")).word == "go"


def test_start_mark_takes_free_key_else_is_refused(door: Door, redis: Redis) -> None:
    first, second = door.submit("t1"), door.submit("t2")
    for call in (first, second):
        door.claim(call)
    claims = [door.claims[turn].id_and_token for turn in ("t1", "t2")]
    assert door.ledger.start(claims, [key(), key()]).run(redis) == [Stored.YES, Stored.KEYED]
    assert door.ledger.start(claims[:1], [key()]).run(redis) == [Stored.YES]
    door.end(first)
    assert door.ledger.start(claims[1:], [key()]).run(redis) == [Stored.KEYED]
    assert door.admit(second, key(), token=claims[1][1]).word == "share"


def test_claimed_call_waits_until_key_is_free(door: Door, redis: Redis) -> None:
    first, second = door.submit("t1"), door.submit("t2")
    for call in (first, second):
        door.claim(call)
    (call_id, token), other = door.claims["t2"].id_and_token, door.claims["t1"].id_and_token
    door.ledger.start([other], [key()]).run(redis)
    assert [door.admit(second, key(), token=token).word for _ in range(2)] == ["wait", "wait"]
    record = door.ledger.record(call_id)
    assert record is not None
    assert (record.state, record.attempt, record.waiting_for) == ("waiting", 0, "key:k")
    assert redis.zscore(door.ledger.keys.running("coder"), call_id) is None
    door.end(first, "E_TOOL")
    assert door.queue() == ["t2"]


def test_cancelled_claimed_call_waits_for_no_key(door: Door, redis: Redis) -> None:
    first, second = door.submit("t1"), door.submit("t2")
    for call in (first, second):
        door.claim(call)
    door.ledger.start([door.claims["t1"].id_and_token], [key()]).run(redis)
    call_id, token = door.claims["t2"].id_and_token
    door.ledger.cancel(call_id, "c").run(redis)
    assert door.admit(second, key(), token=token).word == "go"


def test_calls_share_result_stored_in_plain_form(door: Door, redis: Redis) -> None:
    first, second = door.submit("t1"), door.submit("t2")
    door.claim(first)
    claim = door.claims["t1"]
    door.ledger.start([claim.id_and_token], [key()]).run(redis)
    wire = serializer.encode(claim.run.ok("found", None).to_wire())
    door.ledger.finish_many([door.ledger.ended(claim, wire, outcome="ok", kind="plain")]).run(redis)
    assert door.admit(second, key()).word == "share"


def test_key_without_record_of_call_is_free(door: Door, redis: Redis) -> None:
    first = door.run("t1", key())
    door.end(first)
    redis.delete(door.ledger.keys.call(identity_of(first)))
    assert door.admit(door.submit("t2"), key()).word == "go"


def test_call_without_record_is_unknown_to_limits(door: Door) -> None:
    call = new_call("coder", "notes__find", {}, {})
    assert door.admit(call, ONE).word == "unknown"


def test_every_key_has_ttl(door: Door, redis: Redis) -> None:
    call_limits = f"{key()}\n{SERIAL_A}\n{ONE}\n{RATE}"
    running = door.run("r", call_limits)
    door.wait("t1", call_limits)
    door.wait("t2", ONE)
    door.end(running, "E_TOOL")
    families = {name.split(b":")[1] for name in redis.scan_iter("goondan:*")}
    assert {b"limits", b"limit", b"holders", b"line", b"waiter", b"waiting"} <= families
    assert [name for name in redis.scan_iter("goondan:*") if redis.ttl(name) < 0] == []


def test_key_lives_as_long_as_pending_owner(door: Door, redis: Redis) -> None:
    claim = door.claims[door.run("t1", key()).turn_id]
    expires_at = claim.run.clock() + 7 * 86_400_000
    door.ledger.suspend(claim, claim.run.pending(Pending("job", None), None, expires_at=expires_at)).run(
        redis
    )

    assert redis.ttl(Keys().limit("key:k")) >= redis.ttl(Keys().call(claim.run.id)) - 1 > 7 * 86_400
    assert door.admit(door.submit("t2"), key()).word == "wait"


def test_call_keeps_its_place_until_its_deadline(door: Door, redis: Redis) -> None:
    door.run("t1", ONE)
    call = door.submit("t2", deadline=iso_time((time.time() + 7 * 86_400) * 1000))
    assert door.admit(call, ONE).word == "wait"

    keys, name = Keys(), "concurrency:notes"
    for place in (keys.wait_queue(name), keys.waiter(identity_of(call)), keys.waiting("coder"), keys.limits):
        assert redis.ttl(place) > 7 * 86_400


def overwrite(door: Door, call: ToolCall) -> None:
    """Do to a call's record what another program might."""
    door.redis.set(door.ledger.keys.call(identity_of(call)), "overwritten")


def test_permit_of_damaged_record_is_freed(door: Door) -> None:
    overwrite(door, door.run("holder", ONE))
    assert door.admit(door.submit("next"), ONE).word == "go"


def test_call_with_damaged_record_releases_its_limit(door: Door) -> None:
    holder = door.run("holder", ONE)
    door.wait("next", ONE)
    leave = door.script_calls.leave(*door.claims["holder"].id_and_token, ONE)
    leave.run(door.redis)
    assert door.queue() == []
    overwrite(door, holder)
    leave.run(door.redis)
    assert door.queue() == ["next"]


def test_ending_call_frees_permit_beside_damaged_limit(door: Door, redis: Redis) -> None:
    both = f"{SERIAL_A}\n{ONE}"
    holder = door.run("holder", both)
    door.wait("next", ONE)
    redis.set("goondan:holders:serial:notes@a", "overwritten")
    assert door.end(holder) is Stored.YES
    assert door.queue() == ["next"]


def test_cancelled_waiting_call_leaves_its_wait_queue(door: Door, redis: Redis) -> None:
    door.run("holder", ONE)
    call = door.wait("next", ONE)
    claim = door.ledger.cancel(identity_of(call), "c").run(redis)
    assert claim is not None
    cancelled = claim.run.failed(describe(ToolCancelledError(), help_url=""), None)
    door.ledger.finish(claim, cancelled).run(redis)
    assert redis.zcard("goondan:line:concurrency:notes") == 0
    assert redis.zcard("goondan:waiting:coder") == 0
    assert not redis.exists(door.ledger.keys.waiter(identity_of(call)))


def test_call_behind_damaged_waiting_call_is_admitted(door: Door) -> None:
    holder = door.run("holder", ONE)
    overwrite(door, door.wait("damaged", ONE))
    door.wait("next", ONE)
    door.end(holder)
    assert door.queue() == ["next"]


def test_damaged_key_owner_lets_no_other_call_run(door: Door) -> None:
    owner = door.run("owner", key())
    overwrite(door, owner)
    answer = door.admit(door.submit("second"), key())
    assert (answer.word, answer.about) == ("share", identity_of(owner))


def test_damaged_limit_does_not_stop_others(door: Door, redis: Redis) -> None:
    holder = door.run("holder", ONE)
    door.wait("waits", ONE)
    redis.set("goondan:line:broken", "overwritten")
    redis.zadd("goondan:limits", {"broken": 1, "concurrency:notes": 2})
    redis.delete(door.ledger.keys.call(identity_of(holder)), "goondan:holders:concurrency:notes")
    door.look()
    assert door.queue() == ["waits"]


def test_resumed_tools_calls_are_queued_in_ordered_parts(redis: Redis) -> None:
    door, pauses = Door(redis), Pauses(redis, Keys("goondan"))
    pauses.pause("coder", "notes__find", "", "")
    limit = f"paused 1 0 - {pause_name('coder', 'notes__find')}"
    messages = [b"%d" % number for number in range(250)]
    for message in messages:
        assert door.admit(door.submit(message.decode()), limit, message).word == "wait"
    assert redis.llen(QUEUE) == 0

    assert pauses.resume("coder", "notes__find")
    taken: list[bytes] = []
    while len(taken) < len(messages):
        door.look()
        waiting = redis.llen(QUEUE)
        assert 0 < waiting <= 200
        redis.zadd("goondan:limits", {limit.rpartition(" ")[2]: 0}, xx=True)
        taken += cast("list[bytes]", redis.rpop(QUEUE, 60))

    assert taken == [b" " + message for message in messages]
    assert redis.zcard(Keys("goondan").waiting("coder")) == 0


def test_calls_pass_once_their_tool_is_resumed(redis: Redis) -> None:
    door, pauses = Door(redis), Pauses(redis, Keys("goondan"))
    pauses.pause("coder", "notes__find", "", "")
    limit = f"paused 1 0 - {pause_name('coder', 'notes__find')}"
    earlier = door.submit("t1")
    assert door.admit(earlier, limit, b" 1").word == "wait"
    pauses.resume("coder", "notes__find")

    door.look()
    assert door.queue() == ["1"]
    assert door.admit(earlier, limit, b" 1").word == "go"
    assert door.admit(door.submit("t2"), limit, b" 2").word == "go"


def test_second_message_leaves_waiting_call_in_its_queue(redis: Redis) -> None:
    door, pauses = Door(redis), Pauses(redis, Keys("goondan"))
    pauses.pause("coder", "notes__find", "", "")
    call = door.submit("t1")
    assert door.admit(call, f"paused 1 0 - {pause_name('coder', 'notes__find')}").word == "wait"

    # a worker that was frozen has an older copy of the message, and does not know of the pause
    assert door.admit(call, ONE).word == "wait"
    pauses.resume("coder", "notes__find")
    door.look()
    assert door.queue() == ["t1"]


def use_tokens(redis: Redis, tokens: int | str, *, slots_ago: int = 0) -> None:
    """Count tokens, as workers do after an answer of a Model."""
    redis.hset(Keys().tokens("small"), str(int(time.time()) // 10 - slots_ago), tokens)


def test_requests_wait_while_last_minute_tokens_reach_limit(door: Door, redis: Redis) -> None:
    use_tokens(redis, 12)
    use_tokens(redis, 7, slots_ago=3)
    use_tokens(redis, 100, slots_ago=7)
    first = door.run("r", TOKENS)
    use_tokens(redis, 8, slots_ago=3)
    second, third = door.wait("t1", TOKENS), door.wait("t2", TOKENS)
    assert door.look()
    door.end(first)
    assert door.queue() == []
    redis.delete(Keys().tokens("small"))
    assert door.admit(third, TOKENS).word == "wait", "the second waits for longer"
    wait_until(lambda: not door.look())
    assert door.queue() == ["t1", "t2"]
    assert door.admit(second, TOKENS).word == "go"
    assert not redis.exists(Keys().holders("tokens:small"))


def test_call_is_late_if_tokens_expire_after_deadline(door: Door, redis: Redis) -> None:
    use_tokens(redis, 5)
    use_tokens(redis, 15, slots_ago=2)  # without these, the limit is not reached: in 30 to 40 s
    now = time.time() * 1000
    for seconds, word in ((25, "late"), (45, "wait")):
        call = door.submit(f"t{seconds}", deadline=iso_time(now + seconds * 1000))
        assert door.admit(call, TOKENS).word == word


@pytest.mark.parametrize("damage", ["many", "nan", "-50", "1e12", None])
def test_tokens_of_other_programs_count_as_none(door: Door, redis: Redis, damage: str | None) -> None:
    if damage is None:
        redis.set(Keys().tokens("small"), "overwritten")
    else:
        use_tokens(redis, damage)
    assert door.admit(door.submit("t1"), TOKENS).word == "go"


def test_request_too_late_for_tokens_names_retry_time(door: Door, redis: Redis) -> None:
    use_tokens(redis, 20)
    waiting = door.wait("t1", TOKENS)
    limiter = Limiter(door.ledger)
    request = ClaimRequest(identity_of(waiting), waiting, "w1", ClaimTerms())
    error = limiter.too_late(request.claim((b"limited", 0, 0, 0)))
    assert "Model 'small' is limited to 20 tokens a minute" in error.message
    assert "Retry in 60.0 s" in error.message

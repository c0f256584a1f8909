"""Events in the ledger: only the first of a mailbox is handled, whoever ends it lets the next one come."""

import json
import time

import fakeredis
import pytest
from hypothesis import settings as effort
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.errors import HandoffTimeoutError
from goondan_tasks.contract.events import mailbox_of
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms, new_token
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Stored, Verdict
from goondan_tasks.ledger.submission import Submission, digest_of, event_submission
from tests.unit.goondan_tasks.ledger.calls import an_event
from tests.waiting import wait_until

ONCE, AGAIN = ClaimTerms(), ClaimTerms(idempotent=True)
QUEUE = "agent.coder.events"


class Post:
    """A ledger with one agent's events; what stands on its queue is what a worker would take."""

    def __init__(self, redis: Redis, **settings: float) -> None:
        self.redis = redis
        self.ledger = Ledger(redis, Settings.model_validate({"lease_seconds": 60, **settings}))
        self.ledger.sweep("sweeper").run(self.ledger.redis)
        self.reaper = Reaper(self.ledger, "https://help/")

    def message(self, call: ToolCall) -> bytes:
        return call.tool_call_id.encode()

    def put(self, *calls: ToolCall) -> None:
        for call in calls:
            wire = serializer.encode(call.to_wire())
            one = Submission(
                identity_of(call), call, wire, digest_of(call), self.message(call), mailbox=mailbox_of(call)
            )
            self.ledger.submit_all([one], "p1")

    def claim_event(self, call: ToolCall, terms: ClaimTerms = ONCE, *, is_handled_here: bool = True) -> Claim:
        request = ClaimRequest(identity_of(call), call, "w1", terms)
        script_call = self.ledger.claim_event(request, self.message(call), is_handled_here=is_handled_here)
        claim: Claim = script_call.run(self.redis)
        return claim

    def fetch(self, instance: str = "", token: str | None = None) -> Claim | None:
        box = f"coder@{instance}" if instance else ""
        fetch = self.ledger.fetch("coder", box, "brain", terms=ONCE, token=token or new_token())
        claim: Claim | None = fetch.run(self.redis)
        return claim

    def end(self, claim: Claim) -> Stored:
        finished: Stored = self.ledger.finish(claim, claim.run.ok(None, 0.0)).run(self.redis)
        return finished

    def abandon(self, claim: Claim) -> Stored:
        """Answer in the place of a handler that goes on, as if it were past its limit."""
        failed = self.reaper.failure(claim, HandoffTimeoutError())
        finished: Stored = self.ledger.finish(claim, failed, still_runs=True).run(self.redis)
        return finished

    def take_messages(self) -> list[str]:
        """Take what stands on the queue, the first to be taken first."""
        found = self.messages()
        self.redis.delete(QUEUE, f"{QUEUE}.bell")
        return found

    def messages(self) -> list[str]:
        """Return what stands on the queue."""
        return [str(element, "ascii") for element in reversed(self.redis.lrange(QUEUE, 0, -1))]  # type: ignore[arg-type]


@pytest.fixture
def post(redis: Redis) -> Post:
    return Post(redis)


def test_next_event_comes_only_when_first_ends(post: Post) -> None:
    events = [an_event(number) for number in range(3)]
    post.put(*events)
    assert post.take_messages() == ["e0", "e1", "e2"]
    assert [post.claim_event(event).verdict for event in reversed(events)] == [
        Verdict.WAITING,
        Verdict.WAITING,
        Verdict.RUN,
    ]


def test_each_dropped_message_is_pushed_once(post: Post) -> None:
    events = [an_event(number) for number in range(3)]
    post.put(*events)
    post.take_messages()
    for waiting in (2, 1, 2, 1):
        assert post.claim_event(events[waiting]).verdict is Verdict.WAITING
    for number, event in enumerate(events):
        assert post.end(post.claim_event(event)) is Stored.YES
        assert post.take_messages() == [f"e{number + 1}"][: 2 - number]
    assert post.redis.keys("goondan:mailbox*") == []


def test_message_still_queued_is_not_doubled(post: Post) -> None:
    first, second = an_event(0), an_event(1)
    post.put(first, second)
    claim = post.claim_event(first)
    post.take_messages()
    post.end(claim)
    assert post.take_messages() == []
    assert post.claim_event(second).verdict is Verdict.RUN


def test_instances_do_not_wait_for_one_another(post: Post) -> None:
    here, there = an_event(0, "here"), an_event(1, "there")
    post.put(here, there)
    assert [post.claim_event(event).verdict for event in (there, here)] == [Verdict.RUN, Verdict.RUN]


def test_running_or_ended_event_is_not_given_again(post: Post) -> None:
    event = an_event(0)
    post.put(event)
    claim = post.claim_event(event)
    assert post.claim_event(event).verdict is Verdict.HELD
    post.end(claim)
    assert post.claim_event(event).verdict is Verdict.DONE
    assert post.end(claim) is Stored.LOST


def test_plain_producers_event_gets_place_when_met(post: Post) -> None:
    known, plain = an_event(0), an_event(1)
    post.put(known)
    assert post.claim_event(plain).verdict is Verdict.WAITING
    post.take_messages()
    post.end(post.claim_event(known))
    assert post.take_messages() == ["e1"]
    assert post.claim_event(plain).verdict is Verdict.RUN


def test_event_that_is_given_back_stays_first(post: Post) -> None:
    first, second = an_event(0), an_event(1)
    post.put(first, second)
    claim = post.claim_event(first, AGAIN)
    assert post.claim_event(second).verdict is Verdict.WAITING
    post.take_messages()
    assert post.ledger.release(claim, died=True, message=b"e0").run(post.ledger.redis)
    assert post.claim_event(second).verdict is Verdict.WAITING
    assert post.take_messages() == ["e0"]
    again = post.claim_event(first, AGAIN)
    assert (again.verdict, again.run.attempt) == (Verdict.RUN, 2)
    post.end(again)
    assert post.take_messages() == ["e1"]


def test_event_cancelled_in_middle_keeps_order(post: Post) -> None:
    events = [an_event(number) for number in range(3)]
    post.put(*events)
    first = post.claim_event(events[0])
    for waiting in events[1:]:
        post.claim_event(waiting)
    post.take_messages()
    post.reaper.cancel(identity_of(events[1]), "someone")
    assert post.take_messages() == []
    assert post.claim_event(events[2]).verdict is Verdict.WAITING
    post.end(first)
    assert post.take_messages() == ["e2"]


def test_first_event_can_be_cancelled_before_claim(post: Post) -> None:
    first, second = an_event(0), an_event(1)
    post.put(first, second)
    assert post.claim_event(second).verdict is Verdict.WAITING
    post.take_messages()
    post.reaper.cancel(identity_of(first), "someone")
    assert post.take_messages() == ["e1"]
    assert post.claim_event(first).verdict is Verdict.DONE


def test_event_waiting_too_long_ends_releasing_next(redis: Redis) -> None:
    post = Post(redis, queue_timeout_seconds=0.02)
    patient = Post(redis)
    busy, late, last = (an_event(number) for number in range(3))
    patient.put(busy)
    claim = post.claim_event(busy)
    post.put(late)
    patient.put(last)
    for waiting in (late, last):
        post.claim_event(waiting)
    post.take_messages()
    wait_until(lambda: post.reaper.sweep("sweeper"))
    result = post.ledger.result(identity_of(late))
    assert result is not None
    assert result.error is not None
    assert result.error.code == HandoffTimeoutError.code
    agent = f"{late.agent_name}@{late.instance_key}"
    assert result.error.message == f"The event waited for {agent} past its deadline, and was not handled."
    post.end(claim)
    assert post.take_messages() == ["e2"]


def test_event_with_vanished_record_does_not_block_mailbox(post: Post) -> None:
    gone, waiting, new = (an_event(number) for number in range(3))
    post.put(gone, waiting)
    post.claim_event(gone)
    post.claim_event(waiting)
    post.take_messages()
    post.redis.delete(post.ledger.keys.call(identity_of(gone)))
    post.put(new)
    assert post.claim_event(new).verdict is Verdict.WAITING
    assert post.take_messages() == ["e1", "e2"]
    assert post.claim_event(waiting).verdict is Verdict.RUN


@pytest.mark.parametrize("is_late", [False, True])
def test_repeated_end_answers_alike_and_releases_next_once(
    post: Post, redis: Redis, *, is_late: bool
) -> None:
    first, second = an_event(0), an_event(1)
    post.put(first, second)
    claim = post.claim_event(first)
    assert post.claim_event(second).verdict is Verdict.WAITING
    post.take_messages()
    if is_late:
        post.abandon(claim)
    script_call = post.ledger.finish(claim, claim.run.ok(None, 0.0))
    answers = [script_call.run(redis) for _ in range(3)]
    assert post.take_messages() == ["e1"]
    assert answers[0] is (Stored.LOST if is_late else Stored.YES)
    assert answers == [answers[0]] * 3
    assert redis.hget("goondan:late-answers", "coder") == (b"1" if is_late else None)


@pytest.mark.parametrize("awaited", [True, False])
def test_answer_goes_to_agent_that_asked(post: Post, *, awaited: bool) -> None:
    event = an_event(0, asker="planner", awaited=awaited)
    post.put(event)
    post.reaper.finish(claim := post.claim_event(event), claim.run.ok({"n": None}, 0.0))
    [element] = post.redis.lrange("agent.planner.events", 0, -1)
    _, kwargs, _ = json.loads(json.loads(element)["body"])
    message = kwargs["message"]
    assert (message["type"], message["to"], message["toInstanceKey"]) == ("delegate_result", "planner", "j")
    assert (message["payload"]["status"], message["payload"]["response"]) == ("ok", {"n": None})
    assert post.redis.exists("goondan:mailbox:planner@j") == (not awaited)


def test_same_event_id_in_two_instances_gets_two_answers(post: Post) -> None:
    for instance in ("x", "y"):
        event = an_event(0, instance, asker="planner", awaited=False)
        post.put(event)
        claim = post.claim_event(event)
        post.reaper.finish(claim, claim.run.ok(instance, 0.0))
    assert post.redis.llen("goondan:mailbox:planner@j") == 2


def test_late_answer_is_counted_and_changes_nothing(post: Post) -> None:
    event = an_event(0)
    post.put(event)
    claim = post.claim_event(event)
    assert post.ledger.cancel(claim.run.id, "someone").run(post.ledger.redis) is None
    assert post.end(claim) is Stored.CANCELLED
    assert post.redis.hgetall("goondan:late-answers") == {b"coder": b"1"}
    post.reaper.finish(claim, post.reaper.cancelled(claim.run.ok(None, 0.0)))
    assert post.redis.hgetall("goondan:late-answers") == {b"coder": b"1"}


def test_next_event_awaits_handler_outlasting_its_result(post: Post) -> None:
    first, second = an_event(0), an_event(1)
    post.put(first, second)
    claim = post.claim_event(first)
    assert [post.abandon(claim) for _ in range(2)] == [Stored.YES] * 2  # the first answer was lost on its way
    assert post.ledger.renew([claim.id_and_token]).run(post.ledger.redis) == set()
    assert post.claim_event(first).verdict is Verdict.DONE
    assert post.claim_event(second).verdict is Verdict.WAITING
    post.take_messages()
    assert post.end(claim) is Stored.LOST
    assert post.take_messages() == ["e1"]
    assert post.claim_event(second).verdict is Verdict.RUN
    assert post.redis.hgetall("goondan:late-answers") == {b"coder": b"1"}
    result = post.ledger.result(claim.run.id)
    assert result is not None
    assert result.status == "error"


def test_death_with_outlasting_handler_releases_next_event(redis: Redis) -> None:
    post = Post(redis, lease_seconds=0.05)
    first, second = an_event(0), an_event(1)
    post.put(first, second)
    post.abandon(post.claim_event(first))
    post.claim_event(second)
    post.take_messages()
    wait_until(lambda: post.reaper.sweep("sweeper"))
    assert post.take_messages() == ["e1"]
    assert post.redis.hgetall("goondan:late-answers") == {}
    assert post.redis.zscore("goondan:due", identity_of(first)) is None


def test_outlasting_handler_survives_sweep_after_outage(redis: Redis) -> None:
    post, patient = Post(redis, lease_seconds=0.05), Post(redis)
    event = an_event(0)
    post.put(event)
    claim = post.claim_event(event)
    post.abandon(claim)
    wait_until(lambda: (redis.zscore("goondan:due", claim.run.id) or 0) < time.time() * 1000)
    redis.delete("goondan:swept")
    assert patient.ledger.sweep("sweeper").run(patient.ledger.redis) == []
    assert patient.ledger.renew([claim.id_and_token]).run(patient.ledger.redis) == set()


def test_producer_fetches_first_event_of_each_instance(post: Post) -> None:
    post.put(an_event(0, "x"), an_event(1, "x"), an_event(2, "y"))
    first, second, third = post.fetch(), post.fetch(), post.fetch()
    assert first is not None
    assert second is not None
    assert third is None
    assert {first.run.call.tool_call_id, second.run.call.tool_call_id} == {"e0", "e2"}
    post.end(first)
    following = post.fetch("x")
    assert following is not None
    assert following.run.call.tool_call_id == "e1"
    assert post.fetch("nobody") is None


def test_fetching_again_with_same_token_gets_same_event(post: Post) -> None:
    post.put(an_event(0))
    first, again = post.fetch(token="t"), post.fetch(token="t")
    assert first is not None
    assert again is not None
    assert (first.run.id, first.run.attempt) == (again.run.id, again.run.attempt)


def test_brain_with_lost_answer_gets_same_instances_event(post: Post) -> None:
    post.put(an_event(0, "x"), an_event(1, "y"), an_event(2, "z"))
    first, again = post.fetch(token="t"), post.fetch(token="t")
    assert first is not None
    assert again is not None
    assert again.run.id == first.run.id
    others = [post.fetch(), post.fetch(), post.fetch()]
    assert [one is not None for one in others] == [True, True, False]


def test_worker_leaves_events_of_producer_where_they_are(post: Post) -> None:
    event = an_event(0)
    post.put(event)
    assert post.claim_event(event, is_handled_here=False).verdict is Verdict.WAITING
    post.take_messages()
    assert post.fetch() is not None


def test_parked_events_come_once_workers_handle_events(post: Post) -> None:
    events = [an_event(number, f"i{number % 250}") for number in range(500)]
    post.put(*events)
    for event in events:
        post.claim_event(event, is_handled_here=False)
    post.take_messages()
    post.reaper.release_events("coder")

    assert sorted(post.messages()) == sorted(f"e{number}" for number in range(250))
    post.end(post.claim_event(events[0]))
    assert post.messages()[0] == "e250"


def test_brain_fetching_without_workers_leaves_no_message(post: Post) -> None:
    post.redis.lpush(QUEUE, "a plain producer's, which only a worker can record")
    events = [an_event(number, f"i{number % 2}") for number in range(40)]
    post.ledger.submit_all([event_submission(event) for event in events], "p1")
    for _ in events:
        claim = post.fetch()
        assert claim is not None
        post.end(claim)

    assert post.fetch() is None
    assert post.redis.lrange(QUEUE, 0, -1) == [b"a plain producer's, which only a worker can record"]


def test_messages_of_unfetched_events_stay_for_workers(post: Post) -> None:
    events = [an_event(number, "x") for number in range(4)]
    post.ledger.submit_all([event_submission(event) for event in events], "p1")
    assert post.fetch() is not None
    assert post.fetch() is None

    left = post.redis.lrange(QUEUE, 0, -1)
    assert [identity_of(event) in str(left) for event in events] == [False, True, True, True]


def test_every_key_has_time_to_live(post: Post) -> None:
    events = [an_event(number, asker="planner", awaited=False) for number in range(4)]
    post.put(*events[:3])
    claim = post.claim_event(events[0])
    post.claim_event(events[1])
    post.claim_event(events[3])
    post.reaper.finish(claim, claim.run.ok(None, 0.0))
    post.abandon(post.claim_event(events[1]))
    post.reaper.cancel(identity_of(events[2]), "someone")
    keys = post.redis.keys("goondan:*")
    assert len(keys) > 8
    assert [key for key in keys if post.redis.ttl(key) < 0] == []


class AnyOrder(RuleBasedStateMachine):
    """Workers that take, meet, end and die, and events that are cancelled, in any order."""

    @initialize()
    def open(self) -> None:
        self.redis = fakeredis.FakeRedis()
        self.post = Post(self.redis)
        self.sent: dict[str, ToolCall] = {}
        self.taken: list[str] = []
        self.running: dict[str, Claim] = {}
        self.begun: list[str] = []
        self.ended: set[str] = set()
        self.abandoned: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "redis"):
            self.redis.close()

    @rule(instance=st.sampled_from("xyz"))
    def send(self, instance: str) -> None:
        event = an_event(len(self.sent), instance)
        self.sent[event.tool_call_id] = event
        self.post.put(event)

    @rule()
    def take(self) -> None:
        self.taken += self.post.take_messages()

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def claim_event(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.taken))
        self.taken.remove(number)
        claim = self.post.claim_event(self.sent[number], AGAIN)
        if claim.verdict is Verdict.RUN:
            assert number not in self.running
            self.running[number] = claim
            if number not in self.begun:
                self.begun.append(number)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def take_twice(self, data: st.DataObject) -> None:
        """A message comes again: its worker was slow to acknowledge it."""
        self.taken.append(data.draw(st.sampled_from(self.taken)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.running)))
        stored = Stored.LOST if number in self.abandoned else Stored.YES
        assert self.post.end(self.running.pop(number)) is stored
        self.ended.add(number)

    @precondition(lambda self: self.running.keys() - self.abandoned)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        """Answer for a handler that still runs."""
        number = data.draw(st.sampled_from(sorted(self.running.keys() - self.abandoned)))
        assert self.post.abandon(self.running[number]) is Stored.YES
        self.abandoned.add(number)

    @precondition(lambda self: self.running.keys() - self.abandoned)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.running.keys() - self.abandoned)))
        assert self.post.ledger.release(self.running.pop(number), died=False, message=number.encode()).run(
            self.post.ledger.redis
        )

    @precondition(lambda self: self.sent.keys() - self.ended - self.running.keys())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.sent.keys() - self.ended - self.running.keys())))
        self.post.reaper.cancel(identity_of(self.sent[number]), "someone")
        self.ended.add(number)

    @invariant()
    def one_at_a_time_and_in_order(self) -> None:
        if not hasattr(self, "sent"):
            return
        instances = [self.sent[number].instance_key for number in self.running]
        assert len(instances) == len(set(instances))
        for instance in "xyz":
            mine = [int(number[1:]) for number in self.begun if self.sent[number].instance_key == instance]
            assert mine == sorted(mine)

    @invariant()
    def whoever_may_come_has_a_message(self) -> None:
        if not hasattr(self, "sent"):
            return
        waiting = self.post.messages()
        for instance in "xyz":
            alive = [n for n, e in self.sent.items() if e.instance_key == instance and n not in self.ended]
            if alive:
                assert alive[0] in self.running or alive[0] in waiting or alive[0] in self.taken


def test_any_worker_order_loses_or_overtakes_no_event() -> None:
    examples = effort().max_examples // 2
    run_state_machine_as_test(AnyOrder, settings=effort(max_examples=examples, stateful_step_count=40))


def test_client_event_without_record_is_ended_not_claimed(post: Post) -> None:
    event = an_event(0)
    request = ClaimRequest(identity_of(event), event, "w1", ONCE, was_stored=True)

    claim = post.ledger.claim_event(request, b"e0", is_handled_here=True).run(post.redis)

    assert claim.verdict is Verdict.ABSENT
    assert post.ledger.record(identity_of(event)) is None
    assert post.claim_event(event).verdict is Verdict.RUN  # plain Celery queued it

"""The index of dead letters, on a Redis in memory."""

import dataclasses
from collections.abc import Iterator

import fakeredis
import pytest
from redis import Redis

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.dead_letters import DeadLetters, batches
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord, Verdict
from goondan_tasks.ledger.submission import Submission, digest_of


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Settings(result_ttl_seconds=600))


@pytest.fixture
def letters(ledger: Ledger) -> DeadLetters:
    return DeadLetters(ledger)


def end(ledger: Ledger, turn: str, *, verdict: Verdict = Verdict.POISONED, agent: str = "coder") -> str:
    """Have a call end: dead, unless another verdict is given."""
    call = new_call(agent, f"bash__{turn}", {}, {"turn_id": turn, "tool_call_id": "call_1"})
    call_id = identity_of(call)
    wire = serializer.encode(call.to_wire())
    ledger.submit_all([Submission(call_id, call, wire, digest_of(call, b"{}"), b"m")], "p")
    claim = ledger.claim(ClaimRequest(call_id, call, "w", ClaimTerms())).run(ledger.redis)
    assert ledger.finish(dataclasses.replace(claim, verdict=verdict), claim.run.ok(None, None)).run(
        ledger.redis
    )
    return call_id


def found(letters: DeadLetters, *agents: str, **wanted: str) -> list[str]:
    return [letter.id for letter in letters.find(agents or ("coder",), tool=wanted.get("tool"))]


def a_record(ledger: Ledger, call_id: str) -> CallRecord:
    record = ledger.record(call_id)
    assert record is not None
    return record


def test_only_dead_come_into_index(ledger: Ledger, letters: DeadLetters, redis: Redis) -> None:
    dead = end(ledger, "dead")
    assert a_record(ledger, dead).is_idempotent is False  # whoever replays it is told
    for verdict in (Verdict.RUN, Verdict.UNKNOWN, Verdict.EXPIRED):
        end(ledger, str(verdict), verdict=verdict)
    assert found(letters) == [dead]
    assert letters.has(a_record(ledger, dead))
    assert a_record(ledger, dead).status == "dead"
    assert 0 < redis.ttl(ledger.keys.dead_letters("coder")) <= 600


def test_letters_match_agent_and_glob_latest_first(ledger: Ledger, letters: DeadLetters) -> None:
    one, two, other = end(ledger, "one"), end(ledger, "two"), end(ledger, "one", agent="planner")
    assert set(found(letters)) == {one, two}
    assert set(found(letters, "coder", "planner")) == {one, two, other}
    assert set(found(letters, "coder", "planner", tool="*__one")) == {one, other}
    assert found(letters, tool="bash__tw?") == [two]
    assert found(letters, "nobody") == []


def test_next_dead_letter_drops_expired_entries(ledger: Ledger, letters: DeadLetters, redis: Redis) -> None:
    redis.zadd(ledger.keys.dead_letters("coder"), {"long-gone": 1_000})
    dead = end(ledger, "dead")
    assert redis.zrange(ledger.keys.dead_letters("coder"), 0, -1) == [dead.encode()]


def test_index_is_bounded(ledger: Ledger, letters: DeadLetters, redis: Redis) -> None:
    first = end(ledger, "first")
    score = redis.zscore(ledger.keys.dead_letters("coder"), first)
    assert score is not None
    redis.zadd(ledger.keys.dead_letters("coder"), {f"id-{number}": score - 1 for number in range(10_000)})
    last = end(ledger, "last")
    kept = redis.zrange(ledger.keys.dead_letters("coder"), 0, -1)
    assert len(kept) == 10_000
    assert set(kept[-2:]) == {first.encode(), last.encode()}


def test_replay_is_noted_only_while_record_exists(ledger: Ledger, letters: DeadLetters, redis: Redis) -> None:
    record = a_record(ledger, end(ledger, "dead"))
    letters.note_replayed([record], ["new"])
    noted = a_record(ledger, record.id)
    assert (noted.replayed_by, noted.replays) == ("new", 1)
    redis.delete(ledger.keys.call(record.id))
    letters.note_replayed([record], ["newer"])
    assert not redis.exists(ledger.keys.call(record.id))


def test_slower_operator_does_not_take_back_later_replay(ledger: Ledger, letters: DeadLetters) -> None:
    as_read_by_both = a_record(ledger, end(ledger, "dead"))
    letters.note_replayed([as_read_by_both], ["first"])
    letters.note_replayed([a_record(ledger, as_read_by_both.id)], ["second"])
    letters.note_replayed([as_read_by_both], ["first"])
    noted = a_record(ledger, as_read_by_both.id)
    assert (noted.replayed_by, noted.replays) == ("second", 2)


def test_dead_letters_of_all_agents_are_removed(ledger: Ledger, letters: DeadLetters) -> None:
    one, other, kept = end(ledger, "one"), end(ledger, "one", agent="planner"), end(ledger, "two")
    assert letters.remove([one, other, "nobody"], ["coder", "planner"]) == [one, other]
    assert letters.remove([one], ["coder"]) == []
    assert letters.remove([], ["coder"]) == []
    assert found(letters, "coder", "planner") == [kept]
    assert not letters.has(a_record(ledger, one))


def test_many_are_read_in_several_trips() -> None:
    assert [len(batch) for batch in batches(list(range(401)))] == [200, 200, 1]
    assert list(batches([])) == []

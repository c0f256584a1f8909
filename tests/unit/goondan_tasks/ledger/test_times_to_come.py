"""Another program has written times that lie further ahead than any of ours: nothing waits for them."""

import time
from typing import cast

import pytest
from redis import Redis

from broker_config.in_flight import InFlight, ReservationFactory
from broker_config.queues import IN_FLIGHT_INDEX, call_queue
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.ledger.ledger import Ledger, sweep_seconds
from goondan_tasks.ledger.record import Verdict
from tests.unit.goondan_tasks.ledger.calls import a_call, claimed, submit, swept
from tests.unit.goondan_tasks.ledger.test_limit_scripts import ONE, RATE, Door
from tests.unit.goondan_tasks.ledger.test_pending import suspended

FAR_MS = 4e12


@pytest.fixture
def door(redis: Redis) -> Door:
    return Door(redis)


def test_dead_holders_permit_is_freed_despite_future_look(door: Door, redis: Redis) -> None:
    holder = door.run("holder", ONE)
    redis.delete(door.ledger.keys.call(identity_of(holder)))
    redis.hset(door.ledger.keys.limit("concurrency:notes"), "looked", str(FAR_MS))
    assert door.admit(door.submit("next"), ONE).word == "go"


@pytest.mark.parametrize("at", [FAR_MS, 9e12])
def test_rate_counts_no_starts_to_come(door: Door, redis: Redis, at: float) -> None:
    redis.zadd(door.ledger.keys.holders("rate:notes"), {"one": at, "two": at})
    assert door.admit(door.submit("next"), RATE).word == "go"


@pytest.mark.parametrize("at", [FAR_MS, float("inf")])
def test_wait_queue_of_far_future_is_looked_at(door: Door, redis: Redis, at: float) -> None:
    holder = door.run("holder", ONE)
    door.wait("waits", ONE)
    redis.zadd(door.ledger.keys.limits, {"concurrency:notes": at})
    assert door.look()
    due_in = float(str(redis.zscore(door.ledger.keys.limits, "concurrency:notes"))) / 1000 - time.time()
    assert 0 < due_in <= sweep_seconds(door.settings)
    redis.delete(door.ledger.keys.call(identity_of(holder)))
    redis.hset(door.ledger.keys.limit("concurrency:notes"), "looked", "0")
    redis.zadd(door.ledger.keys.limits, {"concurrency:notes": at})
    door.look()
    assert door.queue() == ["waits"]


def test_lease_ending_in_far_future_ends_normally(hasty: Ledger, redis: Redis) -> None:
    redis.hset(hasty.keys.agents, "coder", "{}")
    call_id = submit(hasty, a_call())
    claimed(hasty, a_call())
    hasty.sweep("s").run(redis)
    redis.zadd(hasty.keys.due, {call_id: FAR_MS})
    assert swept(hasty).run.id == call_id


def test_pending_call_due_in_far_future_expires(hasty: Ledger, redis: Redis) -> None:
    redis.hset(hasty.keys.agents, "coder", "{}")
    call_id = suspended(hasty, seconds=0.01)
    hasty.sweep("s").run(redis)
    redis.zadd(hasty.keys.due, {call_id: FAR_MS})
    assert swept(hasty).verdict is Verdict.UNRESOLVED


def test_message_is_overdue_whose_reservation_is_of_future(redis: Redis) -> None:
    queue = call_queue("coder")
    redis.lpush(queue, "message")
    ReservationFactory().make([queue], 1).script_call.run(redis)
    in_flight = InFlight(lambda script_call: script_call.run(redis))
    assert in_flight.overdue(60) == []
    [tag] = cast("list[bytes]", redis.zrange(IN_FLIGHT_INDEX, 0, -1))
    redis.zadd(IN_FLIGHT_INDEX, {tag: FAR_MS})
    assert in_flight.give_back(in_flight.overdue(60)) == 1
    assert redis.lrange(queue, 0, -1) == [b"message"]

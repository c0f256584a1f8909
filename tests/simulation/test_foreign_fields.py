"""Calls whose records another program has changed keep no others from their permits."""

from random import Random

import pytest
from redis import Redis

from tests.simulation import workers
from tests.simulation.foreign_fields import FOREIGN_FIELDS, heal_fields
from tests.simulation.scripts import simulated_scripts
from tests.simulation.world import World


@pytest.mark.parametrize("key", ["call", "waiter"])
@pytest.mark.parametrize(
    "field",
    [("deadline", "soon"), ("status", "queued?"), ("agent", None), ("at", "now"), ("gates", "seats x")],
)
def test_waiting_call_with_garbage_keeps_no_other_waiting(
    redis: Redis, key: str, field: tuple[str, str | None]
) -> None:
    name, garbage = field
    with simulated_scripts():
        world, pick = World(FOREIGN_FIELDS.parts(redis)), Random(3)
        calls = [world.new_call(pick, tools=("gate__solo",)) for _ in range(3)]
        known = [one for one in calls if one is not None]
        world.stop_following()
        world.is_healing = True  # without faults
        world.ledger.submit_all([one.submission for one in known], "p1")
        for _ in range(20):
            workers.reserve(world, pick)
            workers.claim(world, pick)
        FOREIGN_FIELDS.check(world)
        line = world.limit_states["concurrency:gate__solo"].line
        waiting = world.calls[next(iter(line))]
        assert len(line) == 2
        changed = f"{world.ledger.keys.prefix}{key}:{waiting.id}"
        if garbage is None:
            redis.hdel(changed, name)
        else:
            redis.hset(changed, name, garbage)
        waiting.is_damaged = waiting.is_foreign = True
        heal_fields(world)

    others = [one for one in known if one is not waiting]
    assert all(one.result is not None for one in others)


@pytest.mark.parametrize("garbage", ["nan", "inf", "1e300", "-1", "soon"])
def test_due_set_is_rebuilt_despite_unreadable_deadline(redis: Redis, garbage: str) -> None:
    with simulated_scripts():
        world = World(FOREIGN_FIELDS.parts(redis))
        world.stop_following()
        known = [one for one in (world.new_call(Random(3)) for _ in range(2)) if one is not None]
        world.ledger.submit_all([one.submission for one in known], "p1")
        redis.hset(world.ledger.keys.call(known[0].id), "deadline", garbage)
        known[0].is_damaged = known[0].is_foreign = True
        world.publish_agents()
        redis.delete(world.ledger.keys.due)
        for _ in range(2):  # the calls of one agent in each
            world.reaper.sweep("sweeper")
        made = world.due()
        heal_fields(world)

    assert set(made) == {one.id for one in known}
    assert known[1].result is not None


@pytest.mark.parametrize("garbage", ["1", b"\xff\xfe\x00"])
def test_foreign_parked_event_stops_no_other_event(redis: Redis, garbage: str | bytes) -> None:
    with simulated_scripts():
        world, pick = World(FOREIGN_FIELDS.parts(redis)), Random(3)
        world.stop_following()
        made = [world.new_call(pick) for _ in range(12)]
        events = [one for one in made if one is not None and one.is_event and one.call.not_before is None]
        first = events[0]
        second = next(one for one in events[1:] if one.call.instance_key == first.call.instance_key)
        world.calls = {one.id: one for one in (first, second)}
        world.ledger.submit_all([first.submission, second.submission], "p1")
        redis.hset(world.ledger.keys.call(second.id), "parked", garbage)
        second.is_damaged = second.is_foreign = True
        world.is_healing = True  # without faults
        heal_fields(world)

    assert first.result is not None

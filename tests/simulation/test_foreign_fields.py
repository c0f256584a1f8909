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

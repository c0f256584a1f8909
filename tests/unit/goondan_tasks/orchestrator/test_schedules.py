"""An orchestrator fires the schedules of its bundle while no worker is there."""

from pathlib import Path

import fakeredis

from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.schedules import Schedule
from goondan_tasks.fleet.agent_registry import describe_agents
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.schedules import ScheduleStore
from goondan_tasks.orchestrator.orchestrator import Fleet

BUNDLE = Path(__file__).parents[3] / "bundles" / "clockwork"
NAMES = {"clockwork/yearly", "clockwork/monthly"}


def test_slot_without_worker_makes_its_agent_need_worker() -> None:
    redis, settings, bundle = fakeredis.FakeRedis(), Settings(), load_bundle(BUNDLE)
    fleet = Fleet(redis, settings, describe_agents(bundle, None, None), "orchestrator", bundle)
    ledger = Ledger(redis, settings)
    store = ScheduleStore(ledger)

    before = fleet.look(["ringer"])
    assert {one.full_name for one in store.all()} == NAMES
    assert not fleet.is_needed("ringer", before.queues["ringer"])
    redis.hset(ledger.keys.schedule("clockwork/yearly"), mapping={"next": 1_000, "at": 1_000})
    redis.zadd(ledger.keys.schedules("clockwork"), {"clockwork/yearly": 1_000})
    fleet.look(["ringer"])
    after = fleet.look(["ringer"])

    assert fleet.is_needed("ringer", after.queues["ringer"])
    [yearly] = [one for one in store.all() if one.schedule.name == "yearly"]
    assert (yearly.fired, yearly.missed > 50) == (1, True)


def test_schedules_of_workers_stay_when_orchestrator_starts() -> None:
    redis, settings, bundle = fakeredis.FakeRedis(), Settings(), load_bundle(BUNDLE)
    store = ScheduleStore(Ledger(redis, settings))
    store.keep("clockwork", [Schedule(name="newer", owner="clockwork", every="1h", agent="ringer")], 5_000.0)

    Fleet(redis, settings, describe_agents(bundle, None, None), "orchestrator", bundle).look(["ringer"])

    assert [one.full_name for one in store.all()] == ["clockwork/newer"]

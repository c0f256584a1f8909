"""A worker keeps its bundle's schedules, looks when the next slot is due, and logs what became of each."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
import structlog
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.settings import Settings
from goondan_tasks.bundle.resources import ScheduleResource
from goondan_tasks.contract.schedules import Schedule
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.schedule_keeper import ScheduleKeeper
from goondan_tasks.ledger.schedules import ScheduleStore
from workers.pool.schedules import ScheduleWatch


class Timer:
    """The timer of Celery's consumer, which the test lets go off."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def call_after(self, seconds: float, function: Callable[[], None]) -> Any:
        entry = (seconds, function)
        self.set.append(entry)
        return SimpleNamespace(cancel=lambda: self.set.remove(entry) if entry in self.set else None)


class Worker:
    """A worker of a bundle with these schedules."""

    def __init__(self, **every: str) -> None:
        self.redis = fakeredis.FakeRedis()
        self.ledger = Ledger(self.redis, Settings.model_validate({}))
        self.store = ScheduleStore(self.ledger)
        self.timer = Timer()
        self.keeper = ScheduleKeeper(self.ledger, Reaper(self.ledger, "https://help/"))
        self.watch = ScheduleWatch(self.keeper, self.timer, beat_seconds=5.0)
        self.bundle: Any = bundle(**every)

    def keep(self, ref: str = "r1") -> None:
        self.keeper.keep(self.bundle, ref, None, None)

    def wind_back(self, name: str) -> None:
        keys, slot = self.ledger.keys, (self.redis.time()[0] // 3600) * 3_600_000
        self.redis.hset(keys.schedule(f"w/{name}"), mapping={"next": slot, "at": slot})
        self.redis.zadd(keys.schedules("w"), {f"w/{name}": slot})


def bundle(**every: str) -> Any:
    resources = {
        name: ScheduleResource.model_validate(
            {
                "apiVersion": "goondan.ai/v1",
                "kind": "Schedule",
                "metadata": {"name": name},
                "spec": {"every": text, "agentRef": "Agent/coder", "catchUp": "once", "overlap": "skip"},
            }
        )
        for name, text in every.items()
    }
    return SimpleNamespace(
        schedules=resources, workspace_name=lambda *_: "w", agent_names=lambda _: ("coder",)
    )


def test_timer_awaits_only_slots_before_next_heartbeat() -> None:
    soon, late = Worker(often="1s"), Worker(rare="1d")
    for worker in (soon, late):
        worker.keep()
        worker.watch.look()
        worker.watch.look()

    [(seconds, _)] = soon.timer.set
    assert 0 < seconds <= 1.01
    assert late.timer.set == []
    soon.watch.stop()
    assert soon.timer.set == []


def test_worker_without_schedules_sets_no_timer_or_key() -> None:
    worker = Worker()
    worker.keep()
    worker.watch.look()

    assert worker.timer.set == []
    assert worker.redis.keys("*") == []


def test_each_slot_is_logged_with_its_outcome() -> None:
    worker = Worker(hourly="1h")
    worker.keep()
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            worker.wind_back("hourly")
            worker.watch.look()

    told = [line["event"] for line in logs]
    assert "schedule.fired" in told
    assert told[-1] == "schedule.skipped"
    [fired] = [line for line in logs if line["event"] == "schedule.fired"]
    assert (fired["schedule"], fired["agent"]) == ("w/hourly", "coder")
    assert worker.ledger.record(fired["call_id"]) is not None


def test_other_swarms_agents_slot_is_not_kept() -> None:
    worker = Worker(hourly="1h")
    worker.bundle.agent_names = lambda _: ("planner",)
    worker.keep()

    assert worker.store.all() == []


def test_worker_reports_later_bundle_loaded_by_another() -> None:
    worker = Worker(hourly="1h")
    worker.keep()
    worker.store.keep("w", [Schedule(name="new", owner="w", every="2h", agent="coder")], 9e15)

    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            worker.keep()  # after a reconnection

    assert [line["event"] for line in logs] == ["schedules.older_bundle"]
    assert [one.full_name for one in worker.store.all()] == ["w/new"]


def test_outage_at_timer_is_logged_ending_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(often="1s")
    worker.keep()
    worker.watch.look()
    [(_, go_off)] = worker.timer.set

    def away(*_: object) -> None:
        raise RedisConnectionError("away")

    monkeypatch.setattr(ScheduleStore, "fire_due", away)
    with structlog.testing.capture_logs() as logs:
        go_off()

    assert [line["event"] for line in logs] == ["schedules.not_looked_at"]

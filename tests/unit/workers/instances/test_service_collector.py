"""Removing instances past the Swarm's time limit."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.bundle.resources import LifecyclePolicy
from goondan_tasks.instances.housekeeping import Housekeeping, InstanceRemoval
from goondan_tasks.ledger.ledger import Ledger
from tests.unit.goondan_tasks.bundle.writing import write
from tests.waiting import wait_until
from workers.instances.service import EVERY_SECONDS, Collector
from workers.runtime import make_collector


class FakeHousekeeping:
    """Notes the rounds; each lasts until it is let go."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, str]] = []
        self.ended = threading.Semaphore(0)
        self.error: Exception | None = None

    def collect(self, older_than_seconds: float, *, workspace: str) -> Iterator[InstanceRemoval]:
        self.rounds.append((older_than_seconds, workspace))
        self.ended.release()
        if self.error is not None:
            raise self.error
        yield InstanceRemoval(instance_key="a", workspace="shop", agents=("coder",), path="/a", removed=True)


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


def collector(redis: Redis, keeper: FakeHousekeeping, **policy: Any) -> Collector:
    ledger = Ledger(redis, Settings())
    rules = LifecyclePolicy.model_validate(policy)
    return Collector(ledger, cast("Housekeeping", keeper), workspace="shop", policy=lambda: rules)


def test_without_limit_nothing_is_asked(redis: Redis) -> None:
    keeper = FakeHousekeeping()
    collector(redis, keeper).look("w", "root")
    assert redis.dbsize() == 0
    assert keeper.rounds == []


def test_limit_of_active_revision_counts(redis: Redis, tmp_path: Path) -> None:
    def bundle(policy: str) -> Bundle:
        swarm = f"{{ entryAgent: Agent/a, agents: [Agent/a], policy: {policy} }}"
        text = (
            f"apiVersion: goondan.ai/v1\nkind: Swarm\nmetadata: {{ name: default }}\nspec: {swarm}\n---\n"
            "apiVersion: goondan.ai/v1\nkind: Agent\nmetadata: { name: a }\nspec: {}\n"
        )
        return load_bundle(write(tmp_path, {"goondan.yaml": text}))

    active = bundle("{}")
    ledger = Ledger(redis, Settings(state_root=tmp_path / "state"))
    worker = make_collector(ledger, lambda: active)
    worker.look("w", "root")
    assert redis.dbsize() == 0
    active = bundle("{ lifecycle: { ttlSeconds: 60 } }")
    worker.look("w", "root")
    assert redis.exists(ledger.keys.collector("root"))


def test_each_root_has_one_collector_at_a_time(redis: Redis) -> None:
    keeper = FakeHousekeeping()
    workers = [collector(redis, keeper, ttlSeconds=60, gcGraceSeconds=5) for _ in range(3)]
    for worker in workers:
        worker.look("w", "root")
    wait_until(lambda: not workers[0]._is_at_work.locked())  # a worker does one round at a time
    workers[0].look("w", "other-root")
    assert all(keeper.ended.acquire(timeout=30) for _ in range(2))
    assert keeper.rounds == [(65, "shop"), (65, "shop")]
    assert 0 < redis.ttl("goondan:collector:root") <= EVERY_SECONDS


@pytest.mark.parametrize("error", [RedisConnectionError("gone"), PermissionError("no")])
def test_round_that_fails_is_left_to_next(redis: Redis, error: Exception) -> None:
    keeper = FakeHousekeeping()
    keeper.error = error
    worker = collector(redis, keeper, ttlSeconds=60)
    for _ in range(2):
        redis.delete("goondan:collector:root")
        wait_until(lambda: not worker._is_at_work.locked())
        worker.look("w", "root")
        assert keeper.ended.acquire(timeout=30)
    assert len(keeper.rounds) == 2

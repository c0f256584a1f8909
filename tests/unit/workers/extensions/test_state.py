"""What extensions remember."""

import asyncio
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest

from broker_config.settings import Settings
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.messages import ToolCall
from tests.unit.workers.default_threads import take_default_threads_away
from tests.unit.workers.runs import job_of
from workers.extensions.events import running
from workers.extensions.state import TTL_SECONDS, ExtensionState, MemoryState, RedisState, StateStore


def call_of(agent: str) -> ToolCall:
    return new_call(agent, "a__b", {}, {"instance_key": "i"})


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[StateStore]:
    if request.param == "memory":
        yield MemoryState()
        return
    with fakeredis.FakeRedis() as redis:
        yield RedisState(redis, Settings.load())


def test_state_value_is_kept_until_forgotten(store: StateStore) -> None:
    state = ExtensionState(store, "coder", "ext")
    value = {"list": [1, None, "é"]}

    state.set("key", value, instance_key="i")
    assert state.get("key", instance_key="i") == value
    state.set("key", None, instance_key="i")

    assert state.get("key", "default", instance_key="i") == "default"


@pytest.mark.parametrize(
    ("agent", "extension", "instance"),
    [("x", "ext", "i"), ("coder", "x", "i"), ("coder", "ext", "x")],
)
def test_agents_extensions_and_instances_do_not_mix(
    store: StateStore, agent: str, extension: str, instance: str
) -> None:
    ExtensionState(store, "coder", "ext").set("key", 1, instance_key="i")

    assert ExtensionState(store, agent, extension).get("key", instance_key=instance) is None


def test_extension_state_defaults_to_running_instance(store: StateStore) -> None:
    state = ExtensionState(store, "coder", "ext")
    token = running.set(job_of(call_of("coder")))
    try:
        state.set("key", 1)
        assert (state.get("key"), state.get("key", instance_key="j")) == (1, None)
    finally:
        running.reset(token)


@pytest.mark.parametrize("current", [None, call_of("planner")])
def test_extension_state_without_instance_is_error(store: StateStore, current: ToolCall | None) -> None:
    token = running.set(None if current is None else job_of(current))
    try:
        with pytest.raises(RuntimeError, match="name the instance_key"):
            ExtensionState(store, "coder", "ext").get("key")
    finally:
        running.reset(token)


def test_in_async_code_both_are_coroutines(store: StateStore) -> None:
    state = ExtensionState(store, "coder", "ext")

    async def count() -> Any:
        take_default_threads_away()
        await state.set("key", 1, instance_key="i")
        return await state.get("key", instance_key="i")

    assert asyncio.run(count()) == 1


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), "\ud800"])
def test_only_json_is_kept(store: StateStore, value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        ExtensionState(store, "coder", "ext").set("key", value, instance_key="i")


def test_value_too_large_is_refused(store: StateStore) -> None:
    with pytest.raises(ValueError, match="is the most"):
        ExtensionState(store, "coder", "ext").set("key", "x" * 1_048_576, instance_key="i")


def test_every_use_renews_time_that_it_is_kept() -> None:
    with fakeredis.FakeRedis() as redis:
        state = ExtensionState(RedisState(redis, Settings.load()), "coder", "ext")
        state.set("key", 1, instance_key="i")
        [name] = redis.keys("goondan:extension:*")
        redis.expire(name, 10)

        state.get("key", instance_key="i")

        assert redis.ttl(name) > TTL_SECONDS - 60


def test_extension_state_without_redis_is_error() -> None:
    server = fakeredis.FakeServer()
    server.connected = False
    with fakeredis.FakeRedis(server=server) as redis, pytest.raises(BrokerUnreachableError):
        ExtensionState(RedisState(redis, Settings.load()), "coder", "ext").get("key", instance_key="i")

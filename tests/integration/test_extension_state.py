"""The state of extensions while Redis is away."""

import pytest

from broker_config import connections
from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis
from broker_config.settings import Settings
from goondan_tasks.contract.errors import BrokerUnreachableError
from workers.extensions.state import ExtensionState, RedisState

PAUSES = 4


def test_each_state_operation_waits_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) % PAUSES == 0:
            server.launch()

    monkeypatch.setattr(connections, "sleep", pause)
    with EmbeddedRedis() as server, connect(server.url) as redis:
        state = ExtensionState(RedisState(redis, Settings.load()), "coder", "ext")

        def outlast(operation: str, *given: object) -> object:
            server.process.terminate()
            server.process.wait(30)
            return getattr(state, operation)(*given, instance_key="i")

        assert outlast("set", "key", 1) is None
        assert outlast("get", "key") == 1
        assert outlast("keys") == ["key"]
    assert len(pauses) == 3 * PAUSES


def test_refusal_that_passes_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis() as server, connect(server.url) as redis, connect(server.url) as operator:
        operator.replicaof("127.0.0.1", 9)
        monkeypatch.setattr(connections, "sleep", lambda _: operator.replicaof("NO", "ONE"))
        state = ExtensionState(RedisState(redis, Settings.load()), "coder", "ext")
        state.set("a", 1, instance_key="i")
        assert state.get("a", instance_key="i") == 1


def test_refusal_that_stays_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()
    monkeypatch.setattr(connections, "sleep", pauses.append)
    with EmbeddedRedis() as server, connect(server.url) as redis:
        redis.acl_setuser("default", commands=["-hset"])
        with pytest.raises(BrokerUnreachableError, match="no permissions"):
            ExtensionState(RedisState(redis, Settings.load()), "coder", "ext").set("a", 1, instance_key="i")
    assert pauses == []

"""Commands that meet damaged rows of the tables of agents, workers and queues in Redis."""

from collections.abc import Callable, Iterator

import fakeredis
import pytest
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.client import connection
from goondan_tasks.fleet.agent_registry import AgentRecord, AgentRegistry, ShutdownRequests
from goondan_tasks.fleet.call_counts import CallCounts, CountStore
from tests.unit.goondan_tasks.cli.fake_client import worker
from tests.unit.goondan_tasks.cli.invoke import goondan

KEYS = Keys()
TOOL = {"name": "a__b", "description": "", "parameters": {}, "source": {"type": "config", "name": "a"}}
CODER = AgentRecord(name="coder", swarm="default", workspace="shop", catalog=(TOOL,))


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """Announce the agent coder and its worker."""
    server = fakeredis.FakeServer()
    monkeypatch.setattr(connection, "connect", lambda url, **_: fakeredis.FakeRedis(server=server))
    with fakeredis.FakeRedis(server=server) as redis:
        registry = AgentRegistry(redis, KEYS)
        registry.publish_agents([CODER], served=["coder"])
        registry.publish_worker(worker(), 60)
        yield redis


def damage_agents(redis: Redis) -> None:
    good = CODER.to_wire()
    rows = {
        b"no-json": b"{",
        b"no-object": b"[]",
        b"\xff": b"\xff",
        b"field": serializer.encode({**good, "name": "field", "catalog": 7}),
        b"tool": serializer.encode({**good, "name": "tool", "catalog": [{"name": 1}]}),
        b"other-name": serializer.encode({**good, "name": "planner"}),
    }
    for name, row in rows.items():
        redis.hset(KEYS.agents, name, row)


def damage_workers(redis: Redis) -> None:
    for row, value in ((b"w\xff", b""), (b"w2", b"{}"), (b"w3", b"no JSON")):
        redis.zadd(KEYS.workers, {row: 9e9})
        redis.set(KEYS.worker(row.decode(errors="replace")), value)


def damage_queues(redis: Redis) -> None:
    redis.hset(KEYS.late_answers, "coder", "many")
    redis.set(KEYS.mailboxes("coder"), "text")
    redis.set(KEYS.waiting("coder"), "text")
    redis.lpush("agent.coder", b"no message")


COMMANDS = (
    "queues",
    "agents",
    "calls",
    "traces",
    "catalog coder",
    "shutdown --agent coder",
    "approvals list",
)


@pytest.mark.parametrize("damage", [damage_agents, damage_workers, damage_queues])
@pytest.mark.parametrize("command", COMMANDS)
def test_damaged_row_leaves_other_rows_as_they_are(
    redis: Redis, damage: Callable[[Redis], None], command: str
) -> None:
    before = goondan(*command.split())
    damage(redis)

    after = goondan(*command.split())

    assert (before.exit_code, after.exit_code) == (0, 0)
    assert after.stdout.count("coder") == before.stdout.count("coder")
    assert "planner" not in after.stdout


def test_damaged_row_is_reported_once_by_name(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    redis.hset(KEYS.agents, "clerk-that-is-damaged", "{")
    registry = AgentRegistry(redis, KEYS)

    assert list(registry.agents()) == list(registry.agents()) == ["coder"]

    [line] = caplog.records
    assert line.message.startswith("agent 'clerk-that-is-damaged' in Redis cannot be read")


def test_damaged_requests_and_counts_stop_or_hide_nothing(redis: Redis) -> None:
    redis.set(KEYS.shutdown("agent:coder"), "{")
    counts, store = CallCounts(lambda agent, tool: True), CountStore(redis, KEYS)
    store.publish(counts, "w1", "p1", usage_days=90)
    redis.zadd(KEYS.counted, {"p2": 9e9})
    redis.set(KEYS.counts("p2"), "{}")

    assert ShutdownRequests(redis, KEYS).agents_to_stop("w1", ["coder"], since=0) == {}
    assert [one.process for one in store.workers()] == ["p1"]

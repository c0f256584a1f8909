"""The agents and workers of a namespace, and requests that workers drain."""

from collections.abc import Iterator

import fakeredis
import pytest
from pydantic import ValidationError
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.fleet.agent_registry import (
    AGENTS_TTL_SECONDS,
    AgentRecord,
    AgentRegistry,
    ShutdownRequest,
    ShutdownRequests,
    WorkerRecord,
)
from tests.waiting import wait_until


def worker(*agents: str) -> WorkerRecord:
    return WorkerRecord(
        name="w1", pid=1, host="h", agents=agents, concurrency=1, root_id="r", started_at="now"
    )


def test_live_worker_keeps_agents_known() -> None:
    with fakeredis.FakeRedis() as redis:
        keys = Keys("goondan")
        agent_registry = AgentRegistry(redis, keys)
        agent_registry.publish_agents([AgentRecord(name="coder", swarm="default", workspace="shop")])
        redis.expire(keys.agents, 5)

        agent_registry.publish_worker(worker("coder"), 20)

        assert redis.ttl(keys.agents) > AGENTS_TTL_SECONDS - 5


def agent(name: str, *tools: str) -> AgentRecord:
    items = tuple({"name": tool, "source": {"type": "extension", "name": "x"}} for tool in tools)
    return AgentRecord(name=name, swarm="default", workspace="shop", catalog=items)


def test_only_serving_worker_replaces_agents_dynamic_tools() -> None:
    with fakeredis.FakeRedis() as redis:
        agent_registry = AgentRegistry(redis, Keys("goondan"))
        agent_registry.publish_agents([agent("coder", "a__b"), agent("planner")], served=["coder"])
        agent_registry.publish_agents([agent("coder"), agent("planner", "c__d")], served=["planner"])
        kept = {name: [item["name"] for item in one.catalog] for name, one in agent_registry.agents().items()}
        agent_registry.publish_agents([agent("coder")], served=["coder"])

        assert kept == {"coder": ["a__b"], "planner": ["c__d"]}
        assert agent_registry.agents()["coder"].catalog == ()


def test_agent_leaving_swarm_is_forgotten_unless_served() -> None:
    with fakeredis.FakeRedis() as redis:
        agent_registry = AgentRegistry(redis, Keys("goondan"))
        others = [
            agent("elsewhere").model_copy(update=system) for system in ({"workspace": "x"}, {"swarm": "y"})
        ]
        agent_registry.publish_agents([agent("coder"), agent("gone"), agent("newer")])
        agent_registry.publish_agents([others[0].model_copy(update={"name": "beside"}), others[0]])
        agent_registry.publish_agents([others[1].model_copy(update={"name": "beneath"})])
        agent_registry.publish_worker(worker("newer"), 20)
        agent_registry.publish_agents([agent("coder")], served=["coder"])

        assert list(agent_registry.agents()) == ["beneath", "beside", "coder", "elsewhere", "newer"]


def test_same_named_workers_have_own_rows_removed_separately() -> None:
    with fakeredis.FakeRedis() as redis:
        agent_registry = AgentRegistry(redis, Keys("goondan"))
        first, second = (worker("coder").model_copy(update={"id": one}) for one in ("a", "b"))
        agent_registry.publish_worker(first, 20)
        agent_registry.publish_worker(second, 20)
        both = [one.id for one in agent_registry.workers()]
        agent_registry.remove_worker(first.row)

        assert sorted(both) == ["a", "b"]
        assert agent_registry.workers() == [second]


def test_joining_worker_learns_others_but_is_hidden_until_published() -> None:
    with fakeredis.FakeRedis() as redis:
        agent_registry = AgentRegistry(redis, Keys("goondan"))
        first, second, third = (worker("coder").model_copy(update={"id": one}) for one in ("c", "b", "a"))
        agent_registry.publish_worker(first, 20)
        told = [[one.id for one in agent_registry.join(asking, 20)] for asking in (second, third, second)]
        shown = agent_registry.workers()
        agent_registry.publish_worker(second, 20)
        agent_registry.remove_worker(third.row)
        agent_registry.join(second, 20)  # it has lost its connection

        assert told == [["c"], ["b", "c"], ["a", "c"]]
        assert shown == [first]
        assert sorted(one.id for one in agent_registry.workers()) == ["b", "c"]
        assert 0 < redis.ttl(agent_registry._keys.worker(second.row)) <= 20


def test_joining_worker_hears_of_no_expired_worker() -> None:
    with fakeredis.FakeRedis() as redis:
        agent_registry = AgentRegistry(redis, Keys("goondan"))
        agent_registry.publish_worker(worker("coder").model_copy(update={"id": "dead"}), 20)
        redis.delete(agent_registry._keys.worker("dead"))

        assert agent_registry.join(worker("coder"), 20) == []


@pytest.mark.parametrize(("holds", "shown"), [(["coder"], "shop"), ([], "other")])
def test_agent_served_from_elsewhere_keeps_its_description(holds: list[str], shown: str) -> None:
    with fakeredis.FakeRedis() as redis:
        agent_registry = AgentRegistry(redis, Keys("goondan"))
        agent_registry.publish_agents([agent("coder")], served=["coder"])
        agent_registry.publish_worker(worker(*holds).model_copy(update={"workspace": "shop"}), 20)
        others = [agent(name).model_copy(update={"workspace": "other"}) for name in ("coder", "planner")]
        agent_registry.publish_agents(others, served=["planner"])

        assert {name: one.workspace for name, one in agent_registry.agents().items()} == {
            "coder": shown,
            "planner": "other",
        }


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def requests(redis: Redis) -> ShutdownRequests:
    return ShutdownRequests(redis, Keys())


def test_no_shutdown_is_requested_at_first(requests: ShutdownRequests) -> None:
    assert requests.agents_to_stop("w", ["a", "b"], 0) == {}


def test_request_for_agent_is_about_that_agent(requests: ShutdownRequests) -> None:
    requests.ask(ShutdownRequest(agent="a", reason="new version"))

    assert requests.agents_to_stop("w", ["a", "b"], 0) == {"a": "new version"}
    assert requests.agents_to_stop("w", ["b"], 0) == {}


def test_workers_shutdown_request_concerns_all_its_agents(requests: ShutdownRequests) -> None:
    requests.ask(ShutdownRequest(worker="w", reason="moved"))

    assert requests.agents_to_stop("w", ["a", "b"], 0) == {"a": "moved", "b": "moved"}
    assert requests.agents_to_stop("other", ["a", "b"], 0) == {}


def test_worker_that_begins_later_is_not_meant(requests: ShutdownRequests) -> None:
    before = requests.now()
    wait_until(lambda: requests.now() > before)
    requests.ask(ShutdownRequest(agent="a"))

    assert requests.agents_to_stop("w", ["a"], before) == {"a": ""}
    assert requests.agents_to_stop("w", ["a"], requests.now()) == {}


def test_request_does_not_stand_for_ever(requests: ShutdownRequests, redis: Redis) -> None:
    requests.ask(ShutdownRequest(agent="a"))

    assert redis.ttl(Keys().shutdown("agent:a")) > 0


@pytest.mark.parametrize("about", [{}, {"agent": "a", "worker": "w"}, {"agent": ""}, {"agent": 3}])
def test_request_is_about_one_agent_or_one_worker(about: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ShutdownRequest.from_wire(about)

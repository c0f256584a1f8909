"""The agents and workers of a namespace."""

import fakeredis

from broker_config.keys import Keys
from goondan_tasks.roster import AGENTS_TTL_SECONDS, AgentRecord, Roster, WorkerRecord


def test_a_live_worker_keeps_the_agents_known() -> None:
    worker = WorkerRecord(
        name="w1", pid=1, host="h", agents=("coder",), concurrency=1, root_id="r", started_at="now"
    )
    with fakeredis.FakeRedis() as redis:
        keys = Keys("goondan")
        roster = Roster(redis, keys)
        roster.publish_agents([AgentRecord(name="coder", swarm="default", workspace="shop")])
        redis.expire(keys.agents, 5)

        roster.publish_worker(worker, 20)

        assert redis.ttl(keys.agents) > AGENTS_TTL_SECONDS - 5


def agent(name: str, *tools: str) -> AgentRecord:
    items = tuple({"name": tool, "source": {"type": "extension", "name": "x"}} for tool in tools)
    return AgentRecord(name=name, swarm="default", workspace="shop", catalog=items)


def test_who_does_not_serve_an_agent_leaves_its_dynamic_tools_and_who_does_replaces_them() -> None:
    with fakeredis.FakeRedis() as redis:
        roster = Roster(redis, Keys("goondan"))
        roster.publish_agents([agent("coder", "a__b"), agent("planner")], served=["coder"])
        roster.publish_agents([agent("coder"), agent("planner", "c__d")], served=["planner"])
        kept = {name: [item["name"] for item in one.catalog] for name, one in roster.agents().items()}
        roster.publish_agents([agent("coder")], served=["coder"])

        assert kept == {"coder": ["a__b"], "planner": ["c__d"]}
        assert roster.agents()["coder"].catalog == ()

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

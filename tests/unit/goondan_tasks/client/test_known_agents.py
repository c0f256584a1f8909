"""The agents that can be called."""

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.client.known_agents import KnownAgents
from goondan_tasks.errors import AgentNotFoundError
from goondan_tasks.roster import AgentRecord, Roster


@pytest.mark.parametrize(
    ("name", "hint"), [("CODER", "did you mean 'coder'"), ("zzz", "Known agents: coder")]
)
def test_an_unknown_agent_is_refused_with_what_was_meant_or_what_there_is(name: str, hint: str) -> None:
    with fakeredis.FakeRedis() as redis:
        coder = AgentRecord(name="coder", swarm="default", workspace="shop")
        known = KnownAgents(Roster(redis, Keys("goondan")), [coder])
        with pytest.raises(AgentNotFoundError, match=hint):
            known.require(name)

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


def record(name: str, *tools: tuple[str, str]) -> AgentRecord:
    catalog = tuple({"name": tool, "source": {"type": type_, "name": "x"}} for tool, type_ in tools)
    return AgentRecord(name=name, swarm="default", workspace="shop", catalog=catalog)


def names(agent: AgentRecord) -> list[str]:
    return [item["name"] for item in agent.catalog]


def test_of_an_agent_of_the_bundle_the_workers_dynamic_tools_are_known_and_only_those() -> None:
    with fakeredis.FakeRedis() as redis:
        roster = Roster(redis, Keys("goondan"))
        old = record("coder", ("old__tool", "config"), ("a__b", "extension"), ("git__log", "mcp"))
        roster.publish_agents([old], served=["coder"])
        known = KnownAgents(roster, [record("coder", ("bash__exec", "config"), ("a__b", "config"))])

        assert names(known.current("coder")) == ["bash__exec", "a__b", "git__log"]

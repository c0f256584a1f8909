"""What a producer knows: the agents that can be called, and the active revision that its calls name."""

from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.client.known_agents import GOOD_SECONDS, NONE_SECONDS, ActiveRefs, KnownAgents, OwnAgents
from goondan_tasks.contract.calls import draft_call, identity_of
from goondan_tasks.contract.errors import AgentNotFoundError
from goondan_tasks.fleet.agent_registry import AgentRecord, AgentRegistry
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange

EXAMPLE = Path(__file__).parents[4] / "examples" / "coding-swarm"


@pytest.mark.parametrize(
    ("name", "hint"), [("CODER", "did you mean 'coder'"), ("zzz", "Known agents: coder")]
)
def test_unknown_agent_is_refused_suggesting_known_names(name: str, hint: str) -> None:
    with fakeredis.FakeRedis() as redis:
        coder = AgentRecord(name="coder", swarm="default", workspace="shop")
        known = KnownAgents(AgentRegistry(redis, Keys("goondan")), lambda: OwnAgents({"coder": coder}))
        with pytest.raises(AgentNotFoundError, match=hint):
            known.require(name)


def record(name: str, *tools: tuple[str, str]) -> AgentRecord:
    catalog = tuple({"name": tool, "source": {"type": type_, "name": "x"}} for tool, type_ in tools)
    return AgentRecord(name=name, swarm="default", workspace="shop", catalog=catalog)


def names(agent: AgentRecord) -> list[str]:
    return [item["name"] for item in agent.catalog]


def test_bundles_agent_gains_only_workers_dynamic_tools() -> None:
    with fakeredis.FakeRedis() as redis:
        agent_registry = AgentRegistry(redis, Keys("goondan"))
        old = record("coder", ("old__tool", "config"), ("a__b", "extension"), ("git__log", "mcp"))
        agent_registry.publish_agents([old], served=["coder"])
        declared = record("coder", ("bash__exec", "config"), ("a__b", "config"))
        known = KnownAgents(agent_registry, lambda: OwnAgents({"coder": declared}))

        assert names(known.current("coder")) == ["bash__exec", "a__b", "git__log"]


def test_workspace_by_bundles_folder_gives_way_to_workers() -> None:
    with fakeredis.FakeRedis() as redis:
        agent_registry = AgentRegistry(redis, Keys("goondan"))
        agent_registry.publish_agents([record("coder")], served=["coder"])
        ours = {
            name: record(name).model_copy(update={"workspace": "desk-1"}) for name in ("coder", "planner")
        }
        by_folder = KnownAgents(agent_registry, lambda: OwnAgents(ours, is_of_folder=True))
        named = KnownAgents(agent_registry, lambda: OwnAgents(ours))

        assert [by_folder.require(name).workspace for name in ("coder", "planner")] == ["shop", "desk-1"]
        assert {agent.workspace for agent in named.all().values()} == {"desk-1"}


def test_bundle_is_loaded_once_at_first_need() -> None:
    loaded: list[OwnAgents] = []

    def load() -> OwnAgents:
        loaded.append(OwnAgents.load(EXAMPLE, Settings(), warn=pytest.fail))
        return loaded[-1]

    with fakeredis.FakeRedis() as redis:
        known = KnownAgents(AgentRegistry(redis, Keys()), load)
        assert not loaded
        assert [known.require(name).name for name in ("coder", "planner")] == ["coder", "planner"]
        assert sorted(known.all()) == ["coder", "planner", "reviewer"]
        assert len(loaded) == 1


class Producer:
    """A producer at a certain time."""

    def __init__(self, redis: fakeredis.FakeRedis) -> None:
        self.now = 100.0
        self.redis = redis
        self.record = ActiveRevision(redis, Keys(), "den")
        self.refs = ActiveRefs(redis, Keys(), lambda: self.now)

    def named(self, **fields: object) -> str | None:
        """Return what a call with these fields names."""
        wire = {"agentName": "lizard", "toolName": "skin__colour", **fields}
        return self.refs.named(draft_call(wire), "den").call.bundle_ref

    def switch(self, ref: str) -> None:
        """Make a revision active."""
        self.record.propose(RevisionChange(new_ref=ref, timestamp="2026-01-01T00:00:00.000Z"))
        self.record.activate(ref)


@pytest.fixture
def producer() -> Iterator[Producer]:
    with fakeredis.FakeRedis() as redis:
        yield Producer(redis)


def test_with_damaged_record_of_revisions_call_names_none(producer: Producer) -> None:
    producer.redis.rpush(Keys().revision("den"), "odd")
    assert producer.named() is None


def test_call_names_active_revision_at_most_moment_old(producer: Producer) -> None:
    producer.record.begin("r1")
    assert producer.named() == "r1"
    producer.switch("r2")
    assert producer.named() == "r1"
    producer.now += GOOD_SECONDS
    assert producer.named() == "r2"


def test_calls_name_no_unfollowed_revision_and_rarely_ask_redis(producer: Producer) -> None:
    assert producer.named() is None
    producer.record.begin("r1")
    producer.now += NONE_SECONDS - 1
    assert producer.named() is None
    producer.now += 1
    assert producer.named() == "r1"


@pytest.mark.parametrize(
    ("fields", "ref"),
    [
        ({"stepId": "s"}, None),
        ({"toolName": "goondan__step"}, None),
        ({"toolName": "goondan__read-output"}, None),
        ({"bundleRef": "r0"}, "r0"),
        ({"toolName": "goondan"}, "r1"),
    ],
)
def test_step_and_system_calls_get_no_revision(
    producer: Producer, fields: dict[str, object], ref: str | None
) -> None:
    producer.record.begin("r1")
    assert producer.named(**fields) == ref


def test_record_of_newer_version_is_left_to_workers(producer: Producer) -> None:
    producer.redis.set(Keys().revision("den"), b'{"v":99,"active":"r9"}')
    assert producer.named() is None


def test_call_that_names_revision_keeps_its_identity(producer: Producer) -> None:
    producer.record.begin("r1")
    draft = draft_call({"agentName": "lizard", "toolName": "skin__colour", "toolCallId": "c", "turnId": "t"})
    assert identity_of(producer.refs.named(draft, "den").call) == identity_of(draft.call)

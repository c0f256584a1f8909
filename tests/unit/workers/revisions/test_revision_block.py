"""The block that tells a model that the bundle has changed: once in each instance."""

from collections.abc import Iterator

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.history import StepRecord, StepStore
from goondan_tasks.revisions.active import CHANGED, ActiveRevision, RevisionChange
from workers.revisions.bundle_changes import revision_block


class Instances:
    """What is remembered of the Steps of one agent's instances."""

    def __init__(self, redis: fakeredis.FakeRedis) -> None:
        self.record = ActiveRevision(redis, Keys(), "den")
        self.store = StepStore(redis, Keys(), 60, remembers_revisions=True)

    def open(self, ref: str, instance: str = "i") -> list[dict[str, object]]:
        """Open a Step of a revision, and return the data of its blocks."""
        call = self.call(instance)
        blocks = revision_block(call, self.store, self.record, ref)
        names = {
            "agent_name": call.agent_name,
            "instance_key": instance,
            "turn_id": "t",
            "trace_id": "0" * 32,
        }
        record = StepRecord(id=f"{ref}-{instance}", index=0, catalog="c", bundle_ref=ref, **names)
        self.store.run(self.store.keeping(record, b"[]", message=None))
        assert all(block["type"] == CHANGED for block in blocks)
        return [block["data"] for block in blocks]

    def call(self, instance: str) -> ToolCall:
        return new_call("lizard", "goondan__step", {}, {"instance_key": instance})


@pytest.fixture
def instances() -> Iterator[Instances]:
    with fakeredis.FakeRedis() as redis:
        yield Instances(redis)


def test_only_first_step_after_change_has_block(instances: Instances) -> None:
    assert [len(instances.open(ref)) for ref in ("r1", "r1", "r2", "r2", "r1")] == [0, 0, 1, 0, 1]


def test_each_instance_gets_revision_block(instances: Instances) -> None:
    for name in ("i", "j"):
        instances.open("r1", name)
    assert [len(instances.open("r2", name)) for name in ("i", "j", "new")] == [1, 1, 0]


def test_revision_block_covers_changes_since_last_step(instances: Instances) -> None:
    summary = {"filesChanged": ["a"], "filesAdded": [], "filesDeleted": []}
    instances.open("r1")
    instances.record.begin("r2")
    instances.record.propose(
        RevisionChange(new_ref="r3", changeset_id="cs", summary=summary, timestamp="2026-01-01T00:00:00.000Z")
    )
    instances.record.activate("r3")
    [data] = instances.open("r3")
    assert (data["previousRef"], data["newRef"]) == ("r1", "r3")
    assert (data["changesetId"], data["summary"]) == ("cs", summary)

"""Steps and Turns in Redis."""

from collections.abc import Iterator
from time import monotonic

import fakeredis
import pytest

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.bundle.catalog import CatalogItem, ToolCatalog, ToolSource
from goondan_tasks.names import call_identity
from goondan_tasks.new_call import new_call
from goondan_tasks.steps.record import LeftTools, StepRecord, StepTool
from goondan_tasks.steps.store import StepStore, digest_of_catalog

KEYS = Keys()


@pytest.fixture
def redis() -> Iterator[fakeredis.FakeRedis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


def item(name: str) -> CatalogItem:
    return CatalogItem(name=name, source=ToolSource(type="config", name="tool"))


def keep(
    store: StepStore,
    index: int = 0,
    names: tuple[str, ...] = ("a__b",),
    registered: tuple[StepTool, ...] = (),
    unregistered: tuple[str, ...] = (),
) -> StepRecord:
    catalog = serializer.encode([item(name).to_wire() for name in names])
    record = StepRecord(
        id=call_identity("coder", "k", "t", f"step-{index}"),
        agent_name="coder",
        instance_key="k",
        turn_id="t",
        trace_id="0" * 32,
        index=index,
        catalog=digest_of_catalog(catalog),
        blocks=({"type": "custom.note"},),
    )
    left = LeftTools(registered=registered, unregistered=unregistered)
    store.keep(record, catalog, message={"role": "user"}, left=left)
    return record


def test_a_step_is_read_as_it_was_kept(redis: fakeredis.FakeRedis) -> None:
    record = keep(StepStore(redis, KEYS, 60), names=("a__b", "c__d"))
    store = StepStore(redis, KEYS, 60)
    kept = store.read(record.id)
    assert kept is not None
    assert kept.record == record
    assert kept.catalog == ToolCatalog((item("a__b"), item("c__d")))
    assert monotonic() < kept.until <= monotonic() + 60
    assert store.message(record.id) == {"role": "user"}


def test_steps_with_the_same_tools_share_one_catalog_and_everything_expires(
    redis: fakeredis.FakeRedis,
) -> None:
    store = StepStore(redis, KEYS, 60)
    keep(store, 0)
    keep(store, 1)
    keep(store, 2, names=("c__d",))
    names = [str(name, "utf-8") if isinstance(name, bytes) else name for name in redis.keys("*")]
    assert sum(name.startswith("goondan:catalog:") for name in names) == 2
    assert all(0 < redis.ttl(name) <= 60 for name in names)


@pytest.mark.parametrize(
    "step_id", ["", "step", "0" * 36, call_identity("coder", "k", "t", "step-9"), "x" * 100_000, "\ud800"]
)
def test_an_unknown_step_is_none(redis: fakeredis.FakeRedis, step_id: str) -> None:
    store = StepStore(redis, KEYS, 60)
    keep(store)
    assert store.read(step_id) is None


def test_a_step_without_its_catalog_has_expired(redis: fakeredis.FakeRedis) -> None:
    record = keep(StepStore(redis, KEYS, 60))
    redis.delete(KEYS.catalog(record.catalog))
    assert StepStore(redis, KEYS, 60).read(record.id) is None


def test_a_step_of_a_newer_version_is_refused_with_the_reason(redis: fakeredis.FakeRedis) -> None:
    store = StepStore(redis, KEYS, 60)
    record = keep(store)
    redis.hset(KEYS.step(record.id), "step", serializer.encode({**record.to_wire(), "v": 2}))
    with pytest.raises(ValueError, match="newer than 1"):
        store.read(record.id)


def test_what_a_step_has_registered_is_told_to_its_own_turn_only(redis: fakeredis.FakeRedis) -> None:
    store = StepStore(redis, KEYS, 60)
    tool = StepTool(item=item("late__tool"), step_id="first")
    record = keep(store, registered=(tool,), unregistered=("old__tool",))
    store.note_unregistered(record.id, ["older__tool", "old__tool"])
    own = new_call("coder", "goondan__step", {}, {"instance_key": "k", "turn_id": "t"})
    other = new_call("coder", "goondan__step", {}, {"instance_key": "other", "turn_id": "t"})
    left = LeftTools(registered=(tool,), unregistered=("old__tool", "older__tool"))
    assert store.left_by(record.id, own) == left
    assert store.left_by(record.id, other) == LeftTools()
    assert store.left_by("no step", own) == LeftTools()
    assert 0 < redis.ttl(KEYS.step(record.id)) <= 60


def test_what_a_step_has_registered_is_of_its_revision_only(redis: fakeredis.FakeRedis) -> None:
    store = StepStore(redis, KEYS, 60)
    record = keep(
        store, registered=(StepTool(item=item("late__tool"), step_id="first"),), unregistered=("old__tool",)
    )
    own = new_call("coder", "goondan__step", {}, {"instance_key": "k", "turn_id": "t"})
    assert len(store.left_by(record.id, own, bundle_ref=record.bundle_ref).registered) == 1
    assert store.left_by(record.id, own, bundle_ref="r2") == LeftTools()


def test_the_record_of_a_turn_has_its_steps_what_they_began_with_and_their_calls(
    redis: fakeredis.FakeRedis,
) -> None:
    store = StepStore(redis, KEYS, 60)
    first = keep(store, 0)
    store.note_calls(first, ["id-1", "id-2"])
    keep(store, 1)
    entries = store.turn("coder", "k", "t")
    assert [(entry.index, entry.message, entry.call_ids) for entry in entries] == [
        (0, {"role": "user"}, ()),
        (0, None, ("id-1", "id-2")),
        (1, {"role": "user"}, ()),
    ]
    assert store.turn("coder", "k", "another") == []

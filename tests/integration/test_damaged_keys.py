"""Another program has written a key that is no call's record: what that key is about fails, nothing else."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.changesets.changesets import redis_lock
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import OAuthStoreError, RecordDamagedError
from goondan_tasks.contract.names import call_identity
from goondan_tasks.history import StepRecord, StepStore, digest_of_catalog
from goondan_tasks.instances.table import InstanceDirectory, Instances
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import Limiter
from goondan_tasks.testing import LocalStack
from tests.unit.goondan_tasks.oauth.records import APP, SUBJECT, grant
from tests.unit.goondan_tasks.oauth.stores import RedisVault
from tests.waiting import wait_until
from workers.extensions.state import RedisState, StateOwner
from workers.thinking.model_calls import ModelTool
from workers.turns.steps import patiently

DAMAGED_RECORDS_BUNDLE = Path(__file__).parent.parent / "bundles" / "damaged-records"
PATIENCE = 60
KEYS = Keys()
CALL = new_call("coder", "bash__exec", {}, {"instance_key": "k", "turn_id": "t"})
OWNER, OTHER_OWNER = StateOwner("coder", "ext", "i"), StateOwner("coder", "ext", "j")
CATALOG = b"[]"
STEP = StepRecord(
    id=call_identity("coder", "k", "t", "step-1"),
    agent_name="coder",
    instance_key="k",
    turn_id="t",
    trace_id="0" * 32,
    index=0,
    catalog=digest_of_catalog(CATALOG),
    bundle_ref="r1",
)
STEP_KEY, TURN_KEY = KEYS.step(STEP.id), KEYS.turn("coder", "k", "t")
CATALOG_KEY = KEYS.catalog(STEP.catalog)

Ask = Callable[[Redis], object]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def redis(server: EmbeddedRedis) -> Iterator[Redis]:
    with connect(server.url) as redis:
        redis.flushall()
        yield redis


def damage(redis: Redis, key: str) -> None:
    """Replace a key by one of a type that it never has."""
    redis.unlink(key)
    redis.xadd(key, {"another": "program"})


def steps(redis: Redis) -> StepStore:
    return StepStore(redis, KEYS, 600, remembers_revisions=True)


def keep_step(redis: Redis) -> bool:
    store = steps(redis)
    return store.run(store.keeping(STEP, CATALOG, message={"role": "user"}))


def instances(redis: Redis) -> Instances:
    return Instances(redis, KEYS)


def state(redis: Redis) -> RedisState:
    return RedisState(redis, Settings())


def instance_key(name: str) -> str:
    return KEYS.instance(str(InstanceDirectory.of("ws", name)))


def open_instance(redis: Redis, name: str) -> object:
    return instances(redis).open("coder", name, workspace="ws", root_id="root")


def spawn(redis: Redis, name: str, cwd: str | None = None) -> object:
    return instances(redis).spawn("coder", name, workspace="ws", owner=("planner", "p"), cwd=cwd)


FAILING: dict[str, tuple[str, Ask]] = {
    "a Step is kept": (STEP_KEY, keep_step),
    "a Step is read": (STEP_KEY, lambda redis: steps(redis).read(STEP.id)),
    "a Step's message": (STEP_KEY, lambda redis: steps(redis).message(STEP.id)),
    "a Step's tools": (STEP_KEY, lambda redis: steps(redis).left_by(STEP.id, CALL, bundle_ref="r1")),
    "tools that went": (STEP_KEY, lambda redis: steps(redis).note_unregistered(STEP.id, ["a__b"])),
    "a Turn is read": (TURN_KEY, lambda redis: steps(redis).turn("coder", "k", "t")),
    "a Turn's history": (TURN_KEY, lambda redis: steps(redis).history(CALL)),
    "a catalog": (CATALOG_KEY, lambda redis: steps(redis).read(STEP.id)),
    "state is read": (KEYS.extension("coder", "ext", "i"), lambda redis: state(redis).read(OWNER, "a")),
    "state is set": (KEYS.extension("coder", "ext", "i"), lambda redis: state(redis).write(OWNER, "a", b"1")),
    "state is listed": (KEYS.extension("coder", "ext", "i"), lambda redis: state(redis).keys(OWNER)),
    "an instance opens": (instance_key("k"), lambda redis: open_instance(redis, "k")),
    "a look": (instance_key("k"), lambda redis: instances(redis).look("coder", "k", workspace="ws")),
    "a spawn": (instance_key("k"), lambda redis: spawn(redis, "k")),
    "a spawn into": (instance_key("host"), lambda redis: spawn(redis, "k", "host/workspace")),
}


@pytest.mark.parametrize("what", FAILING)
def test_operation_needing_damaged_key_names_key_at_once(redis: Redis, what: str) -> None:
    key, ask = FAILING[what]
    keep_step(redis)
    damage(redis, key)
    with pytest.raises(RecordDamagedError, match="WRONGTYPE") as raised, broker_errors(""):
        patiently(lambda: ask(redis))
    assert repr(key) in raised.value.message
    assert raised.value.code == "E_RECORD_DAMAGED"


def test_damaged_turn_record_does_not_block_steps(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    damage(redis, TURN_KEY)
    keep_step(redis)
    store = steps(redis)
    store.run(store.noting(STEP, ["id-1"]))
    assert store.message(STEP.id) == {"role": "user"}
    assert TURN_KEY in caplog.text


def test_damaged_note_of_revision_counts_as_absent(redis: Redis) -> None:
    damage(redis, KEYS.step_revision("coder", "k"))
    assert steps(redis).last_revision("coder", "k") is None
    keep_step(redis)
    assert steps(redis).last_revision("coder", "k") == "r1"


def test_damaged_state_or_instance_leaves_others_alone(redis: Redis) -> None:
    damage(redis, KEYS.extension("coder", "ext", "i"))
    damage(redis, instance_key("k"))
    state(redis).write(OTHER_OWNER, "a", b"1")
    assert state(redis).read(OTHER_OWNER, "a") == b"1"
    open_instance(redis, "other")
    assert [str(record.directory) for record in instances(redis).records()] == ["ws/other"]


def test_instances_open_and_are_held_despite_damaged_list(redis: Redis) -> None:
    damage(redis, KEYS.instances)
    open_instance(redis, "k")
    spawn(redis, "spawned")
    directory = InstanceDirectory.of("ws", "k")
    assert [hold.word for hold in instances(redis).hold([directory], "token", 1.0)] == ["held"]
    instances(redis).touch([directory])


@pytest.mark.parametrize("key", [KEYS.limit("max:a"), KEYS.holders("max:a"), KEYS.wait_queue("max:a")])
def test_damaged_limit_numbers_are_omitted_from_state(redis: Redis, key: str) -> None:
    damage(redis, key)
    found = Limiter(Ledger(redis, Settings())).state("max:a")
    assert (found.waiting, found.most, found.period, found.took) == (0, 1, 0, 0)


def test_limit_with_text_numbers_says_retry_time(redis: Redis) -> None:
    redis.hset(KEYS.limit("max:a"), mapping={"most": "many", "period": "-", "took": "long"})
    found = Limiter(Ledger(redis, Settings())).state("max:a")
    assert (found.most, found.period, found.took) == (1, 0, 0)


def test_damaged_model_tokens_are_left_unchanged(redis: Redis) -> None:
    spec = SimpleNamespace(tokens_per_minute=20)
    provider: Any = SimpleNamespace(resource=SimpleNamespace(name="small", spec=spec))
    tool, key = ModelTool(provider, redis, KEYS), KEYS.tokens("small")
    damage(redis, key)
    tool._add_tokens(5)
    assert redis.type(key) != b"hash"


@pytest.mark.parametrize("what", ["type", "generation"])
def test_damaged_grant_error_says_how_to_revoke(redis: Redis, what: str) -> None:
    vault = RedisVault(lambda: redis)
    store, key = vault.open(), f"spec:oauth:grant:{grant().name}"
    store.replace_grant(grant(), generation=0)
    if what == "type":
        damage(redis, key)
    else:
        redis.hset(key, "generation", "first")
    with pytest.raises(OAuthStoreError) as raised:
        store.grant(APP, SUBJECT)
    assert f"goondan oauth revoke {grant().name}" in str(raised.value.suggestion)
    assert store.forget(grant().name)
    assert store.grant(APP, SUBJECT) is None


def test_overwritten_commit_lock_is_named(redis: Redis) -> None:
    damage(redis, KEYS.commit_lock("ws"))
    with (
        pytest.raises(RecordDamagedError, match="commit-lock:ws"),
        redis_lock(redis, KEYS.commit_lock("ws"), 0),
    ):
        raise AssertionError("it is not held")


def test_only_call_in_damaged_instance_fails_at_once() -> None:
    with LocalStack(DAMAGED_RECORDS_BUNDLE) as stack, connect(stack.redis_url) as redis:
        first = stack.client.call("nurse", "ward__echo", {}, instance_key="well", timeout=PATIENCE)
        [directory] = redis.keys("goondan:instance:*")
        damage(redis, directory.decode().replace("/well", "/ill"))
        ill = stack.client.call("nurse", "ward__echo", {}, instance_key="ill", timeout=PATIENCE)
        again = stack.client.call("nurse", "ward__echo", {}, instance_key="new", timeout=PATIENCE)
        assert ill.error is not None
        assert ill.error.code == "E_RECORD_DAMAGED"
        assert "/ill" in ill.error.message
        assert [first.status, again.status] == ["ok", "ok"]


def test_workers_keep_sweeping_despite_damaged_shared_table() -> None:
    with (
        LocalStack(DAMAGED_RECORDS_BUNDLE, environment={"GOONDAN_LEASE_SECONDS": "3"}) as stack,
        connect(stack.redis_url) as redis,
    ):
        for key in (KEYS.agents, KEYS.workers, KEYS.counted, KEYS.limits, KEYS.instances):
            damage(redis, key)
            redis.unlink(KEYS.swept)
            wait_until(lambda: redis.exists(KEYS.swept), show=partial(str, key))
            assert stack.client.call("nurse", "ward__echo", {}, timeout=PATIENCE).status == "ok"
        with pytest.raises(RecordDamagedError, match=KEYS.workers):
            stack.client.workers()
        for key in (KEYS.agents, KEYS.workers):
            redis.unlink(key)
        wait_until(stack.client.workers)
        assert stack.workers[0].poll() is None

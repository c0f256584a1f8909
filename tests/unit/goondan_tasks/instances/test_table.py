"""The table of instances, on a Redis in memory."""

import threading
from collections.abc import Iterator

import fakeredis
import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.contract.table_rows import report_row
from goondan_tasks.instances.table import (
    HOLD_SECONDS,
    INSTANCE_TTL_SECONDS,
    InstanceDirectory,
    Instances,
    Opened,
    Spawned,
)

ODD_KEYS = ["telegram:1/..", "한글 🙂", "x" * 300, "a@b", "a\nb", " ", "*[?", "%"]
OWNER = ("planner", "p")
TOKEN, OTHER = "0" * 32, "1" * 32


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def table(redis: Redis) -> Instances:
    return Instances(redis, Keys())


def spawn(table: Instances, key: str = "k", cwd: str | None = None, request: str | None = None) -> Spawned:
    return table.spawn("coder", key, workspace="shop", owner=OWNER, cwd=cwd, request=request)


def open_it(table: Instances, key: str = "k", agent: str = "coder") -> Opened:
    return table.open(agent, key, workspace="shop", root_id="root")


def run_out(redis: Redis, directory: InstanceDirectory) -> None:
    """Let the hold on a directory run out, as time does."""
    key = Keys().instance(str(directory))
    token = redis.hget(key, "retiring")
    assert token is not None
    redis.hset(key, "retiring", f"{token.decode().split()[0]} 1")  # type: ignore[union-attr]


@pytest.mark.requirement("runtime.spawn", "runtime.spawn.result")
def test_first_spawn_makes_instance_and_second_reuses_it(table: Instances) -> None:
    assert spawn(table, cwd="other/workspace") == Spawned(is_new=True, cwd="other/workspace")
    assert spawn(table, cwd="elsewhere") == Spawned(is_new=False, cwd="other/workspace")


@pytest.mark.requirement("runtime.spawn.reuse")
def test_spawn_takes_merely_used_instance_unchanged(table: Instances) -> None:
    open_it(table)
    assert spawn(table, cwd="other") == Spawned(is_new=False, cwd=None)
    [record] = table.records()
    [info] = record.infos()
    assert (info.owner_agent, info.owner_instance_key) == ("client", info.instance_key)


def test_same_request_gets_same_answer(table: Instances) -> None:
    assert [spawn(table, request="r").is_new for _ in range(3)] == [True, True, True]
    assert not spawn(table, request="s").is_new


def test_one_of_many_concurrent_spawns_makes_instance(table: Instances) -> None:
    told: list[bool] = []
    threads = [threading.Thread(target=lambda: told.append(spawn(table).is_new)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [False] * 49 + [True]


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_instance_keys_are_kept_unchanged(table: Instances, key: str) -> None:
    spawn(table, key)
    open_it(table, key, "reviewer")
    [record] = table.records(table.directories_of(key))
    assert (record.key, record.agents) == (key, ("coder", "reviewer"))
    assert [info.instance_key for info in record.infos()] == [key, key]


def test_instance_item_shows_owner_time_and_directory(table: Instances) -> None:
    spawn(table, cwd="other/workspace")
    before = table.now()
    [record] = table.records()
    [info] = record.infos()
    assert info.to_wire() == {
        "target": "coder",
        "instanceKey": "k",
        "ownerAgent": "planner",
        "ownerInstanceKey": "p",
        "createdAt": info.created_at,
        "lastUsedAt": info.created_at,
        "cwd": "other/workspace",
        "workspace": "shop",
    }
    assert 0 <= before - record.last_used_at < 10_000


def test_every_key_in_redis_runs_out(table: Instances, redis: Redis) -> None:
    spawn(table, cwd="other/workspace")
    open_it(table, "k2")
    table.hold([InstanceDirectory("shop", "unlisted")], TOKEN)
    ttls = [redis.ttl(key) for key in redis.scan_iter()]
    assert len(ttls) == 5
    assert all(0 < ttl <= INSTANCE_TTL_SECONDS for ttl in ttls)


def test_instance_unused_past_its_time_is_off_list(table: Instances, redis: Redis) -> None:
    redis.zadd(Keys().instances, {"shop/old": table.now() - INSTANCE_TTL_SECONDS * 1000 - 1})
    open_it(table)
    assert [record.key for record in table.records()] == ["k"]


def test_directory_held_by_deletion_refuses_open_and_spawn(table: Instances) -> None:
    directory = InstanceDirectory.of("shop", "k")
    assert table.hold([directory], TOKEN)[0].word == "held"
    assert 0 < open_it(table).held_seconds <= HOLD_SECONDS
    assert spawn(table).held_seconds > 0
    assert spawn(table, "other", cwd="k/workspace").held_seconds > 0
    assert table.hold([directory], OTHER)[0].word == "busy"
    table.let_go([directory], TOKEN)
    assert open_it(table) == Opened()


def test_repeated_deletion_gets_same_answer(table: Instances) -> None:
    open_it(table)
    [record] = table.records()
    assert [table.hold([record.directory], TOKEN)[0].word for _ in range(2)] == ["held", "held"]
    assert [table.forget(record, TOKEN) for _ in range(2)] == [True, True]
    assert list(table.records()) == []


def test_instance_used_meanwhile_is_not_held(table: Instances) -> None:
    before = table.now() - 1
    open_it(table)
    assert table.hold([InstanceDirectory.of("shop", "k")], TOKEN, before)[0].word == "used"
    assert table.hold([InstanceDirectory.of("shop", "k")], TOKEN, table.now())[0].word == "held"


def test_open_reports_half_done_deletion_without_hold(table: Instances, redis: Redis) -> None:
    open_it(table)
    [record] = table.records()
    table.hold([record.directory], TOKEN)
    run_out(redis, record.directory)
    assert open_it(table).aside == (TOKEN,)
    assert open_it(table).aside == (TOKEN,)
    assert not table.forget(record, TOKEN)
    table.settled(record.directory, TOKEN)
    assert open_it(table).aside == ()


def test_both_unfinished_deletions_of_directory_are_reported(table: Instances, redis: Redis) -> None:
    directory = InstanceDirectory.of("shop", "k")
    for token in (TOKEN, OTHER):
        table.hold([directory], token)
        run_out(redis, directory)
    assert open_it(table).aside == (TOKEN, OTHER)
    table.settled(directory, TOKEN)
    assert open_it(table).aside == (OTHER,)


def test_any_agent_but_last_may_leave_instance(table: Instances) -> None:
    for agent in ("coder", "reviewer"):
        open_it(table, agent=agent)
    [record] = table.records()
    coder, reviewer = record.parts
    assert not table.leave(record.directory, coder, TOKEN)
    table.hold([record.directory], OTHER)
    assert not table.leave(record.directory, coder, TOKEN)
    assert table.leave(record.directory, coder, OTHER)
    assert table.leave(record.directory, coder, OTHER)
    table.hold([record.directory], TOKEN)
    assert not table.leave(record.directory, coder, TOKEN)
    assert not table.leave(record.directory, reviewer, TOKEN)
    assert [record.agents for record in table.records()] == [("reviewer",)]


def test_host_knows_guest_until_guest_is_forgotten(table: Instances) -> None:
    open_it(table, "host")
    spawn(table, "guest", cwd="host/workspace/part")
    host, guest = InstanceDirectory.of("shop", "host"), InstanceDirectory.of("shop", "guest")
    [record] = table.records([host])
    assert record.guests == ((guest, "coder"),)
    table.hold([guest], TOKEN)
    [leaving] = table.records([guest])
    assert table.forget(leaving, TOKEN)
    [record] = table.records([host])
    assert record.guests == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created:coder", "soon"),
        ("created:coder", "9" * 30),
        ("used:coder", "-1"),
        ("owner:coder", '["plan'),
        ("owner:coder", "5"),
        ("key", b"\xff"),
        ("guest:..@coder", ""),
    ],
)
def test_only_damaged_instance_is_omitted_and_its_key_logged(
    table: Instances, redis: Redis, field: str, value: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    report_row.cache_clear()
    open_it(table, "sound")
    open_it(table, "odd")
    key = Keys().instance(str(InstanceDirectory.of("shop", "odd")))
    redis.hset(key, field, value)

    assert [record.key for record in table.records()] == ["sound"]
    assert key in caplog.text


@pytest.mark.parametrize("member", [b"shop", b"shop/", b"shop/..", b"../shop", b"/a", b"a/b/c", b"\xff/a"])
def test_index_entry_naming_no_directory_is_omitted(table: Instances, redis: Redis, member: bytes) -> None:
    open_it(table)
    redis.zadd(Keys().instances, {member: 1})

    assert [record.key for record in table.records()] == ["k"]
    assert len(table.unused_since(table.now())) == 1

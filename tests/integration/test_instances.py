"""Instances across real workers: made once, where they work, deleted and collected."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from redis import Redis

from broker_config.connections import connect
from broker_config.keys import Keys
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.errors import BrokerUnreachableError, InstanceBusyError, InstanceNotFoundError
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.instances.table import InstanceDirectory, Instances
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan
from tests.waiting import wait_until

CALLS_BUNDLE = Path(__file__).parents[1] / "bundles" / "calls"
PATIENCE = 60
DAY_MS = 86_400_000

#: deletes an instance and is killed between two steps
DELETER = """
import os, signal, sys
from goondan_tasks.instances.table import Instances
from goondan_tasks.client import Client
Instances.forget = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Client.connect().delete_instance(sys.argv[1])
"""


@pytest.fixture
def redis(calls_stack: LocalStack) -> Iterator[Redis]:
    with connect(calls_stack.redis_url) as redis:
        yield redis


@pytest.fixture
def table(redis: Redis) -> Instances:
    return Instances(redis, Keys())


@pytest.fixture
def env(calls_stack: LocalStack) -> dict[str, str]:
    return environment(redis_url=calls_stack.redis_url, state_root=calls_stack.state_root)


def workdir_of(client: Client, key: str, agent: str = "smith") -> Path:
    output = client.call(agent, "echo__context", {}, instance_key=key, timeout=PATIENCE).output
    return Path(output["workdir"])


def age(redis: Redis, *keys: str) -> None:
    """Let instances be used last eight days ago."""
    seconds, _ = redis.time()
    moment = seconds * 1000 - 8 * DAY_MS
    redis.zadd(Keys().instances, {str(InstanceDirectory.of("calls", key)): moment for key in keys})


def known(client: Client) -> set[str]:
    return {info.instance_key for info in client.instances()}


def test_fifty_concurrent_spawns_make_one_instance(table: Instances) -> None:
    def spawn(number: int) -> tuple[bool, str | None]:
        owner = ("smith", f"owner-{number}")
        spawned = table.spawn("smith", "wanted", workspace="calls", owner=owner, cwd=f"d{number}")
        return spawned.is_new, spawned.cwd

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(spawn, range(50)))
    assert sorted(is_new for is_new, _ in answers) == [False] * 49 + [True]
    [winner] = [number for number, (is_new, _) in enumerate(answers) if is_new]
    assert {cwd for _, cwd in answers} == {f"d{winner}"}
    [record] = table.records(table.directories_of("wanted"))
    assert record.parts[0].owner == ("smith", f"owner-{winner}")


def test_spawned_instances_calls_work_in_its_directory(
    client: Client, table: Instances, calls_stack: LocalStack
) -> None:
    host = workdir_of(client, "host")
    table.spawn("smith", "guest", workspace="calls", owner=("smith", "host"), cwd="host/workspace/part")
    assert workdir_of(client, "guest") == host / "part"
    assert workdir_of(client, "guest", "apprentice") == host.parents[1] / "guest" / "workspace"
    large = client.call(
        "smith", "echo__args", {"text": "x" * 300_000}, instance_key="guest", timeout=PATIENCE
    )
    assert (host / "part" / large.output["path"]).is_file()
    assert len(client.read_output(large.meta.id, timeout=PATIENCE).data) > 0


def test_directory_that_leads_outside_since_is_refused(
    client: Client, table: Instances, tmp_path: Path
) -> None:
    instances = workdir_of(client, "any").parents[1]
    table.spawn("smith", "lured", workspace="calls", owner=("smith", "any"), cwd="lure/workspace")
    (instances / "lure").symlink_to(tmp_path)
    result = client.call("smith", "echo__context", {}, instance_key="lured", timeout=PATIENCE)
    assert result.error is not None
    assert result.error.code == "E_PATH_OUTSIDE_WORKDIR"
    assert list(tmp_path.iterdir()) == []


def test_instance_deletion_waits_for_running_call(client: Client, tmp_path: Path) -> None:
    key = "telegram:1/.."
    call = client.submit("smith", "patient__waits", {"place": str(tmp_path)}, instance_key=key)
    wait_until(lambda: (tmp_path / "began").exists(), PATIENCE)
    with pytest.raises(InstanceBusyError, match=call.id):
        client.delete_instance(key)
    (tmp_path / "guest").touch()
    assert call.result(PATIENCE).status == "ok"

    [removal] = client.delete_instance(key)
    assert (removal.instance_key, removal.removed, removal.files) == (key, True, "removed")
    assert not Path(removal.path).exists()
    assert key not in known(client)
    with pytest.raises(InstanceNotFoundError):
        client.delete_instance(key)
    assert workdir_of(client, key) == Path(removal.path) / "workspace"


def test_worker_recreates_deleted_instance_directory_at_once(client: Client) -> None:
    workdir = workdir_of(client, "gone")
    (workdir / "file").touch()
    client.delete_instance("gone")
    assert workdir_of(client, "gone") == workdir
    assert list(workdir.iterdir()) == []
    assert "gone" in known(client)


def test_deletion_killed_in_middle_has_lost_nothing(
    client: Client, redis: Redis, env: dict[str, str]
) -> None:
    workdir = workdir_of(client, "survivor")
    (workdir / "file").write_text("precious", encoding="utf-8")
    died = subprocess.run([sys.executable, "-c", DELETER, "survivor"], env=env, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    assert not workdir.exists()

    record = Keys().instance(str(InstanceDirectory.of("calls", "survivor")))
    mark = redis.hget(record, "retiring")
    assert isinstance(mark, bytes)
    redis.hset(record, "retiring", mark.split()[0] + b" 1")  # its time is over
    assert workdir_of(client, "survivor") == workdir
    assert (workdir / "file").read_text(encoding="utf-8") == "precious"
    [removal] = client.delete_instance("survivor")
    assert removal.files == "removed"


def test_instances_unused_for_long_are_collected(
    client: Client, redis: Redis, env: dict[str, str], tmp_path: Path
) -> None:
    old, new, live = (workdir_of(client, key) for key in ("old", "new", "live"))
    call = client.submit("smith", "patient__waits", {"place": str(tmp_path)}, instance_key="live")
    wait_until(lambda: (tmp_path / "began").exists(), PATIENCE)
    age(redis, "old", "live")
    planned = goondan("gc", "--older-than", "7d", "--dry-run", "--json", env=env).document
    assert {row["instanceKey"]: row.get("reason") is None for row in planned} == {"old": True, "live": False}
    assert old.is_dir()

    done = goondan("gc", "--older-than", "7d", "--yes", env=env)
    assert (done.exit_code, done.stdout) == (0, "removed 1\n")
    assert call.id in done.stderr
    assert (old.exists(), new.is_dir(), live.is_dir()) == (False, True, True)
    (tmp_path / "guest").touch()
    assert call.result(PATIENCE).status == "ok"


def test_command_line_lists_and_deletes(client: Client, env: dict[str, str]) -> None:
    workdir = workdir_of(client, "한글 " + "x" * 300)
    rows = goondan("instances", "--agent", "smith", "--json", env=env).document
    [row] = [row for row in rows if row["instanceKey"].startswith("한글")]
    assert (row["target"], row["workspace"]) == ("smith", "calls")
    assert row["instanceKey"] in goondan("instances", env=env).stdout
    done = goondan("instances", "delete", row["instanceKey"], "--yes", env=env)
    assert (done.exit_code, done.stdout) == (0, "removed 1\n")
    assert not workdir.exists()
    again = goondan("instances", "delete", row["instanceKey"], "--json", "--yes", env=env)
    assert (again.exit_code, again.document["error"]["code"]) == (2, "E_INSTANCE_NOT_FOUND")


def test_delete_from_other_state_root_reports_remaining_files(
    client: Client, env: dict[str, str], tmp_path: Path
) -> None:
    workdir = workdir_of(client, "far")
    elsewhere = {**env, "GOONDAN_STATE_ROOT": str(tmp_path / "none")}
    done = goondan("instances", "delete", "far", "--yes", env=elsewhere)
    assert done.exit_code == 0
    assert "not below this state root" in done.stderr
    assert workdir.is_dir()
    assert not (tmp_path / "none").exists()


async def deleted_by_coroutine(url: str) -> set[str]:
    async with await AsyncClient.connect(url) as client:
        await client.delete_instance("by-coroutine")
        await client.collect_garbage(7 * 86_400, dry_run=True)
        return {info.instance_key for info in await client.instances("smith")}


def test_coroutines_do_same(client: Client, calls_stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = workdir_of(client, "by-coroutine")
    monkeypatch.setenv("GOONDAN_STATE_ROOT", str(calls_stack.state_root))
    assert "by-coroutine" not in asyncio.run(deleted_by_coroutine(calls_stack.redis_url))
    assert not workdir.exists()


def test_unreachable_redis_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_CONNECT_TIMEOUT_SECONDS", "0")
    with pytest.raises(BrokerUnreachableError):
        Client.connect("redis://127.0.0.1:1/0").instances()


def test_worker_removes_instances_past_swarms_lifetime(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    documents = [
        {"kind": "Agent", "metadata": {"name": "clerk"}, "spec": {"tools": ["Tool/wait"]}},
        {
            "kind": "Swarm",
            "metadata": {"name": "default"},
            "spec": {
                "entryAgent": "Agent/clerk",
                "agents": ["Agent/clerk"],
                "policy": {"lifecycle": {"ttlSeconds": 3600, "gcGraceSeconds": 60}},
            },
        },
    ]
    text = "\n---\n".join(yaml.safe_dump({"apiVersion": "goondan.ai/v1", **one}) for one in documents)
    (bundle / "goondan.yaml").write_text(text, encoding="utf-8")
    with LocalStack(bundle) as stack, connect(stack.redis_url) as redis:
        for key in ("old", "new"):
            stack.client.call("clerk", "wait__seconds", {"seconds": 0}, instance_key=key, timeout=PATIENCE)
        directory = stack.state_root / "workspaces" / folder_workspace(bundle) / "instances" / "old"
        assert directory.is_dir()
        seconds, _ = redis.time()
        redis.zadd(Keys().instances, {f"{folder_workspace(bundle)}/old": (seconds - 3700) * 1000})
        for key in redis.scan_iter(f"{Keys().collector('')}*"):
            redis.delete(key)  # the minute is over
        wait_until(lambda: known(stack.client) == {"new"}, PATIENCE)
        wait_until(lambda: not directory.exists(), PATIENCE)

"""``ctx.runtime.spawn`` and ``list``."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.keys import Keys
from goondan_tasks.authoring.handoff import Asker, random_id
from goondan_tasks.bundle.resources import SpawnPolicy
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    BrokerUnreachableError,
    HandoffTimeoutError,
    PathOutsideWorkdirError,
    ToolInputValidationError,
)
from goondan_tasks.instances.table import InstanceDirectory, Instances
from workers.agents.call_services import BlockingRuntime, Swarm
from workers.instances import service as instances
from workers.instances.service import InstanceService, Spawner
from workers.instances.workdirs import Workdirs

UNUSED: Any = None
SWARM = Swarm("shop", "planner", ("planner", "coder", "reviewer"), 16)


@pytest.fixture
def table() -> Iterator[Instances]:
    with fakeredis.FakeRedis() as redis:
        yield Instances(redis, Keys())


@pytest.fixture
def workdirs(tmp_path: Path) -> Workdirs:
    return Workdirs(tmp_path / "root", "shop")


@pytest.fixture
def spawning(table: Instances, workdirs: Workdirs) -> InstanceService:
    return InstanceService(table, workdirs, SWARM.agents)


@pytest.fixture
def free_spawning(table: Instances, workdirs: Workdirs) -> InstanceService:
    """Return a service whose policy allows directories of other instances."""
    return InstanceService(table, workdirs, SWARM.agents, SpawnPolicy(cwd="instances"))


@pytest.fixture
def spawner(workdirs: Workdirs) -> Spawner:
    return Spawner("planner", "issue-42", workdirs.open("issue-42"))


@pytest.mark.requirement("runtime.spawn", "runtime.spawn.result", "runtime.spawn.reuse")
def test_spawn_prepares_instance_and_takes_it_second_time(
    spawning: InstanceService, spawner: Spawner, workdirs: Workdirs
) -> None:
    answers = [spawning.spawn(spawner, "coder", instance_key="k", cwd="part").to_wire() for _ in range(2)]
    place = str(workdirs.instances / "issue-42" / "workspace" / "part")
    expected = {"target": "coder", "instanceKey": "k", "cwd": place}
    assert answers == [{**expected, "spawned": True}, {**expected, "spawned": False}]


def test_without_key_instance_has_askers_own(spawning: InstanceService, spawner: Spawner) -> None:
    assert spawning.spawn(spawner, "coder").to_wire() == {
        "target": "coder",
        "instanceKey": "issue-42",
        "spawned": True,
    }


@pytest.mark.requirement("runtime.spawn.defined-target", "runtime.spawn.definition-unchanged")
@pytest.mark.parametrize("target", ["codr", "", "Coder", "x" * 10_000, "tool/coder"])
def test_spawning_undefined_agent_fails_and_makes_nothing(
    spawning: InstanceService, spawner: Spawner, table: Instances, target: str
) -> None:
    asker = Asker(spawner.agent, spawner.instance_key, random_id)
    runtime = BlockingRuntime(UNUSED, asker, UNUSED, UNUSED, SWARM, spawning, spawner.workdir)
    catalog = runtime.catalog()
    with pytest.raises(AgentNotFoundError, match="in the swarm"):
        runtime.spawn(target)
    assert list(table.records()) == []
    assert runtime.catalog() == catalog


@pytest.mark.parametrize("key", ["", 7, ["k"], "\ud800", "x" * 1025])
def test_key_that_can_be_none_is_refused(spawning: InstanceService, spawner: Spawner, key: Any) -> None:
    with pytest.raises(ToolInputValidationError, match="instanceKey"):
        spawning.spawn(spawner, "coder", instance_key=key)


@pytest.mark.parametrize("cwd", ["", 7, ["."], "\ud800", "a\0b"])
def test_directory_that_can_be_none_is_refused(spawning: InstanceService, spawner: Spawner, cwd: Any) -> None:
    with pytest.raises(ToolInputValidationError, match="cwd"):
        spawning.spawn(spawner, "coder", cwd=cwd)


@pytest.mark.parametrize("key", ["telegram:1/..", "한글", "x" * 300])
def test_odd_keys_are_kept(spawning: InstanceService, spawner: Spawner, key: str) -> None:
    assert spawning.spawn(spawner, "coder", instance_key=key).instance_key == key
    assert [info.instance_key for info in spawning.list(spawner).agents] == [key]


@pytest.mark.parametrize("cwd", [".", "part", "../../other/workspace", "../workspace/./part/.."])
def test_directory_inside_may_be_reached_from_askers_own(
    free_spawning: InstanceService, spawner: Spawner, workdirs: Workdirs, cwd: str
) -> None:
    place = free_spawning.spawn(spawner, "coder", instance_key="k", cwd=cwd).cwd
    assert place == str((spawner.workdir / cwd).resolve())


def test_absolute_directory_inside_will_do(
    free_spawning: InstanceService, spawner: Spawner, workdirs: Workdirs
) -> None:
    place = workdirs.instances / "shared"
    assert free_spawning.spawn(spawner, "coder", instance_key="k", cwd=str(place)).cwd == str(place)


def test_link_that_stays_in_is_followed(
    free_spawning: InstanceService, spawner: Spawner, workdirs: Workdirs
) -> None:
    (spawner.workdir / "link").symlink_to(workdirs.open("other"))
    assert free_spawning.spawn(spawner, "coder", instance_key="k", cwd="link").cwd == str(
        workdirs.open("other")
    )


@pytest.mark.parametrize(
    "cwd", ["/", "/etc", "../..", "../../..", "../../../../../..", "link", "link/part", "../../.retired-x"]
)
def test_directory_outside_is_refused(
    free_spawning: InstanceService, spawner: Spawner, table: Instances, tmp_path: Path, cwd: str
) -> None:
    (spawner.workdir / "link").symlink_to(tmp_path)
    with pytest.raises(PathOutsideWorkdirError, match="instances"):
        free_spawning.spawn(spawner, "coder", cwd=cwd)
    assert list(table.records()) == []


@pytest.mark.parametrize("cwd", [".", "part", "../workspace/./part/..", "../../issue-42/workspace/new"])
def test_instance_may_be_spawned_below_spawners_own_workdir(
    spawning: InstanceService, spawner: Spawner, cwd: str
) -> None:
    place = spawning.spawn(spawner, "coder", instance_key="k", cwd=cwd).cwd
    assert place == str((spawner.workdir / cwd).resolve())


@pytest.mark.parametrize(
    "cwd", ["..", "../..", "../../other", "../../other/workspace", "../agents", "link", "/etc"]
)
def test_spawner_without_policy_cannot_reach_other_instance(
    spawning: InstanceService, spawner: Spawner, workdirs: Workdirs, table: Instances, cwd: str
) -> None:
    (spawner.workdir / "link").symlink_to(workdirs.open("other"))
    with pytest.raises(PathOutsideWorkdirError, match="out of the spawner's workdir"):
        spawning.spawn(spawner, "coder", instance_key="k", cwd=cwd)
    assert list(table.records()) == []


def test_spawned_directory_turned_link_is_refused_even_inside(
    spawning: InstanceService, spawner: Spawner, workdirs: Workdirs
) -> None:
    spawning.spawn(spawner, "coder", instance_key="k", cwd="part/deep")
    assert workdirs.open("k", "issue-42/workspace/part/deep").is_dir()
    (spawner.workdir / "part").rename(spawner.workdir / "moved")
    (spawner.workdir / "part").symlink_to(workdirs.open("other"))
    (workdirs.open("other") / "deep").mkdir()

    for reach in (workdirs.find, workdirs.open):
        with pytest.raises(PathOutsideWorkdirError, match="taken the place"):
            reach("k", "issue-42/workspace/part/deep")


@pytest.mark.requirement("runtime.list", "runtime.list.result", "runtime.list.include-all")
def test_list_has_instances_spawned_by_caller_or_all(
    spawning: InstanceService, spawner: Spawner, table: Instances, workdirs: Workdirs
) -> None:
    spawning.spawn(spawner, "coder", instance_key="mine", cwd="part")
    spawning.spawn(Spawner("planner", "other", spawner.workdir), "coder", instance_key="theirs")
    table.open("reviewer", "used", workspace="shop", root_id="root")
    table.open("reviewer", "used", workspace="elsewhere", root_id="root")
    [mine] = spawning.list(spawner).to_wire()["agents"]
    assert mine == {
        "target": "coder",
        "instanceKey": "mine",
        "ownerAgent": "planner",
        "ownerInstanceKey": "issue-42",
        "createdAt": mine["createdAt"],
        "cwd": str(spawner.workdir / "part"),
    }
    listed = spawning.list(spawner, include_all=True).to_wire()["agents"]
    everything = {one["instanceKey"]: (one["ownerAgent"], one["ownerInstanceKey"]) for one in listed}
    assert everything == {
        "mine": ("planner", "issue-42"),
        "theirs": ("planner", "other"),
        "used": ("client", "used"),
    }


@pytest.mark.requirement("runtime.list.include-all")
def test_list_omits_other_swarms_agents_in_workspace(
    spawning: InstanceService, spawner: Spawner, table: Instances
) -> None:
    for agent in ("coder", "painter"):
        table.open(agent, "shared", workspace="shop", root_id="root")
        table.spawn(agent, "spawned", workspace="shop", owner=(spawner.agent, spawner.instance_key))

    listed = spawning.list(spawner, include_all=True).agents

    assert {(info.target, info.instance_key) for info in listed} == {
        ("coder", "shared"),
        ("coder", "spawned"),
    }
    assert [info.target for info in spawning.list(spawner).agents] == ["coder"]


def test_instance_that_is_being_deleted_is_waited_for(
    spawning: InstanceService, spawner: Spawner, table: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.hold([InstanceDirectory.of("shop", "k")], "0" * 32)
    monkeypatch.setattr(instances, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(HandoffTimeoutError, match="being deleted"):
        spawning.spawn(spawner, "coder", instance_key="k")
    table.let_go([InstanceDirectory.of("shop", "k")], "0" * 32)
    assert spawning.spawn(spawner, "coder", instance_key="k").spawned


def test_spawn_and_list_without_redis_are_errors(spawner: Spawner, workdirs: Workdirs) -> None:
    def away(*_: object, **__: object) -> None:
        raise RedisConnectionError("gone")

    table: Any = SimpleNamespace(spawn=away, records=away)
    spawning = InstanceService(table, workdirs, SWARM.agents)
    with pytest.raises(BrokerUnreachableError, match="table of instances cannot be reached: gone"):
        spawning.spawn(spawner, "coder")
    with pytest.raises(BrokerUnreachableError, match="table of instances cannot be reached: gone"):
        spawning.list(spawner)

"""The directories of instances: their names, how they are opened, and what the table says of them."""

import asyncio
import itertools
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from broker_config.keys import Keys
from goondan_tasks.contract.errors import (
    PathOutsideWorkdirError,
    ToolCancelledError,
    ToolError,
    ToolTimeoutError,
)
from goondan_tasks.instances.table import InstanceDirectory, Instances, Opened, encoded
from workers.cancellation import Cancellation
from workers.instances import workdirs as workdirs_module
from workers.instances.workdirs import InstanceWorkdirs, OpenWait, Workdirs, root_id

keys = st.text(max_size=300)


@given(keys, keys)
def test_two_keys_never_share_directory(one: str, other: str) -> None:
    assert (encoded(one) == encoded(other)) == (one == other)


@given(keys)
def test_directory_name_is_one_plain_component(key: str) -> None:
    name = encoded(key)
    assert 0 < len(name) <= 150
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_%ABCDEF")


def test_case_distinct_keys_differ_on_every_filesystem() -> None:
    assert encoded("Issue").lower() != encoded("issue").lower()


@pytest.mark.requirement("context.workdir")
@pytest.mark.parametrize(
    "key", ["issue-42", "a/b", "a-b", "..", "../../etc", "/etc", "", ".", "\0", "한글", "x" * 999]
)
def test_first_use_makes_workdir_inside_state_root(tmp_path: Path, key: str) -> None:
    workdir = Workdirs(tmp_path, "shop").open(key)
    assert workdir.is_dir()
    assert workdir.resolve().is_relative_to(tmp_path.resolve() / "workspaces" / "shop" / "instances")
    assert workdir.name == "workspace"


@pytest.mark.requirement("context.workdir.of-the-instance")
def test_each_instance_has_exactly_one_own_workdir(tmp_path: Path) -> None:
    workdirs = Workdirs(tmp_path, "shop")
    assert workdirs.open("a") == workdirs.open("a")
    assert workdirs.open("a") != workdirs.open("b")


@pytest.mark.parametrize("cwd", [None, "mine"])
def test_every_directory_down_to_workdir_is_private(tmp_path: Path, cwd: str | None) -> None:
    tmp_path.chmod(0o755)
    workdir = Workdirs(tmp_path, "shop").open("a", cwd)

    made = [workdir, *itertools.takewhile(lambda parent: parent != tmp_path, workdir.parents)]
    assert {stat.S_IMODE(directory.stat().st_mode) for directory in made} == {0o700}
    assert len(made) >= 3


@pytest.mark.parametrize("part", ["", "workspace"])
def test_link_in_place_of_workdir_is_refused(tmp_path: Path, part: str) -> None:
    directory = tmp_path / "workspaces" / "shop" / "instances" / "a"
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "workspace").mkdir(parents=True)
    place = directory / part if part else directory
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    with pytest.raises(ToolError, match="link"):
        Workdirs(tmp_path, "shop").open("a")


def test_state_root_keeps_its_id(tmp_path: Path) -> None:
    assert root_id(tmp_path / "root") == root_id(tmp_path / "root")
    assert root_id(tmp_path / "root") != root_id(tmp_path / "other")
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["root-id"]


SHORT = OpenWait(seconds=0.2)


class Counting(Instances):
    """A table that counts questions, and fails when it is told to."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis, Keys())
        self.questions = 0
        self.error: Exception | None = None

    def open(self, *arguments: Any, **fields: Any) -> Opened:
        self.questions += 1
        if self.error is not None:
            raise self.error
        return super().open(*arguments, **fields)


@pytest.fixture
def table() -> Iterator[Counting]:
    with fakeredis.FakeRedis() as redis:
        yield Counting(redis)


@pytest.fixture
def workdirs(tmp_path: Path, table: Counting) -> InstanceWorkdirs:
    return InstanceWorkdirs(Workdirs(tmp_path, "shop"), table)


def spawn(table: Instances, cwd: str) -> None:
    table.spawn("coder", "a", workspace="shop", owner=("planner", "p"), cwd=cwd)


def instances(root: Path) -> Path:
    return root / "workspaces" / "shop" / "instances"


def test_instance_in_use_is_looked_up_rarely(
    workdirs: InstanceWorkdirs, table: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = []
    for now in (100.0, 101.0, 109.9, 110.1):
        monkeypatch.setattr(workdirs_module, "monotonic", lambda now=now: now)
        workdirs.open("coder", "a")
        questions.append(table.questions)
    assert questions == [1, 1, 1, 2]


def test_first_use_registers_instance(workdirs: InstanceWorkdirs, table: Counting, tmp_path: Path) -> None:
    assert workdirs.open("coder", "a/b") == Workdirs(tmp_path, "shop").open("a/b")
    [record] = table.records()
    assert (record.key, record.workspace, record.agents) == ("a/b", "shop", ("coder",))
    assert record.parts[0].root_id == (tmp_path / "root-id").read_text(encoding="ascii")


def test_without_table_it_works_in_its_own_directory(tmp_path: Path) -> None:
    assert InstanceWorkdirs(Workdirs(tmp_path, "shop")).open("coder", "a") == Workdirs(tmp_path, "shop").open(
        "a"
    )
    assert not (tmp_path / "root-id").exists()


@pytest.mark.parametrize("cwd", ["b/workspace", "b/workspace/deep/er", "new"])
def test_instance_spawned_elsewhere_works_there(
    workdirs: InstanceWorkdirs, table: Counting, tmp_path: Path, cwd: str
) -> None:
    spawn(table, cwd)
    workdir = workdirs.open("coder", "a")
    assert workdir == instances(tmp_path) / cwd
    assert stat.S_IMODE(workdir.stat().st_mode) == 0o700
    assert workdirs.open("reviewer", "a") == Workdirs(tmp_path, "shop").open("a")


def test_other_machine_finds_workdir_below_own_mount(
    workdirs: InstanceWorkdirs, table: Counting, tmp_path: Path
) -> None:
    spawn(table, "b/workspace")
    workdirs.open("coder", "a")
    (tmp_path.parent / "mounted").symlink_to(tmp_path)
    other = InstanceWorkdirs(Workdirs(tmp_path.parent / "mounted", "shop"), table)
    assert other.open("coder", "a").samefile(workdirs.open("coder", "a"))


@pytest.mark.parametrize("is_known", [True, False])
def test_link_that_leads_outside_since_is_refused(
    workdirs: InstanceWorkdirs, table: Counting, tmp_path: Path, is_known: bool
) -> None:
    spawn(table, "b/workspace")
    if is_known:
        workdirs.open("coder", "a").rmdir()
        (instances(tmp_path) / "b").rmdir()
    (tmp_path / "outside" / "workspace").mkdir(parents=True)
    instances(tmp_path).mkdir(parents=True, exist_ok=True)
    (instances(tmp_path) / "b").symlink_to(tmp_path / "outside")
    with pytest.raises(PathOutsideWorkdirError):
        workdirs.open("coder", "a")


@pytest.mark.parametrize("error", [RedisConnectionError("gone"), ResponseError("LOADING")])
def test_last_answer_counts_throughout_redis_outage(
    workdirs: InstanceWorkdirs, table: Counting, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    spawn(table, "b/workspace")
    workdir = workdirs.open("coder", "a")
    monkeypatch.setattr(workdirs_module, "KNOWN_SECONDS", 0)
    table.error = error
    assert workdirs.open("coder", "a") == workdir


def test_unknown_instance_waits_for_redis(workdirs: InstanceWorkdirs, table: Counting) -> None:
    table.error = RedisConnectionError("gone")
    with pytest.raises(ToolTimeoutError, match="Redis cannot be reached"):
        workdirs.open("coder", "a", SHORT)
    assert table.questions > 1


def test_instance_is_found_while_redis_is_full(
    workdirs: InstanceWorkdirs, table: Counting, tmp_path: Path
) -> None:
    spawn(table, "b/workspace")
    table.error = ResponseError("OOM command not allowed when used memory > 'maxmemory'.")
    assert workdirs.open("coder", "a") == instances(tmp_path) / "b" / "workspace"


def test_missing_directory_is_looked_up_at_once(workdirs: InstanceWorkdirs, table: Counting) -> None:
    workdirs.open("coder", "a").rmdir()
    assert workdirs.open("coder", "a").is_dir()
    assert table.questions == 2


def test_event_loop_checks_directory_once_per_round(
    workdirs: InstanceWorkdirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    look = workdirs.open

    def noted(agent: str, instance_key: str) -> Path:
        looks.append(instance_key)
        return look(agent, instance_key)

    async def test() -> None:
        for rounds in (1, 2):
            places = [workdirs.open_on_loop("coder", key) for key in ("i", "i", "j")]
            assert looks == ["i", "j"] * rounds
            shutil.rmtree(places[0])
            await asyncio.sleep(0)
        assert workdirs.open_on_loop("coder", "i").is_dir()

    monkeypatch.setattr(workdirs, "open", noted)
    asyncio.run(test())


def test_call_waits_within_limit_for_directory_deletion(workdirs: InstanceWorkdirs, table: Counting) -> None:
    table.hold([InstanceDirectory.of("shop", "a")], "0" * 32)
    with pytest.raises(ToolTimeoutError, match="being deleted"):
        workdirs.open("coder", "a", SHORT)
    cancellation = Cancellation()
    cancellation.set(ToolCancelledError())
    with pytest.raises(ToolCancelledError):
        workdirs.open("coder", "a", OpenWait(60, cancellation))


def test_number_of_remembered_instances_is_bounded(
    workdirs: InstanceWorkdirs, table: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workdirs_module, "MOST_KNOWN", 2)
    for key in ("a", "b", "a", "c", "a"):
        workdirs.open("coder", key)
    assert table.questions == 3
    workdirs.open("coder", "b")
    assert table.questions == 4

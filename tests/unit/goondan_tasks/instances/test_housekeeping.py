"""Deleting and collecting instances, on a Redis in memory."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from redis import Redis
from redis.client import Pipeline

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.conversation import ConversationFiles
from goondan_tasks.contract.errors import InstanceBusyError, InstanceNotFoundError
from goondan_tasks.contract.messages import Message
from goondan_tasks.fleet.agent_registry import AgentRecord
from goondan_tasks.instances.files import InstanceFiles
from goondan_tasks.instances.housekeeping import ASIDE_SECONDS, Housekeeping, InstanceRemoval, LiveCalls
from goondan_tasks.instances.table import InstanceDirectory, Instances
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.submission import Submission
from workers.instances.workdirs import InstanceWorkdirs, Workdirs, root_id

TOKEN = "0" * 32
DAY = 86_400


class House:
    """A table, a state root, and calls."""

    def __init__(self, redis: Redis, root: Path) -> None:
        self.redis = redis
        self.root = root
        self.ledger = Ledger(redis, Settings())
        self.table = Instances(redis, self.ledger.keys)
        agents = [AgentRecord(name=name, swarm="s", workspace="shop") for name in ("coder", "reviewer")]
        self.keeper = Housekeeping(self.ledger, root, lambda: agents)
        self.files = InstanceFiles(root)
        self.workdirs = InstanceWorkdirs(Workdirs(root, "shop"), self.table)

    def use(self, key: str, agent: str = "coder", text: str = "x") -> Path:
        """Work in an instance as a worker does, and leave a file."""
        file = self.workdirs.open(agent, key) / "file"
        file.write_text(text, encoding="utf-8")
        return file

    def talk(self, key: str, agent: str = "coder") -> ConversationFiles:
        """Have a conversation of one message."""
        self.use(key, agent)
        files = ConversationFiles.of(self.workdirs.directory(key), agent)
        data = {"role": "user", "content": "hello"}
        message = Message(id="m", data=data, created_at="", source={"type": "user"})
        conversation = files.begin("t", claimed_at=1, now=1)
        conversation.append(message)
        conversation.write()
        return files

    def spawn(self, key: str, cwd: str, agent: str = "coder") -> None:
        self.table.spawn(agent, key, workspace="shop", owner=("reviewer", "r"), cwd=cwd)

    def submit(self, key: str, agent: str = "coder", turn: str = "t") -> str:
        """Have a call queued."""
        call = new_call(agent, "bash__exec", {}, {"turn_id": turn, "instance_key": key})
        wire = serializer.encode(call.to_wire())
        self.ledger.submit_all([Submission(identity_of(call), call, wire, "digest")], "p")
        return identity_of(call)

    def age(self, *keys: str, seconds: float = 8 * DAY) -> None:
        """Let instances be used last so long ago."""
        moment = self.table.now() - seconds * 1000
        self.redis.zadd(
            self.ledger.keys.instances, {str(InstanceDirectory.of("shop", key)): moment for key in keys}
        )

    def run_out(self, key: str) -> None:
        """Let the hold of a deletion run out, as time does."""
        name = self.ledger.keys.instance(str(InstanceDirectory.of("shop", key)))
        self.redis.hset(name, "retiring", f"{TOKEN} 1")

    @property
    def keys(self) -> set[str | None]:
        return {record.key for record in self.table.records()}

    @property
    def directories(self) -> set[str]:
        return {path.name for path in self.files.path(InstanceDirectory.of("shop", "x")).parent.iterdir()}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    root_id(tmp_path / "root")
    with fakeredis.FakeRedis() as redis:
        yield House(redis, tmp_path / "root")


def summary(removals: list[InstanceRemoval]) -> list[tuple[str | None, bool, str]]:
    return [(removal.instance_key, removal.removed, removal.files) for removal in removals]


ODD_KEYS = ["telegram:1/..", "한글 🙂", "x" * 300, "..", "/etc", "", "."]


@pytest.mark.parametrize("key", ODD_KEYS)
def test_instance_goes_with_its_files_whatever_its_key(house: House, key: str) -> None:
    house.use("other")
    house.use(key)
    assert summary(house.keeper.delete(key)) == [(key, True, "removed")]
    assert house.keys == {"other"}
    assert house.directories == {"other"}


def test_reading_one_instance_skips_records_of_others(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("a", "b", "c*", "c"):
        house.use(key)
    house.use("c", "reviewer")
    read, hgetall = [], Pipeline.hgetall

    def counted(pipe: Any, key: str) -> Any:
        read.append(key)
        return hgetall(pipe, key)

    monkeypatch.setattr(Pipeline, "hgetall", counted)

    [only] = house.keeper.infos("coder", "c")
    both = house.keeper.infos(None, "c")

    assert (only.target, only.instance_key) == ("coder", "c")
    assert {info.target for info in both} == {"coder", "reviewer"}
    assert len(read) == 2
    assert house.keeper.infos("coder", "d") == []
    assert len(house.keeper.infos()) == 5


def test_latest_instances_are_found_by_key_part(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["order/1", "Order 2", "x" * 400 + "order/3", "other", "order/1"]
    for key in keys:
        house.use(key)
    house.use("order/1", "reviewer")
    every = {info.instance_key for info in house.keeper.infos()}
    for part in ("order", "Order", "rder", "/", "order/", "x" * 300, "", "nothing"):
        found = [one.instance_key for one in house.keeper.latest(None, part, 100)]
        assert set(found) == {key for key in every if part in key}, part
    assert len(house.keeper.latest(None, "", 3)) == 3
    assert [one.target for one in house.keeper.latest("reviewer", "", 3)] == ["reviewer"]


def test_dry_run_says_same_and_does_nothing(house: House) -> None:
    file = house.use("a")
    [planned] = house.keeper.delete("a", dry_run=True)
    assert (planned.path, planned.agents, planned.removed) == (str(file.parent.parent), ("coder",), False)
    assert file.exists()


def test_deleting_unknown_instance_is_refused(house: House) -> None:
    house.use("a")
    with pytest.raises(InstanceNotFoundError, match="'b'"):
        house.keeper.delete("b")
    with pytest.raises(InstanceNotFoundError, match="'a' of agent 'reviewer'"):
        house.keeper.delete("a", "reviewer")


@pytest.mark.parametrize("agent", ["coder", "reviewer"])
def test_instance_with_live_call_of_any_agent_stays(house: House, agent: str) -> None:
    file = house.use("a")
    call_id = house.submit("a", agent)
    with pytest.raises(InstanceBusyError, match=call_id):
        house.keeper.delete("a")
    assert file.exists()
    assert house.keys == {"a"}


def test_instance_with_handler_running_past_answer_stays(house: House) -> None:
    file = house.use("a")
    call_id = house.submit("a")
    # as finish_event.lua leaves an event whose handler goes on past its limit
    house.redis.hset(house.ledger.keys.call(call_id), mapping={"status": "done", "token": "its worker's"})
    with pytest.raises(InstanceBusyError, match=call_id):
        house.keeper.delete("a")
    house.age("a")
    assert [removal.removed for removal in house.keeper.collect(DAY)] == [False]
    assert file.exists()
    house.redis.hdel(house.ledger.keys.call(call_id), "token")
    assert summary(house.keeper.delete("a")) == [("a", True, "removed")]


def test_directory_outside_table_is_removed_by_key(house: House) -> None:
    Workdirs(house.root, "shop").open("a")
    assert summary(house.keeper.delete("a")) == [("a", True, "removed")]
    assert house.directories == set()


def test_deletion_for_one_agent_keeps_shared_directory(house: House) -> None:
    for agent in ("coder", "reviewer"):
        file = house.use("a", agent)
    house.submit("a", "reviewer")
    assert summary(house.keeper.delete("a", "coder")) == [("a", True, "kept")]
    assert file.exists()
    assert [info.target for info in house.keeper.infos()] == ["reviewer"]


def test_agent_that_leaves_directory_takes_its_conversation_along(house: House) -> None:
    conversations = [house.talk("a", agent) for agent in ("coder", "reviewer")]
    house.keeper.delete("a", "coder")
    assert [len(one.read()) for one in conversations] == [0, 1]
    agents = house.workdirs.directory("a") / "agents"
    assert [path.name for path in agents.iterdir()] == ["reviewer"]


def test_turn_during_deletion_keeps_agent_and_conversation(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.use("a", "coder")
    files = house.talk("a", "reviewer")
    set_aside, turns = InstanceFiles.set_agent_aside, []

    def begin_first(*arguments: Any) -> bool:
        house.submit("a", "reviewer")
        turns.append(files.begin("t2", claimed_at=2, now=2))
        return set_aside(*arguments)

    monkeypatch.setattr(InstanceFiles, "set_agent_aside", begin_first)
    with pytest.raises(InstanceBusyError, match="agent 'reviewer' has not ended"):
        house.keeper.delete("a", "reviewer")
    message = Message(id="n", data={"role": "user", "content": "x"}, created_at="", source={"type": "user"})
    turns[0].append(message)
    turns[0].write()
    assert [message.id for message in files.read()] == ["m", "n"]
    [record] = house.table.records()
    assert (record.agents, record.tokens) == (("coder", "reviewer"), frozenset())


def test_conversation_is_restored_if_agent_deletion_dies(house: House) -> None:
    house.use("a", "coder")
    files = house.talk("a", "reviewer")
    directory = InstanceDirectory.of("shop", "a")
    house.table.hold([directory], TOKEN)
    house.files.set_agent_aside(directory, "reviewer", TOKEN)
    assert len(files.read()) == 0
    house.run_out("a")
    InstanceWorkdirs(Workdirs(house.root, "shop"), house.table).open("coder", "a")
    assert len(files.read()) == 1
    [record] = house.table.records()
    assert record.tokens == frozenset()


def test_files_of_dead_late_deletion_are_restored(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    file, name = house.use("a"), house.ledger.keys.instance(str(InstanceDirectory.of("shop", "a")))
    live_calls, set_aside = LiveCalls.all, InstanceFiles.set_aside

    def end_hold() -> bool:
        mark: Any = house.redis.hget(name, "retiring")
        if mark is not None:
            house.redis.hset(name, "retiring", mark.partition(b" ")[0] + b" 1")
            InstanceWorkdirs(Workdirs(house.root, "shop"), house.table).open("coder", "a")
        return mark is not None

    def stalled(calls: LiveCalls) -> Any:
        end_hold()  # the process was stopped, and a worker has opened the instance since
        return live_calls(calls)

    def die(*args: Any) -> bool:
        set_aside(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveCalls, "all", stalled)
    monkeypatch.setattr(InstanceFiles, "set_aside", die)
    with pytest.raises(KeyboardInterrupt):
        house.keeper.delete("a")
    assert not file.exists()
    assert end_hold()
    assert file.exists()


def test_agent_cannot_leave_instance_being_deleted(house: House) -> None:
    house.use("a", "coder")
    files = house.talk("a", "reviewer")
    house.table.hold([InstanceDirectory.of("shop", "a")], TOKEN)
    with pytest.raises(InstanceBusyError, match="it is being deleted"):
        house.keeper.delete("a", "reviewer")
    assert len(files.read()) == 1


def test_conversation_goes_with_its_instance_wherever_that_works(house: House) -> None:
    house.use("host")
    house.spawn("guest", "host/workspace/part")
    conversations = [house.talk("host"), house.talk("guest")]
    assert house.directories == {"host", "guest"}
    assert summary(house.keeper.delete("guest")) == [("guest", True, "removed")]
    assert [len(one.read()) for one in conversations] == [1, 0]


def test_link_in_place_of_conversation_is_not_followed(house: House, tmp_path: Path) -> None:
    for agent in ("coder", "reviewer"):
        file = house.use("a", agent)
    (tmp_path / "elsewhere" / "coder").mkdir(parents=True)
    (file.parent.parent / "agents").symlink_to(tmp_path / "elsewhere")
    assert summary(house.keeper.delete("a", "coder")) == [("a", True, "kept")]
    assert (tmp_path / "elsewhere" / "coder").is_dir()


def test_last_agent_takes_directory_along(house: House) -> None:
    house.use("a")
    assert summary(house.keeper.delete("a", "coder")) == [("a", True, "removed")]
    assert house.directories == set()


def test_host_instance_stays_until_guest_goes(house: House) -> None:
    house.use("a")
    house.spawn("guest", "a/workspace/part")
    with pytest.raises(InstanceBusyError, match="instance 'guest' of agent 'coder' works in its directory"):
        house.keeper.delete("a")
    house.keeper.delete("guest")
    assert summary(house.keeper.delete("a")) == [("a", True, "removed")]


def test_foreign_state_root_files_stay_and_are_reported(house: House, tmp_path: Path) -> None:
    house.use("a")
    root_id(tmp_path / "mine")
    mine = House(house.redis, tmp_path / "mine")
    file = Workdirs(tmp_path / "mine", "shop").open("a") / "mine"
    file.touch()
    assert summary(mine.keeper.delete("a")) == [("a", True, "elsewhere")]
    assert file.exists()
    assert house.directories == {"a"}


def test_missing_state_root_is_reported_table_tidied(house: House, tmp_path: Path) -> None:
    house.use("a")
    assert summary(House(house.redis, tmp_path / "none").keeper.delete("a")) == [("a", True, "elsewhere")]
    assert not (tmp_path / "none").exists()


def test_call_ending_during_deletion_restores_all_files(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = house.use("a")
    set_aside = InstanceFiles.set_aside

    def run_a_call_first(files: InstanceFiles, directory: InstanceDirectory, token: str) -> bool:
        """A worker that has opened the instance lately runs a call without asking the table."""
        call_id = house.submit("a")
        (house.workdirs.open("coder", "a") / "new").touch()
        house.redis.hset(house.ledger.keys.call(call_id), "status", "done")
        house.redis.zrem(house.ledger.keys.due, call_id)
        return set_aside(files, directory, token)

    monkeypatch.setattr(InstanceFiles, "set_aside", run_a_call_first)
    with pytest.raises(InstanceBusyError, match="has not ended"):
        house.keeper.delete("a")
    assert file.exists()
    assert file.with_name("new").exists()
    assert house.keys == {"a"}


def test_worker_awaits_deletion_and_gets_new_directory(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.use("a")
    remove, opened = Instances.forget, []
    threads: list[threading.Thread] = []

    def open_first(*arguments: Any) -> bool:
        threads.append(threading.Thread(target=lambda: opened.append(house.workdirs.open("coder", "a"))))
        threads[0].start()
        time.sleep(0.2)  # it must not come back within this time
        assert opened == []
        return remove(*arguments)

    monkeypatch.setattr(Instances, "forget", open_first)
    house.keeper.delete("a")
    threads[0].join(30)
    assert list(opened[0].iterdir()) == []
    assert house.keys == {"a"}


@pytest.mark.parametrize("step", ["hold", "set_aside"])
def test_deletion_dying_before_forgetting_changes_nothing(house: House, step: str) -> None:
    file = house.use("a", text="mine")
    directory = InstanceDirectory.of("shop", "a")
    house.table.hold([directory], TOKEN)
    if step == "set_aside":
        house.files.set_aside(directory, TOKEN)
    house.run_out("a")
    fresh = InstanceWorkdirs(Workdirs(house.root, "shop"), house.table)
    assert (fresh.open("coder", "a") / "file").read_text(encoding="utf-8") == "mine"
    assert file.exists()
    [record] = house.table.records()
    assert record.tokens == frozenset()


def test_deletion_that_died_can_be_made_again(house: House) -> None:
    house.use("a")
    house.table.hold([InstanceDirectory.of("shop", "a")], TOKEN)
    house.files.set_aside(InstanceDirectory.of("shop", "a"), TOKEN)
    house.run_out("a")
    assert summary(house.keeper.delete("a")) == [("a", True, "removed")]
    assert house.directories == set()


def test_instance_being_deleted_is_not_deleted_twice(house: House) -> None:
    house.use("a")
    house.table.hold([InstanceDirectory.of("shop", "a")], TOKEN)
    with pytest.raises(InstanceBusyError, match="it is being deleted"):
        house.keeper.delete("a")
    assert house.directories == {"a"}


def test_collection_removes_leftovers_of_forgotten_instance(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.use("a")
    house.files.set_aside(InstanceDirectory.of("shop", "a"), TOKEN)
    list(house.keeper.collect(DAY))
    assert house.directories == {f".retired-{TOKEN}-a"}  # it may be at work still
    monkeypatch.setattr(InstanceFiles, "aside_for", lambda *_: ASIDE_SECONDS + 1)
    list(house.keeper.collect(DAY))
    assert house.directories == set()


def test_collection_keeps_restorable_files_of_half_done_deletion(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.use("a")
    house.table.hold([InstanceDirectory.of("shop", "a")], TOKEN)
    house.files.set_aside(InstanceDirectory.of("shop", "a"), TOKEN)
    house.run_out("a")
    monkeypatch.setattr(InstanceFiles, "aside_for", lambda *_: ASIDE_SECONDS + 1)
    list(house.keeper.collect(DAY))
    assert house.directories == {f".retired-{TOKEN}-a"}


def test_collection_takes_unused_and_leaves_used_and_live(house: House) -> None:
    for key in ("old", "live", "new", "older"):
        house.use(key)
    house.age("old", "live", seconds=8 * DAY)
    house.age("older", seconds=30 * DAY)
    call_id = house.submit("live")
    removals = list(house.keeper.collect(7 * DAY))
    assert sorted(summary(removals), key=str) == [
        ("live", False, "here"),
        ("old", True, "removed"),
        ("older", True, "removed"),
    ]
    assert call_id in (removals[0].reason or "")
    assert house.directories == {"live", "new"}
    assert list(house.keeper.collect(7 * DAY)) == []  # it was in use a moment ago


def test_collection_that_only_looks_changes_nothing(house: House) -> None:
    house.use("a")
    house.age("a")
    assert summary(list(house.keeper.collect(7 * DAY, dry_run=True))) == [("a", False, "here")]
    assert house.directories == {"a"}


def test_host_and_guest_are_collected_together_once_unused(house: House) -> None:
    for host in ("a", "b"):
        house.use(host)
        house.spawn(f"guest-{host}", f"{host}/workspace")
    house.age("a", "b", "guest-a")
    planned = house.keeper.collect(7 * DAY, dry_run=True)
    assert {removal.instance_key for removal in planned if removal.reason is None} == {"a", "guest-a"}
    list(house.keeper.collect(7 * DAY))
    assert house.keys == {"b", "guest-b"}
    assert house.directories == {"b"}


def test_collection_leaves_other_workspaces_and_state_roots_alone(house: House, tmp_path: Path) -> None:
    house.use("a")
    house.age("a")
    assert list(house.keeper.collect(7 * DAY, workspace="other")) == []
    [removal] = House(house.redis, tmp_path / "none").keeper.collect(7 * DAY)
    assert (removal.removed, removal.reason) == (False, "its files are not below this machine's state root")
    assert house.keys == {"a"}


def test_unlisted_directories_without_changes_are_removed(house: House) -> None:
    house.use("listed")
    house.spawn("guest", "hosting/workspace")
    for key in ("old", "changed", "live", "hosting"):
        Workdirs(house.root, "shop").open(key)
    (house.files.path(InstanceDirectory.of("shop", "changed")) / "workspace" / "file").touch()
    for directory in house.files.directories("shop"):
        for path in [house.files.path(directory), house.files.path(directory) / "workspace"]:
            os.utime(path, (1000, 1000))
    house.submit("live")
    planned = list(house.keeper.collect_unlisted(DAY, dry_run=True))
    assert [Path(removal.path).name for removal in planned] == ["old"]
    list(house.keeper.collect_unlisted(DAY))
    assert house.directories == {"listed", "changed", "live", "hosting"}


@pytest.mark.parametrize("field", ["created:coder", "kind"])
def test_damaged_instance_and_host_keep_their_files(house: House, field: str) -> None:
    house.use("host")
    house.spawn("guest", "host/workspace")
    house.use("guest")
    Workdirs(house.root, "shop").open("guest")
    key = house.ledger.keys.instance(str(InstanceDirectory.of("shop", "guest")))
    if field == "kind":
        house.redis.delete(key)
        house.redis.rpush(key, "odd")
    else:
        house.redis.hset(key, field, "soon")
    house.age("host", "guest")
    for directory in house.files.directories("shop"):
        for path in [house.files.path(directory), *house.files.path(directory).rglob("*")]:
            os.utime(path, (1000, 1000))

    removals = [*house.keeper.collect(DAY), *house.keeper.collect_unlisted(DAY)]

    assert [removal.reason for removal in removals if removal.removed] == []
    assert house.directories == {"host", "guest"}
    with pytest.raises(InstanceBusyError, match="whose record is damaged"):
        house.keeper.delete("host")


def test_unlisted_directory_used_during_search_stays(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("old", "used"):
        Workdirs(house.root, "shop").open(key)
        path = house.files.path(InstanceDirectory.of("shop", key))
        for changed in (path, path / "workspace"):
            os.utime(changed, (1000, 1000))
    newest = InstanceFiles.newest

    def use_afterwards(files: InstanceFiles, directory: InstanceDirectory) -> float:
        latest = newest(files, directory)
        if directory.name == "used":
            house.use("used")
        return latest

    monkeypatch.setattr(InstanceFiles, "newest", use_afterwards)
    removals = list(house.keeper.collect_unlisted(DAY))
    assert [(Path(one.path).name, one.removed, one.reason) for one in removals] == [
        ("old", True, None),
        ("used", False, "it was used again"),
    ]
    assert house.directories == {"used"}


def test_many_live_calls_are_found_in_batches(house: House) -> None:
    for number in range(1203):
        house.submit(f"k{number}", turn=str(number))
    calls = LiveCalls(house.ledger)
    assert {call.instance_key for call in calls.all()} == {f"k{number}" for number in range(1203)}
    assert calls.since(house.table.now() + 1000, ["coder"]) == []


def test_more_than_batch_is_collected(house: House) -> None:
    keys = [f"k{number}" for number in range(450)]
    for key in keys:
        house.use(key)
    house.age(*keys)
    assert sum(removal.removed for removal in house.keeper.collect(7 * DAY)) == 450
    assert house.directories == set()

"""The conversation of an agent that thinks, as its files keep it from Turn to Turn."""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_config import serializer
from goondan_tasks.contract import conversation as module
from goondan_tasks.contract.conversation import Conversation, ConversationFiles
from goondan_tasks.contract.errors import ConversationError
from goondan_tasks.contract.messages import JsonObject, Message
from goondan_tasks.machine.atomic_file import write_whole

HOUR = 3_600_000


def said(name: str, text: Any = "hello", role: str = "user") -> Message:
    data = {"role": role, "content": text}
    return Message(id=name, data=data, created_at="2026-01-01T00:00:00.000Z", source={"type": "user"})


def names(conversation: Conversation | list[Message]) -> list[str]:
    messages = conversation if isinstance(conversation, list) else conversation.next_messages
    return [message.id for message in messages]


def begun(files: ConversationFiles, turn_id: str, claimed_at: float) -> Conversation:
    return files.begin(turn_id, claimed_at=claimed_at, now=claimed_at + 1)


def go_on(conversation: Conversation, *messages: Message, tokens: int = 0) -> Conversation:
    """Append messages, and write what has changed."""
    for message in messages:
        conversation.append(message)
    conversation.tokens += tokens
    conversation.write()
    return conversation


@pytest.fixture
def files(tmp_path: Path) -> ConversationFiles:
    return ConversationFiles.of(tmp_path / "instance", "coder")


@pytest.fixture
def kept(files: ConversationFiles) -> ConversationFiles:
    """The files after two Turns, the second of which has changed what the first has said."""
    first = go_on(begun(files, "t1", 1_000), said("a"), said("b"), tokens=70)
    go_on(first, said("c"), tokens=30)
    second = begun(files, "t2", 2_000)
    second.emit({"type": "replace", "targetId": "a", "message": said("A", "shorter").to_wire()})
    second.emit({"type": "remove", "targetId": "b"})
    go_on(second, said("d"), tokens=30)
    return files


def test_next_turn_begins_with_what_earlier_turns_left(kept: ConversationFiles) -> None:
    assert names(kept.read()) == ["A", "c", "d"]
    third = begun(kept, "t3", 3_000)
    assert (names(third), third.tokens_before) == (["A", "c", "d"], 130)
    assert third.next_messages[0].data["content"] == "shorter"


def test_turn_run_again_begins_with_same_base(kept: ConversationFiles) -> None:
    again = begun(kept, "t2", 2_500)
    assert (names(again), again.tokens_before) == (["a", "b", "c"], 100)
    once_more = begun(kept, "t2", 2_600)
    assert (names(once_more), once_more.tokens_before) == (["a", "b", "c"], 100)


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([{"type": "truncate"}], []),
        ([{"type": "truncate"}, {"type": "append", "message": said("e").to_wire()}], ["e"]),
        ([{"type": "append", "message": said("c", "again").to_wire()}], ["A", "c", "d"]),
        ([{"type": "remove", "targetId": "unknown"}], ["A", "c", "d"]),
        ([{"type": "replace", "targetId": "c", "message": said("c").to_wire()}], ["A", "c", "d"]),
        ([{"type": "replace", "targetId": "c", "message": said("d").to_wire()}], ["A", "d"]),
    ],
)
def test_events_change_messages_now_and_for_next_turn(
    kept: ConversationFiles, events: list[JsonObject], left: list[str]
) -> None:
    third = begun(kept, "t3", 3_000)
    for event in events:
        third.emit(event)
    assert names(third) == left
    third.write()
    assert names(kept.read()) == left
    assert names(begun(kept, "t4", 4_000)) == left


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"type": "append"}, "append and replace have a message"),
        ({"type": "remove"}, "replace and remove have a targetId"),
        ({"type": "truncate", "targetId": "a"}, "replace and remove have a targetId"),
        ({"type": "add"}, "type"),
        ({"type": "append", "message": said("x", role="robot").to_wire()}, "role"),
        ({"type": "append", "message": said("x", {"text": "y"}).to_wire()}, "content"),
        (
            {"type": "append", "message": said("x", [{"type": "text", "text": float("nan")}]).to_wire()},
            "not JSON",
        ),
    ],
)
def test_event_that_is_not_valid_changes_nothing(
    kept: ConversationFiles, event: JsonObject, why: str
) -> None:
    third = begun(kept, "t3", 3_000)
    with pytest.raises(ValueError, match=f"(?i){why}"):
        third.emit(event)
    assert names(third) == names(kept.read()) == ["A", "c", "d"]


def test_unwritable_events_stay_pending_and_are_written_once(kept: ConversationFiles) -> None:
    third = begun(kept, "t3", 3_000)
    third.append(said("e"))
    assert names(kept.read()) == ["A", "c", "d"]
    file = kept.directory / "events-3000.jsonl"
    file.mkdir()
    with pytest.raises(OSError, match="directory"):
        third.write()
    file.rmdir()
    third.append(said("f"))
    third.write()
    third.end()
    assert names(kept.read()) == ["A", "c", "d", "e", "f"]
    assert file.read_bytes().count(b"\n") == 2


def test_full_disk_leaves_no_part_of_line(kept: ConversationFiles) -> None:
    third = begun(kept, "t3", 3_000)
    third.append(said("e", "x" * 1_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            third.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(kept.read()) == ["A", "c", "d"]
    third.end()
    assert names(kept.read()) == ["A", "c", "d", "e"]


def test_messages_with_same_id_are_all_kept(files: ConversationFiles) -> None:
    go_on(begun(files, "t1", 1_000), *[said("yes")] * 3)
    assert names(begun(files, "t2", 2_000)) == ["yes", "yes~2", "yes~3"]


def test_without_file_it_is_in_memory_alone() -> None:
    conversation = Conversation()
    go_on(conversation, said("a"), tokens=5).end()
    assert names(conversation) == ["a"]


# --- crashes


class CrashError(Exception):
    """The worker dies here."""


def crashing(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let the process die at the n-th change of the disk."""
    changes = iter(range(1_000))
    unlink = os.unlink

    def or_die(change: Callable[..., None]) -> Callable[..., None]:
        def changed(*args: Any, **options: Any) -> None:
            if next(changes) == at:
                raise CrashError
            change(*args, **options)

        return changed

    monkeypatch.setattr(module, "write_whole", or_die(write_whole))
    monkeypatch.setattr(os, "unlink", or_die(unlink))


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("following", ["t3", "t4"])
def test_crash_anywhere_in_begin_loses_nothing(
    kept: ConversationFiles, monkeypatch: pytest.MonkeyPatch, at: int, following: str
) -> None:
    with monkeypatch.context() as patched:
        crashing(patched, at)
        if at < 3:
            with pytest.raises(CrashError):
                begun(kept, "t3", 3_000)
        else:  # there are three changes: a file is written, two are removed
            begun(kept, "t3", 3_000)
    assert names(kept.read()) == ["A", "c", "d"]
    third = begun(kept, following, 4_000)
    assert (names(third), third.tokens_before) == (["A", "c", "d"], 130)
    assert sorted(module._names(kept.directory)) == ["base-4000.jsonl"]


def test_only_half_written_files_of_dead_worker_are_removed(kept: ConversationFiles) -> None:
    for name in (".0123456789abcdef.tmp", "events-2500.jsonl", "base-2000.jsonl.bak", "notes.txt"):
        (kept.directory / name).write_text("{")
    begun(kept, "t3", 3_000)
    left = ["base-2000.jsonl.bak", "base-3000.jsonl", "notes.txt"]
    assert sorted(module._names(kept.directory)) == left


def test_incompletely_written_line_is_left_out(kept: ConversationFiles) -> None:
    with (kept.directory / "events-2000.jsonl").open("ab") as file:
        file.write(b'{"type":"append","message":{"id":"to')
    assert names(kept.read()) == ["A", "c", "d"]
    assert names(begun(kept, "t3", 3_000)) == ["A", "c", "d"]


# --- frozen workers


def test_worker_frozen_inside_begin_cannot_undo_newer_turns(
    kept: ConversationFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_late(path: str, data: bytes, **options: Any) -> None:
        if path == "base-3000.jsonl":  # it has read all, and sleeps until now
            go_on(begun(kept, "t3", 4_000), said("e"))
            go_on(begun(kept, "t4", 5_000), said("f"))
        write_whole(path, data, **options)

    monkeypatch.setattr(module, "write_whole", write_late)
    frozen = begun(kept, "t3", 3_000)
    go_on(frozen, said("late"), tokens=1_000_000)
    assert names(kept.read()) == ["A", "c", "d", "e", "f"]
    fifth = begun(kept, "t5", 6_000)
    assert (names(fifth), fifth.tokens_before) == (["A", "c", "d", "e", "f"], 130)
    assert sorted(module._names(kept.directory)) == ["base-6000.jsonl"]


def test_worker_frozen_before_begin_cannot_begin(kept: ConversationFiles) -> None:
    go_on(begun(kept, "t3", 4_000), said("e"))
    with pytest.raises(ConversationError, match="a newer run of a Turn has begun"):
        kept.begin("t3", claimed_at=3_000, now=9_000)
    assert names(kept.read()) == ["A", "c", "d", "e"]


def test_late_writes_of_superseded_run_are_not_read(kept: ConversationFiles) -> None:
    frozen = begun(kept, "t3", 3_000)
    again = begun(kept, "t3", 4_000)
    go_on(again, said("e"))
    go_on(frozen, said("late"), tokens=1_000_000)
    fourth = begun(kept, "t4", 5_000)
    assert (names(fourth), fourth.tokens_before) == (["A", "c", "d", "e"], 130)


def test_turn_begins_although_redis_clock_went_back(kept: ConversationFiles) -> None:
    third = kept.begin("t3", claimed_at=2_000 - HOUR, now=2_000 - HOUR + 1)
    go_on(third, said("e"))
    fourth = kept.begin("t4", claimed_at=2_000 - HOUR / 2, now=2_000 - HOUR / 2 + 1)
    assert names(fourth) == ["A", "c", "d", "e"]


def test_two_runs_may_be_claimed_in_one_millisecond(kept: ConversationFiles) -> None:
    go_on(kept.begin("t3", claimed_at=3_000, now=3_000), said("e"))
    assert names(kept.begin("t4", claimed_at=3_000, now=3_000)) == ["A", "c", "d", "e"]


def test_reader_overtaken_by_next_turn_reads_its_files(
    kept: ConversationFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_names = module._names

    def listed_before(directory: int) -> list[str]:
        found = list_names(directory)
        if "base-2000.jsonl" in found:
            monkeypatch.setattr(module, "_names", list_names)
            go_on(begun(kept, "t3", 3_000), said("e"))
        return found

    monkeypatch.setattr(module, "_names", listed_before)
    assert names(kept.read()) == ["A", "c", "d", "e"]


# --- damage


@pytest.mark.parametrize(
    ("name", "number", "line", "why"),
    [
        ("base-2000.jsonl", 2, b"{", "double quotes"),
        ("base-2000.jsonl", 3, b"[1]", "not an object"),
        ("base-2000.jsonl", 2, b'{"id": "a"}', "data"),
        ("base-2000.jsonl", 2, serializer.encode(said("a", [5]).to_wire()), "a list of parts"),
        ("base-2000.jsonl", 2, serializer.encode(said("a", role="boss").to_wire()), "the role of a message"),
        ("base-2000.jsonl", 1, b'\xff\xfe"', "line 1"),
        ("events-2000.jsonl", 1, b'{"type": "append"}', "a message"),
        ("events-2000.jsonl", 3, b"oops", "a value is expected here"),
        ("base-2000.jsonl", 1, b'{"type": "begin", "tokensBefore": "many"}', "tokensBefore"),
        ("events-2000.jsonl", 2, b'{"type": "usage", "tokens": "many"}', "tokens"),
    ],
)
def test_damaged_line_is_named(
    kept: ConversationFiles, name: str, number: int, line: bytes, why: str
) -> None:
    file = kept.directory / name
    lines = file.read_bytes().split(b"\n")
    lines[number - 1] = line
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(ConversationError, match=why) as caught:
        begun(kept, "t3", 3_000)
    assert f"{name}, line {number}: " in caught.value.message
    assert caught.value.code == "E_CONVERSATION"


@pytest.mark.parametrize("name", ["base-2000.jsonl", "events-2000.jsonl"])
@pytest.mark.parametrize(
    "put",
    [Path.mkdir, os.mkfifo, lambda file: file.symlink_to("/etc/hosts"), lambda file: file.symlink_to(file)],
)
def test_non_file_is_named_without_waiting(
    kept: ConversationFiles, name: str, put: Callable[[Path], object]
) -> None:
    (kept.directory / name).unlink()
    put(kept.directory / name)
    for read in (kept.read, lambda: begun(kept, "t3", 3_000)):
        with pytest.raises(ConversationError, match=name):
            read()


def test_pipe_replacing_events_file_is_not_written_to(kept: ConversationFiles) -> None:
    third = begun(kept, "t3", 3_000)
    assert third.file is not None
    os.mkfifo(third.file.absolute)
    with pytest.raises(OSError, match=third.file.absolute.name):
        go_on(third, said("e"))


def test_number_no_turn_wrote_is_not_read(kept: ConversationFiles) -> None:
    (kept.directory / "base-\u0663\u0663\u0663\u0663\u0663.jsonl").touch()
    assert names(kept.read()) == ["A", "c", "d"]


def test_number_that_is_not_time_does_not_count(kept: ConversationFiles) -> None:
    (kept.directory / f"base-{'9' * 200}.jsonl").write_text("nonsense\n", "utf-8")
    assert names(kept.read()) == ["A", "c", "d"]
    assert names(begun(kept, "t3", 3_000)) == ["A", "c", "d"]


def test_file_may_be_edited_by_hand(kept: ConversationFiles) -> None:
    base = kept.directory / "base-2000.jsonl"
    base.write_bytes(b"\n" + base.read_bytes().rstrip() + b"\n\n")
    assert names(kept.read()) == ["A", "c", "d"]
    base.write_bytes(base.read_bytes().rstrip())  # without an end of line
    assert names(begun(kept, "t3", 3_000)) == ["A", "c", "d"]


def test_file_may_be_moved_away(kept: ConversationFiles) -> None:
    (kept.directory / "events-2000.jsonl").rename(kept.directory / "aside")
    assert names(kept.read()) == ["a", "b", "c"]
    (kept.directory / "base-2000.jsonl").rename(kept.directory / "aside")
    assert names(begun(kept, "t3", 3_000)) == []


def test_values_of_any_kind_survive(files: ConversationFiles) -> None:
    deep: Any = "end"
    for _ in range(300):
        deep = [deep]
    value = {"none": None, "big": 10**40, "text": "\u2028\n\U0001f600", "deep": deep}
    go_on(begun(files, "t1", 1_000), said("a", [{"type": "custom", "value": value}]))
    for number in range(2, 4):
        again = begun(files, f"t{number}", number * 1_000)
        assert again.next_messages[0].data["content"][0]["value"] == value


def test_ten_thousand_messages_are_kept_in_order(files: ConversationFiles) -> None:
    begun(files, "t1", 1_000)
    expected = [f"m{number}" for number in range(10_000)]
    lines = (
        f'{{"id":"{name}","data":{{"role":"user"}},"createdAt":"","source":{{}}}}\n' for name in expected
    )
    (files.directory / "base-1000.jsonl").write_text("".join(lines))
    go_on(begun(files, "t2", 2_000), said("last"))
    assert names(begun(files, "t3", 3_000)) == [*expected, "last"]


def test_agents_sharing_instance_key_have_separate_conversations(tmp_path: Path) -> None:
    coder, reviewer = (ConversationFiles.of(tmp_path, agent) for agent in ("coder", "reviewer-0-x"))
    go_on(begun(coder, "t1", 1_000), said("a"))
    go_on(begun(reviewer, "t1", 1_000), said("b"))
    assert (names(coder.read()), names(reviewer.read())) == (["a"], ["b"])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_link_on_way_to_conversation_is_followed(
    kept: ConversationFiles, tmp_path: Path, depth: int
) -> None:
    begin = kept.begin("turn-9", claimed_at=9_000, now=9_000)
    begin.append(begin.base_messages[0])
    place = [kept.directory, *kept.directory.parents][depth - 1]
    other = tmp_path / "other"
    place.rename(other)
    place.symlink_to(other)
    before = sorted((file, file.read_bytes()) for file in other.rglob("*.jsonl"))

    with pytest.raises(OSError):
        begin.write()
    with pytest.raises(ConversationError):
        kept.read()
    with pytest.raises(OSError):
        kept.begin("turn-10", claimed_at=10_000, now=10_000)
    assert sorted((file, file.read_bytes()) for file in other.rglob("*.jsonl")) == before

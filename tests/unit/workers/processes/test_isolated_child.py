"""The parts of an isolated child: its channel, its logger, and the process state between calls."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from goondan_tasks.contract.errors import ToolCrashedError
from goondan_tasks.contract.messages import JsonObject
from workers.processes.isolated_child import (
    ChannelHandler,
    ChannelLogger,
    ChildChannel,
    IsolatedChild,
    ProcessState,
)


@pytest.fixture
def ends() -> Iterator[tuple[ChildChannel, ChildChannel]]:
    near, far = (ChildChannel(connection) for connection in socket.socketpair())
    yield near, far
    near.close()
    far.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[ChildChannel, ChildChannel]) -> None:
    near, far = ends
    for message in (b"first", b"", b"\0second\n"):
        near.send(message)
    assert [far.receive() for _ in range(3)] == [b"first", b"", b"\0second\n"]


def test_a_message_larger_than_the_sockets_buffer_arrives(ends: tuple[ChildChannel, ChildChannel]) -> None:
    near, far = ends
    message = bytes(range(256)) * 20_000
    sender = threading.Thread(target=near.send, args=(message,))
    sender.start()
    assert far.receive(monotonic() + 30) == message
    sender.join()


def test_messages_of_several_threads_do_not_mix(ends: tuple[ChildChannel, ChildChannel]) -> None:
    near, far = ends
    messages = [bytes([65 + n]) * 300_000 for n in range(5)]
    senders = [threading.Thread(target=near.send, args=(message,)) for message in messages]
    for sender in senders:
        sender.start()
    assert sorted(far.receive(monotonic() + 30) for _ in messages) == messages
    for sender in senders:
        sender.join()


def test_nobody_is_waited_for_beyond_the_end(ends: tuple[ChildChannel, ChildChannel]) -> None:
    near, far = ends
    with pytest.raises(TimeoutError):
        near.receive(monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        near.receive(monotonic() - 1)
    with pytest.raises(TimeoutError):
        near.send(bytes(10_000_000), monotonic() + 0.05)
    assert far.is_open()


def test_an_end_in_years_is_no_error(ends: tuple[ChildChannel, ChildChannel]) -> None:
    near, far = ends
    near.send(b"soon", monotonic() + 1e9)
    assert far.receive(monotonic() + 1e9) == b"soon"


def test_child_whose_worker_dies_during_a_call_ends_without_an_error(
    ends: tuple[ChildChannel, ChildChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = ends
    child = IsolatedChild(far, Path("tool.py"), ChannelHandler(far))

    def answer(order: JsonObject) -> bytes:
        near.close()
        return b"too late"

    monkeypatch.setattr(child, "_answer", answer)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    near.send(b"{}")
    child.serve()


def test_a_closed_end_is_told(ends: tuple[ChildChannel, ChildChannel]) -> None:
    near, far = ends
    assert near.is_open()
    far.close()
    assert not near.is_open()
    with pytest.raises(ConnectionError):
        near.receive()
    with pytest.raises(ConnectionError):
        near.send(b"anybody there?")


def test_a_message_beyond_the_limit_is_refused_before_it_is_read() -> None:
    near, connection = socket.socketpair()
    far = ChildChannel(connection, max_message_bytes=10)
    with near:
        near.sendall(b"\0" * 7 + b"\x0a" + b"ten bytes!" + b"\x10" + b"\0" * 7)
        assert far.receive() == b"ten bytes!"
        with pytest.raises(ToolCrashedError, match="at most 10 are allowed"):
            far.receive()
    far.close()


def test_half_a_message_is_not_a_message() -> None:
    near, connection = socket.socketpair()
    with near:
        near.sendall(b"\0" * 7 + b"\x0a" + b"half")
    far = ChildChannel(connection)
    assert far.is_open()
    with pytest.raises(ConnectionError):
        far.receive()
    far.close()


def test_each_level_is_handed_on_with_its_fields() -> None:
    lines = list[list[Any]]()
    logger = ChannelLogger(lines.append)
    logger.debug("a")
    logger.info("b.%s", "c", n=1)
    logger.warning("100%", nested={"list": [None, True]})
    logger.error("d")
    assert lines == [
        ["debug", "a", {}],
        ["info", "b.c", {"n": 1}],
        ["warning", "100%", {"nested": {"list": [None, True]}}],
        ["error", "d", {}],
    ]


def test_fields_without_a_json_form_are_shown_as_python_shows_them() -> None:
    lines = list[list[Any]]()
    ChannelLogger(lines.append).info("odd", number=float("nan"), kind={1})
    assert lines == [["info", "odd", {"number": "nan", "kind": "{1}"}]]


def test_an_exception_becomes_text() -> None:
    lines = list[list[Any]]()
    logger = ChannelLogger(lines.append)
    try:
        raise ValueError("cold")
    except ValueError as error:
        logger.warning("a", exc_info=True)
        logger.error("b", exc_info=error)
    for _, _, fields in lines:
        assert fields["exception"].startswith("Traceback")
        assert fields["exception"].endswith("ValueError: cold")


@pytest.fixture
def state() -> Iterator[ProcessState]:
    state = ProcessState.now()
    yield state
    state.restore()
    os.close(state.directory)


def test_everything_is_put_back(state: ProcessState, tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    os.environ["LEFT"] = "behind"
    del os.environ["PATH"]
    os.umask(0o077)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(100)
    state.restore()
    assert Path.cwd() == before
    assert dict(os.environ) == state.environment
    assert os.umask(state.umask) == state.umask
    assert signal.getsignal(signal.SIGTERM) == state.on_sigterm
    assert signal.alarm(0) == 0


def test_a_directory_that_was_moved_is_found_again(tmp_path: Path, state: ProcessState) -> None:
    place = tmp_path / "place"
    place.mkdir()
    os.chdir(place)
    there = ProcessState.now()
    os.chdir("/")
    place.rename(tmp_path / "elsewhere")
    there.restore()
    assert Path.cwd() == tmp_path / "elsewhere"
    os.close(there.directory)

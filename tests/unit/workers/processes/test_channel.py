"""The socket between a worker and an isolated child."""

import socket
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from goondan_tasks.contract.errors import ToolCrashedError
from workers.processes.channel import ChildChannel


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


def test_message_larger_than_sockets_buffer_arrives(ends: tuple[ChildChannel, ChildChannel]) -> None:
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


def test_nobody_is_waited_for_beyond_end(ends: tuple[ChildChannel, ChildChannel]) -> None:
    near, far = ends
    with pytest.raises(TimeoutError):
        near.receive(monotonic() + 0.05)
    with pytest.raises(TimeoutError):
        near.receive(monotonic() - 1)
    with pytest.raises(TimeoutError):
        near.send(bytes(10_000_000), monotonic() + 0.05)
    assert far.is_open()


def test_end_in_years_is_no_error(ends: tuple[ChildChannel, ChildChannel]) -> None:
    near, far = ends
    near.send(b"soon", monotonic() + 1e9)
    assert far.receive(monotonic() + 1e9) == b"soon"


def test_closed_end_of_channel_is_detected(ends: tuple[ChildChannel, ChildChannel]) -> None:
    near, far = ends
    assert near.is_open()
    far.close()
    assert not near.is_open()
    with pytest.raises(ConnectionError):
        near.receive()
    with pytest.raises(ConnectionError):
        near.send(b"anybody there?")


def test_oversized_message_is_refused_before_reading() -> None:
    near, connection = socket.socketpair()
    far = ChildChannel(connection, max_message_bytes=10)
    with near:
        near.sendall(b"\0" * 7 + b"\x0a" + b"ten bytes!" + b"\x10" + b"\0" * 7)
        assert far.receive() == b"ten bytes!"
        with pytest.raises(ToolCrashedError, match="at most 10 are allowed"):
            far.receive()
    far.close()


def test_half_message_is_not_message() -> None:
    near, connection = socket.socketpair()
    with near:
        near.sendall(b"\0" * 7 + b"\x0a" + b"half")
    far = ChildChannel(connection)
    assert far.is_open()
    with pytest.raises(ConnectionError):
        far.receive()
    far.close()

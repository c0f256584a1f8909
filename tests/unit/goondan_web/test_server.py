"""Slow clients, too many of them, and what is no HTTP."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from goondan_web.door import Access, Door
from goondan_web.guard import MAX_HEAD_BYTES
from goondan_web.server import ImpatientProtocol, served
from tests.unit.goondan_web.doors_for_tests import application, counting_door
from tests.waiting import wait_until


@contextmanager
def started(monkeypatch: pytest.MonkeyPatch, **limits: float) -> Iterator[tuple[str, int]]:
    """Serve an application that reads the whole body; yield its address."""
    for name, value in limits.items():
        monkeypatch.setattr(f"goondan_web.server.{name}", value)
    door = counting_door(Access.OWN)
    with socket.create_server(("127.0.0.1", 0)) as server, served(application(door), server):
        yield server.getsockname()


def received(address: tuple[str, int], *parts: bytes) -> bytes:
    """Send parts of a request, and return what comes until the connection is closed."""
    with socket.create_connection(address, timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
        data = b""
        while piece := connection.recv(65_536):
            data += piece
        return data


WHOLE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


@pytest.mark.parametrize("part", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\nX-More: "])
def test_connection_without_whole_request_is_closed(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(monkeypatch, HEAD_SECONDS=0.2) as address:
        assert received(address, part).startswith(b"HTTP/1.1 408 Request Timeout")


def test_second_request_that_stops_halfway_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        started(monkeypatch, HEAD_SECONDS=0.5) as address,
        socket.create_connection(address, timeout=30) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(WHOLE)
        assert b"200 OK" in answers.readline()
        while answers.readline().strip():
            pass
        assert answers.read(len(b"5 bytes")) == b"5 bytes"
        connection.sendall(b"GET / HTTP/1.1\r\n")
        data = answers.read()

    assert data.startswith(b"HTTP/1.1 408 Request Timeout")


def test_body_that_stops_halfway_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with started(monkeypatch, BODY_SECONDS=0.2) as address:
        assert b"bytes" not in received(address, WHOLE[:-1])


def test_answer_that_is_not_read_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    megabytes, ended = 64, threading.Event()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            for _ in range(megabytes):
                yield bytes(1_000_000)
        finally:
            ended.set()

    async def stream(_: Request) -> StreamingResponse:
        return StreamingResponse(pieces())

    door = Door("stream", "/", [Route("/", stream)], Access.OWN)
    monkeypatch.setattr("goondan_web.server.UNREAD_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        served(application(door), server),
        socket.create_connection(server.getsockname(), timeout=30) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

        assert ended.wait(30)


def test_excess_connection_is_closed_later_ones_served(monkeypatch: pytest.MonkeyPatch) -> None:
    request = WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: close")

    with started(monkeypatch, MAX_CONNECTIONS=1) as address:
        with socket.create_connection(address) as first:
            first.sendall(WHOLE)
            assert b"200 OK" in first.recv(65_536)
            try:
                refused = received(address, request)
            except ConnectionError:
                refused = b""
            assert refused == b""

        def is_served() -> bool:
            try:
                return b"5 bytes" in received(address, request)
            except ConnectionError:
                return False

        wait_until(is_served)


def test_no_write_waits_for_acknowledgement_of_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Noted(ImpatientProtocol):
        def data_received(self, data: bytes) -> None:
            connection = self.transport.get_extra_info("socket")
            seen.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            super().data_received(data)

    monkeypatch.setattr("goondan_web.server.ImpatientProtocol", Noted)
    with started(monkeypatch) as address:
        received(address, WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    assert seen
    assert all(seen)


@pytest.mark.parametrize("part", [b"POST / HTTP/1.1\r\nX: %b", b"%b"])
def test_head_that_never_ends_is_answered(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(monkeypatch) as address:
        head, _, body = received(address, part % (b"X" * (MAX_HEAD_BYTES + 1))).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "E_REQUEST"


def test_request_that_is_not_http_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with started(monkeypatch) as address:
        head, _, body = received(address, b"no HTTP\r\n\r\n").partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    assert json.loads(body)["error"]["code"] == "E_REQUEST"


def test_unanswered_request_at_shutdown_gets_common_form_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goondan_web.server.GRACE_SECONDS", 0.1)
    has_begun, answers = threading.Event(), list[bytes]()

    async def wait(_: Request) -> Response:
        has_begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    door = Door("waits", "/", [Route("/", wait)], Access.OWN)
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        with served(application(door), server):
            asking = threading.Thread(target=lambda: answers.append(received(server.getsockname(), request)))
            asking.start()
            assert has_begun.wait(30)
        asking.join(30)

    head, _, body = answers[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable")
    assert b"retry-after" in head.lower()
    assert json.loads(body)["error"]["code"] == "E_REQUEST"

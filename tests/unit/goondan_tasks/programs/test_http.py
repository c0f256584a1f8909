"""Our HTTP servers: which requests they accept."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.programs.http import guarded, served
from tests.waiting import wait_until


def status(host: str = "127.0.0.1", headers: dict[str, str] | None = None, **settings: Any) -> int:
    """Ask a guarded application and return the HTTP status."""
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("in"))])
    door = guarded(app, Settings.load(**settings), host)
    answer = TestClient(door, base_url="http://127.0.0.1:8765").get("/", headers=headers or {})
    if answer.status_code == 200:
        assert answer.text == "in"
    else:
        assert answer.json()["error"]["message"]
    return answer.status_code


@pytest.mark.parametrize("origin", ["http://localhost", "http://127.0.0.1:3000", "https://[::1]:1"])
def test_pages_of_this_machine_may_ask_a_server_that_only_it_can_reach(origin: str) -> None:
    assert status(headers={"Origin": origin}) == 200
    assert status("0.0.0.0", {"Origin": origin, "Authorization": "Bearer t"}, http_token="t") == 403


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://127.0.0.1.evil.example",
        "null",
        "",
        "http://",
        "http://[",
        "x:y:z",
    ],
)
def test_pages_of_other_sites_may_not(origin: str) -> None:
    assert status(headers={"Origin": origin}) == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8765", "", "[", "10.0.0.1"])
def test_a_name_that_is_made_to_point_here_is_refused(host: str) -> None:
    assert status(headers={"Host": host}) == 403


@pytest.mark.parametrize(
    "shown", ["", "t0ken", "Bearer", "Bearer ", "Bearer T0KEN", "Bearer t0ken2", "Basic t0ken"]
)
def test_request_without_the_right_token_is_refused(shown: str) -> None:
    assert status(headers={"Authorization": shown}, http_token="t0ken") == 401


def test_with_the_token_any_name_of_the_server_will_do() -> None:
    shown = {"Authorization": "bearer t0ken", "Host": "tools.example"}

    assert status("0.0.0.0", shown, http_token="t0ken") == 200


def test_pages_of_the_public_url_may_ask() -> None:
    settings = {"http_token": "t", "public_url": "https://tools.example/some/path"}
    shown = {"Authorization": "Bearer t"}

    assert status("0.0.0.0", {**shown, "Origin": "https://tools.example"}, **settings) == 200
    assert status("0.0.0.0", {**shown, "Origin": "http://tools.example"}, **settings) == 403
    assert status("0.0.0.0", {**shown, "Origin": "https://tools.example:444"}, **settings) == 403


@pytest.mark.parametrize("public_url", ["https://Tools.Example", "https://tools.example:443/path"])
def test_the_public_url_may_be_written_as_no_browser_does(public_url: str) -> None:
    shown = {"Authorization": "Bearer t", "Origin": "https://tools.example"}

    assert status("0.0.0.0", shown, http_token="t", public_url=public_url) == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "tools.example", ""])
def test_others_than_this_machine_are_not_served_without_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="no token is set"):
        status(host)


@contextmanager
def started(monkeypatch: pytest.MonkeyPatch, **limits: float) -> Iterator[tuple[str, int]]:
    """Serve an application that reads the whole body; yield its address."""
    for name, value in limits.items():
        monkeypatch.setattr(f"goondan_tasks.programs.http.{name}", value)

    async def read(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{len(await request.body())} bytes")

    app = Starlette(routes=[Route("/", read, methods=["GET", "POST"])])
    with socket.create_server(("127.0.0.1", 0)) as server, served(app, server):
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
def test_a_connection_without_a_whole_request_is_closed(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(monkeypatch, HEAD_SECONDS=0.2) as address:
        assert received(address, part).startswith(b"HTTP/1.1 408 Request Timeout")


def test_a_second_request_that_stops_halfway_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_body_that_stops_halfway_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with started(monkeypatch, BODY_SECONDS=0.2) as address:
        assert b"bytes" not in received(address, WHOLE[:-1])


def test_a_connection_too_many_is_closed_and_later_ones_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
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

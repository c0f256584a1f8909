import asyncio
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.contract.errors import ToolError, ToolInputValidationError, ToolTimeoutError
from tests.unit.workers.builtin.conftest import CallTool
from tests.unit.workers.builtin.local_server import LocalServer
from workers.builtin import http_fetch

pytestmark = pytest.mark.usefixtures("loopback_allowed")

RESULT_KEYS = ["url", "method", "status", "statusText", "headers", "body", "truncated", "durationMs"]


@pytest.mark.requirement("builtin.http-fetch.get")
def test_get_returns_status_headers_and_body(call: CallTool, server: LocalServer) -> None:
    server.answer("/page?q=1", "héllo".encode(), headers={"X-One": "1", "Content-Type": "text/plain"})

    result = call(
        "http-fetch__get", url=f"{server.url}/page?q=1", headers={"X-Token": "t", "N": 1.5, "B": True}
    )

    assert list(result) == RESULT_KEYS
    assert (result["url"], result["method"]) == (f"{server.url}/page?q=1", "GET")
    assert (result["status"], result["statusText"]) == (200, "OK")
    assert result["headers"]["x-one"] == "1"
    assert (result["body"], result["truncated"]) == ("héllo", False)
    [seen] = server.seen
    assert (seen.headers["x-token"], seen.headers["n"], seen.headers["b"]) == ("t", "1.5", "true")
    assert seen.headers["user-agent"] == "goondan-http-fetch"
    assert seen.headers["host"] == f"127.0.0.1:{server.port}"


@pytest.mark.requirement("builtin.http-fetch.post")
def test_post_sends_object_as_json(call: CallTool, server: LocalServer) -> None:
    result = call("http-fetch__post", url=server.url, body={"a": ["é", None]}, bodyString="ignored")

    assert (result["method"], result["body"]) == ("POST", "hello")
    [seen] = server.seen
    assert (seen.method, json.loads(seen.body)) == ("POST", {"a": ["é", None]})
    assert seen.headers["content-type"] == "application/json"


@pytest.mark.requirement("builtin.http-fetch.post")
def test_post_keeps_given_content_type(call: CallTool, server: LocalServer) -> None:
    call("http-fetch__post", url=server.url, body={}, headers={"Content-Type": "application/vnd.x+json"})

    assert server.seen[0].headers["content-type"] == "application/vnd.x+json"


@pytest.mark.parametrize(("args", "sent"), [({"bodyString": "a=é"}, "a=é"), ({}, "")])
def test_post_sends_text_unchanged(
    call: CallTool, server: LocalServer, args: dict[str, str], sent: str
) -> None:
    call("http-fetch__post", url=server.url, **args)

    assert server.seen[0].body.decode() == sent
    assert "content-type" not in server.seen[0].headers


@pytest.mark.parametrize("status", [204, 404, 500])
def test_any_status_is_normal_result(call: CallTool, server: LocalServer, status: int) -> None:
    server.answer("/", status=status)

    assert call("http-fetch__get", url=server.url)["status"] == status


def test_redirects_are_followed_and_last_url_is_returned(call: CallTool, server: LocalServer) -> None:
    server.answer("/a", status=301, headers={"Location": "/b"})
    server.answer("/b", status=307, headers={"Location": f"{server.url}/c"})

    result = call("http-fetch__get", url=f"{server.url}/a")

    assert (result["url"], result["body"], result["status"]) == (f"{server.url}/c", "hello", 200)


@pytest.mark.parametrize(("status", "method", "body"), [(303, "GET", b""), (307, "POST", b"text")])
def test_post_is_redirected_as_status_says(
    call: CallTool, server: LocalServer, status: int, method: str, body: bytes
) -> None:
    server.answer("/a", status=status, headers={"Location": "/b"})

    result = call("http-fetch__post", url=f"{server.url}/a", bodyString="text")

    assert result["method"] == method
    assert (server.seen[1].method, server.seen[1].body) == (method, body)


def test_authorization_is_not_sent_to_another_origin(
    call: CallTool, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOONDAN_HTTP_ALLOW", "127.0.0.1,localhost")
    server.answer("/a", status=302, headers={"Location": f"http://localhost:{server.port}/b"})

    call("http-fetch__get", url=f"{server.url}/a", headers={"Authorization": "Bearer secret"})

    assert [request.headers.get("authorization") for request in server.seen] == ["Bearer secret", None]


def test_endless_redirects_are_error(call: CallTool, server: LocalServer) -> None:
    server.answer("/", status=302, headers={"Location": "/"})

    with pytest.raises(ToolError, match="More than 20 redirects"):
        call("http-fetch__get", url=server.url)

    assert len(server.seen) == 21


def test_refused_connection_is_error(call: CallTool) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        with pytest.raises(ToolError, match=f"GET http://127.0.0.1:{port}/ failed"):
            call("http-fetch__get", url=f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("place", ["127.0.0.1:1/", "127.0.0.1:99999/"])
def test_password_in_url_is_hidden_in_error(call: CallTool, place: str) -> None:
    with pytest.raises(ToolError) as told:
        call("http-fetch__get", url=f"http://joe:hunter2@{place}")

    assert f"http://***@{place}" in told.value.message
    assert "hunter2" not in told.value.message


@pytest.mark.parametrize(
    "url", ["example.com", "http://", "http:///x", "/x", "http://127.0.0.1:0/", "http://[::1", "x" * 70_000]
)
def test_invalid_url_is_error(call: CallTool, url: str) -> None:
    with pytest.raises(ToolError, match=r"Invalid URL|failed"):
        call("http-fetch__get", url=url)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1:70/", "data:,x"]
)
def test_other_protocols_are_refused(call: CallTool, url: str) -> None:
    scheme = url.partition(":")[0]
    with pytest.raises(
        ToolError, match=f"Unsupported protocol '{scheme}:'. Only http: and https: are allowed."
    ):
        call("http-fetch__get", url=url)


@pytest.mark.parametrize(
    "headers", [{"Bad Name": "x"}, {"X": "a\r\nInjected: yes"}, {"X": "한"}, {"한": "x"}]
)
def test_invalid_header_is_error(call: CallTool, server: LocalServer, headers: dict[str, str]) -> None:
    with pytest.raises(ToolError):
        call("http-fetch__get", url=server.url, headers=headers)

    assert server.seen == []


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(1_200):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)


def test_timeout_covers_body_too(call: CallTool, server: LocalServer) -> None:
    server.routes["/"] = drip
    started = time.monotonic()

    with pytest.raises(ToolTimeoutError, match=f"No complete answer within 300 ms: GET {server.url}"):
        call("http-fetch__get", url=server.url, timeoutMs=300)

    assert time.monotonic() - started < 30, "it drips for a minute"


def test_silent_server_after_accept_runs_into_timeout(call: CallTool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"

        with pytest.raises(ToolTimeoutError):
            call("http-fetch__get", url=url, timeoutMs=200)


@pytest.mark.parametrize("timeout_ms", [0, -5, 1e300, 10**400])
def test_zero_negative_or_huge_timeout_is_ignored(
    call: CallTool, server: LocalServer, timeout_ms: float
) -> None:
    assert call("http-fetch__get", url=server.url, timeoutMs=timeout_ms)["body"] == "hello"


def test_cancelled_call_hangs_up(context: ToolContext, server: LocalServer) -> None:
    server.routes["/"] = drip

    async def cancelled() -> None:
        async with asyncio.timeout(0.2):
            await http_fetch.get(context, {"url": server.url, "timeoutMs": 0})

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())


def test_many_calls_overlap_on_one_event_loop(context: ToolContext, server: LocalServer) -> None:
    all_have_asked = threading.Barrier(20)

    def slow(handler: BaseHTTPRequestHandler) -> None:
        all_have_asked.wait(30)
        server.answer("/fast", b"hello")
        server.routes["/fast"](handler)

    server.routes["/"] = slow

    async def twenty() -> list[Any]:
        return await asyncio.gather(*(http_fetch.get(context, {"url": server.url}) for _ in range(20)))

    results = asyncio.run(twenty())

    assert [result["body"] for result in results] == ["hello"] * 20


def test_oversized_response_headers_are_error(call: CallTool, server: LocalServer) -> None:
    server.answer("/", headers={"X-Large": "x" * 1_000_000})

    with pytest.raises(ToolError, match="failed"):
        call("http-fetch__get", url=server.url)


def test_answer_that_is_not_http_is_error(call: CallTool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as redis_like:
        port = redis_like.getsockname()[1]

        async def fetch() -> None:
            loop = asyncio.get_running_loop()
            fetching = asyncio.create_task(http_fetch.get(None, {"url": f"http://127.0.0.1:{port}/"}))  # type: ignore[arg-type]
            connection, _ = await loop.run_in_executor(None, redis_like.accept)
            connection.sendall(b"-ERR unknown command\r\n")
            connection.close()
            await fetching

        with pytest.raises(ToolError, match="failed"):
            asyncio.run(fetch())


@pytest.mark.parametrize("args", [{"body": "text"}, {"body": [1]}, {"bodyString": 1}, {"json": {}}])
def test_post_refuses_wrong_and_extra_arguments(call: CallTool, args: dict[str, Any]) -> None:
    with pytest.raises(ToolInputValidationError):
        call("http-fetch__post", url="http://127.0.0.1/", **args)

"""What the application answers outside its doors, what it logs, and how doors live in it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    CallNotFoundError,
    ConfigError,
    ToolError,
    UnconfirmedError,
)
from goondan_tasks.contract.names import public_paths
from goondan_web import application as http_application
from goondan_web.application import make_application
from goondan_web.door import Access, Door
from tests.unit.goondan_web.doors_for_tests import application, counting_door


def failing_client(error: Exception) -> TestClient:
    """Return a client of a door that fails."""

    async def fail(_: Request) -> Response:
        raise error

    door = Door("fails", "/", [Route("/", fail)], Access.OWN)
    return TestClient(application(door, help_url="https://help/"), raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (CallNotFoundError(), 404, "E_CALL_NOT_FOUND"),
        (BrokerUnreachableError("Redis at redis://secret"), 503, "E_BROKER_UNREACHABLE"),
        (UnconfirmedError(suggestion="secret"), 503, "E_NOT_CONFIRMED"),
        (ToolError("its own", code="E_OWN"), 500, "E_OWN"),
        (ZeroDivisionError("secret"), 500, "E_GOONDAN"),
    ],
)
def test_door_error_has_status_and_common_form(error: Exception, status: int, code: str) -> None:
    answer = failing_client(error).get("/")

    described = answer.json()["error"]
    assert (answer.status_code, described["code"]) == (status, code)
    assert described["suggestion"]
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/no-such-path", 404, "E_NOT_FOUND"), ("DELETE", "/", 405, "E_REQUEST")],
)
def test_request_for_no_route_has_same_form(method: str, path: str, status: int, code: str) -> None:
    answer = TestClient(application(counting_door(Access.OWN))).request(method, path)

    assert answer.status_code == status
    assert answer.json()["error"] | {"message": "", "suggestion": ""} == {
        "code": code,
        "name": answer.json()["error"]["name"],
        "message": "",
        "suggestion": "",
        "helpUrl": f"https://docs.goondan.ai/errors/{code}",
    }


def test_interrupted_answer_stays_unended_without_server_fault() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"begun"
        raise ToolError("gone")

    async def stream(_: Request) -> Response:
        return StreamingResponse(parts())

    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return await asyncio.Event().wait()  # the client stays

    guarded = application(Door("streams", "/", [Route("/", stream)], Access.OWN))
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    with structlog.testing.capture_logs() as logs:
        asyncio.run(guarded(scope, receive, send))

    assert [message.get("body", b"") for message in sent] == [b"", b"begun"]
    assert sent[-1]["more_body"]
    assert [(line["event"], line.get("code")) for line in logs] == [
        ("http.cut", "E_TOOL"),
        ("http.request", None),
    ]


def test_probes_report_redis_without_token_or_host() -> None:
    faults: list[BrokerUnreachableError] = []

    def ready() -> None:
        for fault in faults:
            raise fault

    app = make_application([counting_door()], Settings.load(http_token="t"), "0.0.0.0", ready)
    client = TestClient(app, base_url="http://10.0.0.7")

    before = client.get("/readyz").status_code
    faults.append(BrokerUnreachableError())

    assert (client.get("/healthz").status_code, before) == (200, 200)
    assert (client.get("/readyz").status_code, client.get("/healthz").status_code) == (503, 200)


def test_probe_does_not_wait_for_frozen_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_application, "READY_SECONDS", 0.01)
    thawed = threading.Event()

    def ready() -> None:
        thawed.wait()

    app = make_application([counting_door()], Settings.load(http_token="t"), "0.0.0.0", ready)
    with TestClient(app, base_url="http://10.0.0.7") as client:
        answer = client.get("/readyz")
        alive = client.get("/healthz").status_code
        thawed.set()
    assert (answer.status_code, answer.json()["error"]["code"], alive) == (503, "E_BROKER_UNREACHABLE", 200)


def logged(client: TestClient, method: str, path: str, **sent: Any) -> Any:
    """Send a request and return the line that it is logged with."""
    with structlog.testing.capture_logs() as logs:
        client.request(method, path, **sent)
    [line] = logs
    return line


def test_request_is_logged_once_without_possible_secrets() -> None:
    client = TestClient(application(counting_door(Access.OWN, path="/calls/{token}")))

    line = logged(client, "POST", "/calls/s3cret?code=s3cret", content=b"s3cret!")

    assert line.pop("ms") >= 0
    assert line == {
        "event": "http.request",
        "log_level": "info",
        "method": "POST",
        "path": "/calls/{token}",
        "status": 200,
        "bytes": len("7 bytes"),
        "door": "count",
        "caller": "nobody",
    }


def test_method_that_does_not_exist_is_not_logged() -> None:
    line = logged(TestClient(application(counting_door(Access.OWN))), "S3CRET", "/")

    assert (line["method"], line["status"]) == ("other", 405)


def test_refused_and_unknown_requests_are_logged_probes_at_debug() -> None:
    client = TestClient(application(counting_door(), http_token="s3cret"))

    refused = logged(client, "GET", "/", headers={"Authorization": "Bearer wr0ng"})
    unknown = logged(client, "GET", "/s3cret", headers={"Authorization": "Bearer s3cret"})
    probed = logged(client, "GET", "/healthz")

    assert (refused["status"], refused["door"], refused["path"]) == (401, "count", "/")
    assert (unknown["status"], unknown["door"], unknown["path"]) == (404, None, None)
    assert (probed["status"], probed["log_level"]) == (200, "debug")


def test_doors_live_with_application_and_end_before_it() -> None:
    lived: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        lived.append("begins")
        yield
        lived.append("is over")

    async def end() -> None:
        lived.append("answers")

    app = application(counting_door(Access.OWN, lifespan=lifespan, end=end))
    with TestClient(app) as client:
        assert client.get("/").status_code == 200
        assert client.portal is not None
        client.portal.call(app.end)

    assert lived == ["begins", "answers", "is over"]


@pytest.mark.parametrize(
    ("public_url", "paths"),
    [
        (None, ["/a"]),
        ("https://shop.example", ["/a"]),
        ("https://shop.example/goondan/", ["/a", "/goondan/a"]),
        ("https://shop.example/pre%20fix", ["/a", "/pre fix/a"]),  # servers compare decoded paths
    ],
)
def test_proxy_may_leave_path_of_public_url(public_url: str | None, paths: list[str]) -> None:
    assert public_paths("/a", public_url) == set(paths)


@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_two_doors_at_one_path_are_refused(path: str) -> None:
    async def answer(_: Request) -> Response:
        return Response()

    doors = [
        Door(name, route, [Route(route, answer)], Access.OWN)
        for name, route in (("metrics", "/metrics"), ("oauth", path))
    ]
    with pytest.raises(ConfigError, match=f"both answer at {path}") as refused:
        application(*doors)
    assert "callbackPath" in (refused.value.suggestion or "")

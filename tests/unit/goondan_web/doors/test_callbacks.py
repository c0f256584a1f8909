"""Callbacks: completing pending calls over HTTP."""

import asyncio
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    GoondanError,
    PayloadTooLargeError,
    ToolOutputError,
)
from goondan_web.application import Application, make_application
from goondan_web.doors import callbacks
from goondan_web.doors.callbacks import MOST_ATTEMPTS, WINDOW_SECONDS, callbacks_door

ADDRESS = "/callbacks/id-1/t0ken"
MOST = 1_024


class Completer:
    """Notes what calls were completed with, or raises what a test has put into it."""

    def __init__(self, error: GoondanError | None = None) -> None:
        self.error = error
        self.completed: list[tuple[Any, ...]] = []

    async def complete_with_token(
        self, call_id: str, token: str, output: Any = None, error: Any = None
    ) -> None:
        """Complete a call."""
        if self.error is not None:
            raise self.error
        self.completed.append((call_id, token, output, error))


def make_app(
    complete: callbacks.Complete, settings: Settings, clock: Callable[[], float] = monotonic
) -> Application:
    """Make an application with this door alone."""
    return make_application([callbacks_door(complete, settings, clock)], settings, "127.0.0.1")


def door(completer: Completer, **settings: Any) -> TestClient:
    """Return a client of an application with small limits."""
    limits = Settings.load(max_output_bytes=MOST, help_url="https://help/", **settings)
    app = make_app(completer.complete_with_token, limits)
    return TestClient(app, base_url="http://callbacks.example")


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ({"output": {"size": 3}}, ({"size": 3}, None)),
        ({"output": None}, (None, None)),
        ({"output": 0, "more": "is ignored"}, (0, None)),
        ({"error": "no disk"}, (None, "no disk")),
        (
            {"error": {"message": "no disk", "code": "E_DISK"}},
            (None, {"message": "no disk", "code": "E_DISK"}),
        ),
    ],
)
def test_call_is_completed(body: dict[str, Any], how: tuple[Any, Any]) -> None:
    completer = Completer()

    answer = door(completer).post(ADDRESS, json=body)

    assert (answer.status_code, answer.json()) == (200, {"id": "id-1"})
    assert completer.completed == [("id-1", "t0ken", *how)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"output",
        b"null",
        b"[]",
        b'"output"',
        b"{}",
        b'{"output": 1, "error": "x"}',
        b'{"output": NaN}',
        b'{"output": "\\ud800"}',
        b'{"output": 1',
        b'{"output": "\xff"}',
        b'{"error": null}',
        b'{"error": 3}',
        b'{"output": ' + b"[" * 1_000,
    ],
)
def test_body_that_says_nothing_completes_nothing(body: bytes) -> None:
    completer = Completer()

    answer = door(completer).post(ADDRESS, content=body, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "E_TOOL_INVALID_ARGS")
    assert completer.completed == []


@pytest.mark.parametrize(
    "media_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
def test_body_not_sent_as_json_is_refused(media_type: str) -> None:
    answer = door(Completer()).post(ADDRESS, content=b'{"output": 1}', headers={"Content-Type": media_type})

    assert answer.status_code == 415


def test_media_type_may_have_parameters() -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}

    assert door(Completer()).post(ADDRESS, content=b'{"output": 1}', headers=headers).status_code == 200


def test_body_that_is_too_large_is_refused() -> None:
    completer = Completer()

    answer = door(completer).post(ADDRESS, json={"output": "x" * 10_000})

    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "E_PAYLOAD_TOO_LARGE")
    assert completer.completed == []


def test_body_that_never_comes_times_out() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": ADDRESS, "headers": headers, "query_string": b""}
    app = replace(make_app(Completer().complete_with_token, Settings.load()), body_seconds=0.01)
    asyncio.run(app(scope, receive, send))

    assert sent[0]["status"] == 408


def test_output_at_limit_fits_even_when_escaped() -> None:
    completer = Completer()
    body = '{"output": "' + r"\ud55c" * (MOST // 3) + '"}'

    answer = door(completer).post(ADDRESS, content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 200
    assert completer.completed[0][2] == "한" * (MOST // 3)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CallNotFoundError("No call."), 404),
        (CallClosedError("It has its result."), 409),
        (CallNotPendingError("It waits for an approval."), 409),
        (PayloadTooLargeError("Too large."), 413),
        (ToolOutputError("No JSON."), 400),
        (BrokerUnreachableError(), 503),
        (GoondanError("Something else."), 500),
    ],
)
def test_each_error_has_status_and_code(error: GoondanError, status: int) -> None:
    answer = door(Completer(error)).post(ADDRESS, json={"output": 1})

    assert answer.status_code == status
    assert (answer.json()["error"]["code"], answer.json()["error"]["message"]) == (error.code, str(error))
    assert (answer.headers.get("retry-after") is not None) == (status == 503)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", ADDRESS, 405),
        ("DELETE", ADDRESS, 405),
        ("POST", "/callbacks/id-1", 404),
        ("POST", "/callbacks/id-1/", 404),
        ("POST", "/callbacks//t0ken", 404),
        ("POST", "/callbacks/id-1/t0ken/more", 404),
        ("POST", "/", 404),
    ],
)
def test_callbacks_door_refuses_other_methods_and_paths(method: str, path: str, status: int) -> None:
    assert door(Completer()).request(method, path, json={"output": 1}).status_code == status


def test_callbacks_also_answer_below_path_of_public_url() -> None:
    completer = Completer()
    client = door(completer, public_url="https://shop.example/goondan/")

    assert client.post("/goondan" + ADDRESS, json={"output": 1}).status_code == 200
    assert client.post(ADDRESS, json={"output": 2}).status_code == 200
    assert client.post("/other" + ADDRESS, json={"output": 3}).status_code == 404
    assert [output for _, _, output, _ in completer.completed] == [1, 2]


def test_too_many_wrong_tokens_block_address_for_minute() -> None:
    completer, now = Completer(CallNotFoundError("no such call")), [0.0]
    client = TestClient(make_app(completer.complete_with_token, Settings.load(), clock=lambda: now[0]))

    statuses = [client.post(ADDRESS, json={"output": 1}).status_code for _ in range(MOST_ATTEMPTS)]
    completer.error = None
    refused = client.post(ADDRESS, json={"output": 1})
    now[0] = WINDOW_SECONDS
    accepted = client.post(ADDRESS, json={"output": 1})

    assert set(statuses) == {404}
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert (accepted.status_code, len(completer.completed)) == (200, 1)


def test_wrong_tokens_elsewhere_do_not_block_call() -> None:
    completer = Completer(CallNotFoundError("no such call"))
    client = door(completer)

    for number in range(2 * MOST_ATTEMPTS):
        client.post(f"/callbacks/guess-{number}/token", json={"output": 1})
    completer.error = None

    assert client.post(ADDRESS, json={"output": 1}).status_code == 200


def test_number_of_addresses_with_wrong_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "MOST_WINDOWS", 8)
    completer = Completer(CallNotFoundError("no such call"))
    app = make_app(completer.complete_with_token, Settings.load())

    for number in range(MOST_ATTEMPTS):
        TestClient(app, client=("first", number)).post(ADDRESS, json={"output": 1})
    for number in range(8):
        TestClient(app, client=(f"other-{number}", 1)).post(ADDRESS, json={"output": 1})

    assert TestClient(app, client=("first", 1)).post(ADDRESS, json={"output": 1}).status_code == 404

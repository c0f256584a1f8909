"""The door ``api`` with real workers: what becomes of requests, and what they get back."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from goondan_tasks.client import Client
from tests.waiting import wait_until

PATIENCE = 60
WAITING = {"Prefer": f"wait={PATIENCE}"}
CALLS, TURNS = "/v1/agents/builder/calls", "/v1/agents/builder/turns"


def submit(http: TestClient, tool: str, args: Any = None, headers: Any = None, **fields: Any) -> Any:
    """Submit a call, and return its view."""
    answer = http.post(CALLS, json={"tool": tool, "args": args or {}, **fields}, headers=headers)
    assert answer.status_code in {200, 202}, answer.text
    return answer.json()


def test_call_ending_within_wait_returns_its_output(http: TestClient) -> None:
    answer = http.post(CALLS, json={"tool": "guarded__look", "args": {"a": "ü"}}, headers=WAITING)

    call = answer.json()
    assert (answer.status_code, call["outcome"], call["output"]) == (200, "ok", "gold")
    assert answer.headers["location"] == call["links"]["self"]
    assert http.get(call["links"]["self"]).json() == call


def test_call_without_wait_is_accepted_and_long_polled(http: TestClient) -> None:
    begun = http.post(CALLS, json={"tool": "guarded__look", "args": {"n": 1}, "delay": 0.3})
    ended = http.get(f"{begun.json()['links']['self']}?wait={PATIENCE}").json()

    assert (begun.status_code, begun.json()["status"]) == (202, "scheduled")
    assert (ended["status"], ended["output"]) == ("done", "gold")


def test_call_error_is_result_not_request_error(http: TestClient) -> None:
    answer = http.post(CALLS, json={"tool": "guarded__wipe"}, headers=WAITING)
    unknown = http.post(CALLS, json={"tool": "no__such"}, headers=WAITING)

    assert (answer.status_code, answer.json()["outcome"]) == (200, "error")
    assert unknown.json()["error"]["code"] == "E_TOOL_NOT_IN_CATALOG"


def test_same_key_repeats_call_but_other_body_conflicts(http: TestClient) -> None:
    key = {"Idempotency-Key": "order-7"}
    first, again = (submit(http, "guarded__look", {"a": 1}, headers=key) for _ in range(2))
    bodies: list[dict[str, Any]] = [{"args": {"a": 2}}, {"args": {"a": 1}, "instanceKey": "other"}]
    others = [http.post(CALLS, json={"tool": "guarded__look", **body}, headers=key) for body in bodies]

    assert first["id"] == again["id"]
    assert [other.status_code for other in others] == [409, 409]
    assert {other.json()["error"]["code"] for other in others} == {"E_TOOL_CALL_CONFLICT"}


def test_key_of_refused_request_is_free_again(http: TestClient) -> None:
    key, path = {"Idempotency-Key": "order-8"}, TURNS.replace("builder", "nobody")

    refused = [http.post(path, json={"input": text}, headers=key).status_code for text in ("a", "b")]

    assert refused == [404, 404]


def test_turn_is_answered_when_agent_replies(http: TestClient, client: Client) -> None:
    key = {"Idempotency-Key": "turn-1"}
    body = {"input": "hello", "instanceKey": "api", "metadata": {"from": "test"}}
    begun = http.post(TURNS, json=body, headers=key)
    again = http.post(TURNS, json=body, headers=key)
    link = begun.json()["links"]["self"]
    with ThreadPoolExecutor() as threads:
        poll = threads.submit(http.get, f"{link}?wait={PATIENCE}")
        received = client.receive("builder", "api", timeout=PATIENCE)
        assert received is not None
        client.reply(received, {"said": received.event.input})
        ended = poll.result().json()

    assert (begun.status_code, again.json()["id"]) == (202, begun.json()["id"])
    assert received.event.metadata["from"] == "test"
    assert (ended["outcome"], ended["output"]) == ("ok", {"said": "hello"})


def test_turn_events_stream_live_and_again_later(http: TestClient, client: Client) -> None:
    turn = http.post(TURNS, json={"input": 1, "instanceKey": "followed", "keep": 60}).json()
    with ThreadPoolExecutor() as threads:
        following = threads.submit(http.get, turn["links"]["events"])
        received = client.receive("builder", "followed", timeout=PATIENCE)
        assert received is not None
        client.reply(received, "done")
        live = following.result()
    [cursor] = re.findall("^id: (.+)$", live.text, re.MULTILINE)
    again = http.get(turn["links"]["events"], headers={"Last-Event-ID": cursor})

    assert live.headers["content-type"].startswith("text/event-stream")
    assert '"type":"end"' in live.text
    assert '"response":"done"' in live.text
    assert again.text == live.text
    assert http.get(f"{turn['links']['events']}?after=x").status_code == 400
    assert http.get("/v1/turns/none/events").status_code == 404


@pytest.mark.parametrize(("body", "seconds"), [({}, 3_600), ({"keep": 60}, 60), ({"keep": None}, None)])
def test_turn_events_last_one_hour_by_default(
    http: TestClient, client: Client, body: dict[str, Any], seconds: float | None
) -> None:
    turn = http.post(TURNS, json={"input": 1, "instanceKey": "kept", "delay": 3_600, **body}).json()
    assert client.record(turn["id"]).call.keep == seconds


def test_turn_is_cancelled_once(http: TestClient) -> None:
    turn = http.post(TURNS, json={"input": 1, "instanceKey": "c", "delay": 3_600}).json()

    cancelled = http.post(turn["links"]["cancel"])

    assert (cancelled.status_code, cancelled.json()["error"]["code"]) == (200, "E_TOOL_CANCELLED")
    assert http.post(turn["links"]["cancel"]).status_code in {200, 409}


def test_turn_and_call_are_not_mixed_up(http: TestClient) -> None:
    call = submit(http, "guarded__look", headers=WAITING)

    answer = http.get(f"/v1/turns/{call['id']}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "E_CALL_NOT_FOUND")


@pytest.mark.parametrize(
    ("asked", "status", "content", "place"),
    [
        ("bytes=0-3", 206, b'"012', "bytes 0-3/12"),
        ("bytes=-4", 206, b'789"', "bytes 8-11/12"),
        ("bytes=10-", 206, b'9"', "bytes 10-11/12"),
        ("bytes=10-99", 206, b'9"', "bytes 10-11/12"),
        ("bytes=10-999999999999999999", 206, b'9"', "bytes 10-11/12"),
        ("bytes=999999999999999999-", 416, None, "bytes */12"),
        ("bytes=-99", 206, b'"0123456789"', "bytes 0-11/12"),
        ("bytes=5-2", 200, b'"0123456789"', None),
        ("bytes=0-0,2-3", 200, b'"0123456789"', None),
        ("lines=0-0", 200, b'"0123456789"', None),
        ("bytes=12-", 416, None, "bytes */12"),
        ("bytes=-0", 416, None, None),
    ],
)
def test_output_is_read_by_ranges_of_its_bytes(
    http: TestClient, asked: str, status: int, content: bytes | None, place: str | None
) -> None:
    key = {"Idempotency-Key": "ranges"}
    call = submit(http, "jobs__begin", headers=key)
    http.post(call["links"]["resolve"], json={"output": "0123456789"})
    http.get(f"{call['links']['self']}?wait={PATIENCE}")
    answer = http.get(call["links"]["output"], headers={"Range": asked})

    assert (answer.status_code, answer.headers.get("content-range")) == (status, place)
    assert content is None or answer.content == content


def test_range_of_another_output_is_answered_with_all(http: TestClient) -> None:
    call = submit(http, "guarded__look", headers=WAITING)
    ranges = {"Range": "bytes=0-1", "If-Range": '"another"'}

    answers = [
        http.get(call["links"]["output"], headers=ranges | more).status_code
        for more in ({}, {"If-Range": f'"{call["id"]}"'})
    ]

    assert answers == [200, 206]


@pytest.mark.parametrize(
    ("path", "body", "outcome", "again"),
    [
        ("resolve", {"output": {"n": 1}}, ("ok", {"n": 1}, None), 409),
        ("fail", {"error": {"message": "no", "code": "E_OWN"}}, ("error", None, "E_OWN"), 409),
        ("cancel", None, ("error", None, "E_TOOL_CANCELLED"), 200),
    ],
)
def test_pending_call_is_ended_once(http: TestClient, path: str, body: Any, outcome: Any, again: int) -> None:
    call = submit(http, "jobs__begin")
    wait_until(lambda: http.get(call["links"]["self"]).json()["status"] == "pending")

    ended, late = (http.post(call["links"][path], json=body) for _ in range(2))
    view = ended.json()

    assert (ended.status_code, view["outcome"], view["output"]) == (200, *outcome[:2])
    assert (view["error"] and view["error"]["code"]) == outcome[2]
    assert late.status_code == again


def test_output_of_call_without_output_is_conflict(http: TestClient) -> None:
    call = submit(http, "guarded__wipe", headers=WAITING)

    answer = http.get(call["links"]["output"])

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "E_CALL_NO_OUTPUT")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{", 400, "not JSON"),
        (b'{"tool": 1}', 400, "body.tool"),
        (b'{"tool": "a__b", "such": 1}', 400, "body.such"),
        (b'{"tool": "a__b", "delay": NaN}', 400, "NaN"),
        (b'{"tool": "a__b", "args": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400, "nested too deeply"),
        (b'{"tool": "a__b", "args": "' + b"x" * 2_000_000 + b'"}', 413, "at most"),
    ],
)
def test_bad_body_is_refused_with_reason(http: TestClient, body: bytes, status: int, text: str) -> None:
    answer = http.post(CALLS, content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == status, answer.text
    assert text in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "headers", "text"),
    [
        ("?wait=61", {}, "wait"),
        ("?wait=nan", {}, "wait"),
        ("?wait=1&wait=2", {}, "twice"),
        ("?such=1", {}, "such"),
    ],
)
def test_bad_query_is_refused_with_reason(
    http: TestClient, query: str, headers: dict[str, str], text: str
) -> None:
    answer = http.get(f"/v1/calls/x{query}", headers=headers)

    assert answer.status_code == 400
    assert text in answer.json()["error"]["message"]

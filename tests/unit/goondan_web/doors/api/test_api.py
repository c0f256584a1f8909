"""What the HTTP API has for itself: pages, preferences, and one table for routes and document."""

import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    CallClosedError,
    CallNotFoundError,
    ToolInputValidationError,
)
from goondan_tasks.instances.workdir_files import FilePart
from goondan_web.application import make_application
from goondan_web.doors.api import api_door, operations_of
from goondan_web.doors.api.openapi import document
from goondan_web.doors.api.runs import Waits, preferred_wait
from goondan_web.doors.api.wire import Done, Listing, Page, page_of
from goondan_web.doors.openai import openai_door

SCOPE = re.compile(r"call:\{agent\}|read|approve|admin")


def page(rows: list[tuple[int, str]], limit: int, cursor: str | None = None) -> Page[Done]:
    asked = Listing(limit=limit, cursor=cursor)
    return page_of(rows, asked, place=lambda row: row, shown=lambda row: Done(id=row[1]))


def test_pages_show_every_row_once_despite_changes() -> None:
    rows = [(number // 2, f"r{number}") for number in range(7)]

    first = page(rows, 3)
    second = page([(-1, "new"), *rows[1:]], 3, first.next_cursor)
    last = page(rows, 3, second.next_cursor)

    assert [[one.id for one in part.items] for part in (first, second, last)] == [
        ["r0", "r1", "r2"],
        ["r3", "r4", "r5"],
        ["r6"],
    ]
    assert last.next_cursor is None


@pytest.mark.parametrize("cursor", ["", "ü", "e30", "WzFd!", "W10=", "WyJ4Il0"])
def test_cursor_of_something_else_is_refused(cursor: str) -> None:
    with pytest.raises(ToolInputValidationError, match="cursor"):
        page([(1, "a")], 3, cursor or "*")


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=30", 30),
        ('respond-async, WAIT="5"; foo=1', 5),
        ("wait=1000", 60),
        ("wait=-1", 0),
        ("wait", 0),
        ("wait=٣", 0),
        ("", 0),
    ],
)
def test_wait_is_read_as_other_preferences_are(prefer: str, seconds: int) -> None:
    assert preferred_wait(prefer) == seconds


class Recorded:
    """A client whose calls are those of the agent coder, and what was begun with it."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.auth: Any = None
        self.is_empty = False
        self.parts: list[FilePart] = []

    async def start_call(self, agent: str, *given: Any, **fields: Any) -> Any:
        self.begun.append(fields)
        raise AgentNotFoundError(agent)

    start_turn = start_call

    async def record(self, call_id: str) -> Any:
        if self.is_empty:
            raise CallNotFoundError(call_id)
        return SimpleNamespace(call=SimpleNamespace(agent_name="coder", auth=self.auth))

    async def read_file(self, *given: Any) -> FilePart:
        return self.parts.pop(0)

    async def cancel(self, call_id: str, *given: Any) -> None:
        raise CallClosedError

    resolve = fail = cancel

    async def pause(self, agent: str, *given: Any) -> None:
        self.begun.append({"paused": (agent, *given)})
        raise AgentNotFoundError(agent)

    async def approve(self, call_id: str, by: str, args: Any) -> None:
        self.begun.append({"by": by, "args": args})
        raise CallClosedError


TOKENS = {
    "coder": {"token": "coder", "scopes": ["call:coder"], "user": "U1"},
    "every": {"token": "every", "scopes": ["call:*"]},
    "lead": {"token": "lead", "scopes": ["call:coder", "read"], "user": "U3"},
    "ann": {"token": "ann", "scopes": ["approve"]},
    "reader": {"token": "reader", "scopes": ["read"]},
    "admin": {"token": "admin", "scopes": ["admin"]},
}


def http(client: Recorded, **more: Any) -> TestClient:
    settings = Settings.load(http_tokens=json.dumps(TOKENS), **more)
    door = api_door(cast(AsyncClient, client), settings)
    app = make_application([door], settings, "127.0.0.1")
    return TestClient(app, base_url="http://127.0.0.1", client=("10.0.0.7", 1))


def posted(served: TestClient, token: str, path: str, **more: Any) -> Any:
    headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
    return served.post(path, headers=headers, json={"tool": "a__b", **more} if "calls" in path else more)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/agents/coder/calls", {"coder", "lead", "every", "admin"}),
        ("/v1/agents/planner/calls", {"every", "admin"}),
        ("/v1/agents/c%6fder/calls", {"coder", "lead", "every", "admin"}),
        ("/v1/agents/*/calls", {"every", "admin"}),
        ("/v1/agents/coder/turns", {"coder", "lead", "every", "admin"}),
    ],
)
def test_operations_are_for_tokens_with_their_scope(path: str, allowed: set[str]) -> None:
    served = http(Recorded())

    answers = {token: posted(served, token, path).status_code for token in TOKENS}

    assert {token for token, status in answers.items() if status != 403} == allowed
    assert set(answers.values()) <= {403, 404, 409}


def test_approver_decides_in_name_of_token() -> None:
    client = Recorded()
    served, decision = http(client), {"decision": "approve", "args": {"n": 2}}

    answers = [
        posted(served, token, "/v1/approvals/x", **decision, **by).status_code
        for token, by in (
            ("ann", {}),
            ("ann", {"by": "ann"}),
            ("ann", {"by": "bob"}),
            ("admin", {"by": "bob"}),
            ("reader", {}),
        )
    ]

    assert answers == [409, 409, 403, 409, 403]
    assert client.begun == [{"by": name, "args": {"n": 2}} for name in ("ann", "ann", "bob")]


@pytest.mark.parametrize(
    ("auth", "allowed"),
    [
        ({"subjects": {"user": "U1"}}, {"coder", "lead", "reader", "admin"}),
        (None, {"every", "lead", "reader", "admin"}),
        ({"subjects": {"user": "U2"}}, {"lead", "reader", "admin"}),
    ],
)
def test_callers_may_read_calls_of_their_user(auth: Any, allowed: set[str]) -> None:
    client = Recorded()
    client.auth, served = auth, http(client)

    def answer(token: str) -> Any:
        return served.get(
            "/v1/calls/x/output", headers={"Authorization": f"Bearer {token}", "Range": "bytes=-0"}
        )

    answers = {token: answer(token).status_code for token in TOKENS}
    assert {token for token, status in answers.items() if status == 416} == allowed
    assert {token for token, status in answers.items() if status == 403} == {"ann"}
    assert {answers[token] for token in TOKENS.keys() - allowed - {"ann"}} == {404}


@pytest.mark.parametrize("path", ["cancel", "resolve", "fail"])
@pytest.mark.parametrize(
    ("auth", "allowed"),
    [
        ({"subjects": {"user": "U1"}}, {"coder", "lead", "admin"}),
        (None, {"every", "lead", "admin"}),
        ({"subjects": {"user": "U2"}}, {"lead", "admin"}),
    ],
)
def test_callers_end_and_complete_only_readable_calls(path: str, auth: Any, allowed: set[str]) -> None:
    client = Recorded()
    client.auth, served = auth, http(client)
    body: dict[str, Any] = {"error": {"message": "no"}} if path == "fail" else {}

    def answer(token: str) -> Any:
        head = {"Authorization": f"Bearer {token}"}
        return served.post(f"/v1/calls/x/{path}", headers=head, json=body)

    answers = {token: answer(token).status_code for token in TOKENS}
    assert {token for token, status in answers.items() if status == 409} == allowed
    assert {token for token, status in answers.items() if status == 403} == {"ann", "reader"}
    assert {answers[token] for token in TOKENS.keys() - allowed - {"ann", "reader"}} <= {404}


def test_foreign_call_id_is_refused_like_unknown_id() -> None:
    client = Recorded()
    client.auth, served = {"subjects": {"user": "U2"}}, http(client)

    def refusal(method: str, path: str) -> tuple[int, Any]:
        head = {"Authorization": "Bearer coder"}
        answer = served.request(method, path, headers=head, json={} if method == "POST" else None)
        return answer.status_code, answer.json()

    for method, path in (
        ("GET", "/v1/calls/{}"),
        ("GET", "/v1/turns/{}/events"),
        ("POST", "/v1/calls/{}/resolve"),
    ):
        status, foreign = refusal(method, path.format("same"))
        client.is_empty = True
        assert (status, foreign) == refusal(method, path.format("same"))
        assert (status, foreign["error"]["code"]) == (404, "E_CALL_NOT_FOUND")
        client.is_empty = False


@pytest.mark.parametrize(
    ("later", "shown"),
    [
        (FilePart(b"cd", 2, 4, 7, 1), b"abcd"),
        (FilePart(b"cd", 2, 9, 8, 1), b"abcd"),
        (FilePart(b"CD", 2, 4, 7, 2), b"ab"),
        (FilePart(b"", 2, 4, 7, 1), b"ab"),
    ],
)
def test_reading_replaced_or_cut_file_mixes_nothing(later: FilePart, shown: bytes) -> None:
    client = Recorded()
    client.parts = [FilePart(b"a", 0, 4, 7, 1), FilePart(b"ab", 0, 4, 7, 1), later]
    head = {"Authorization": "Bearer reader"}

    answer = http(client).get("/v1/instances/a/k/files/f", headers=head)

    assert (answer.headers["content-length"], answer.content) == ("4", shown)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": ""},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {"Content-Type": "application/json", "Content-Encoding": "identity, br"},
    ],
)
@pytest.mark.parametrize("make", [openai_door, api_door])
def test_every_door_refuses_non_plain_json_body(make: Any, headers: dict[str, str]) -> None:
    settings = Settings.load()
    app = make_application([make(cast(AsyncClient, Recorded()), settings)], settings, "127.0.0.1")
    path = "/v1/responses" if make is openai_door else "/v1/agents/a/turns"

    answer = TestClient(app, base_url="http://127.0.0.1").post(path, headers=headers, content=b"{}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "E_REQUEST")


def test_call_has_tokens_user_unless_admin_chooses() -> None:
    client = Recorded()
    served, other = http(client), {"subjects": {"user": "U2"}}

    for path in ("/v1/agents/coder/calls", "/v1/agents/coder/turns"):
        refused = posted(served, "coder", path, auth=other)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "E_FORBIDDEN")
        for token in ("coder", "every"):
            posted(served, token, path)
        posted(served, "admin", path, auth=other)

    assert [fields["auth"] for fields in client.begun] == [{"subjects": {"user": "U1"}}, None, other] * 2


def test_callers_do_not_share_calls_of_idempotency_key() -> None:
    client = Recorded()
    served = http(client)

    for token in ("coder", "every", "coder"):
        posted(served, token, "/v1/agents/coder/calls", headers={"Idempotency-Key": "k"})

    first, other, again = (fields["request_key"] for fields in client.begun)
    assert first == again != other


@pytest.mark.parametrize(
    ("path", "body", "message", "suggestion"),
    [
        ("/v1/agents/a/turns", b'{"inpt": 1}', "body.inpt: is unknown", "Did you mean 'input'?"),
        ("/v1/agents/a/turns", b'{"delay": "1"}', "body.delay: must be a number", "Correct the request"),
        ("/v1/agents/a/turns", b"{", "The body is not JSON", "Correct the request"),
        ("/v1/agents/a/turns?wiat=3", b"{}", "query is not valid: wiat: is unknown", "Correct the request"),
    ],
)
def test_request_faults_name_field_and_suggestion(
    path: str, body: bytes, message: str, suggestion: str
) -> None:
    headers = {"Authorization": "Bearer admin", "Content-Type": "application/json"}

    answer = http(Recorded()).post(path, content=body, headers=headers)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert message in error["message"]
    assert suggestion in error["suggestion"]


def test_supplementary_body_may_be_left_out() -> None:
    client, admin = Recorded(), {"Authorization": "Bearer admin"}
    served = http(client)

    answers = [
        served.post("/v1/agents/coder/pause", headers=admin),
        served.post("/v1/agents/coder/pause", headers=admin, json={"tool": "a__b", "reason": "late"}),
        served.post("/v1/agents/coder/pause", headers=admin, content=b"tool=a__b"),
        served.post("/v1/agents/coder/turns", headers=admin),
    ]

    assert [answer.status_code for answer in answers] == [404, 404, 415, 415]
    assert client.begun == [{"paused": ("coder", None, "", "")}, {"paused": ("coder", "a__b", "late", "")}]


def test_proxy_users_do_not_share_idempotency_keys() -> None:
    client = Recorded()
    served = http(client, http_user_header="X-User", http_trusted_proxies="10.0.0.7")

    for user in ("ann", "bob", "ann", 'ann"}} k'):
        head = {"Idempotency-Key": "k", "X-User": user}
        posted(served, "every", "/v1/agents/coder/calls", headers=head)

    first, other, again, odd = (fields["request_key"] for fields in client.begun)
    assert first == again
    assert len({first, other, odd}) == 3


def test_document_lists_operations_once_with_scope_and_errors() -> None:
    client = cast(AsyncClient, None)
    table = operations_of(client, Waits(client))

    described = document(table)
    found: dict[str, Any] = {
        operation["operationId"]: operation
        for path in described["paths"].values()
        for operation in path.values()
    }

    assert sorted(found) == sorted(operation.name for operation in table)
    required = {name: one["requestBody"]["required"] for name, one in found.items() if "requestBody" in one}
    left_out = {name for name, is_required in required.items() if not is_required}
    assert left_out == {"pauseAgent", "resumeAgent", "pauseSchedule"}
    assert all(SCOPE.fullmatch(operation.scope) for operation in table)
    named = [operation.path for operation in table if "{agent}" in operation.scope]
    assert all("{agent}" in path or "{id}" in path for path in named)
    assert all({"400", "401", "403", "500", "503"} <= set(one["responses"]) for one in found.values())


def test_document_lists_types_once_with_required_fields() -> None:
    client = cast(AsyncClient, None)

    types = document(operations_of(client, Waits(client)))["components"]["schemas"]

    assert [name for name in types if name.endswith(("-Input", "-Output"))] == []
    assert {"type", "step"} <= set(types["TextDelta"]["required"])
    assert {"error", "usage"}.isdisjoint(types["TurnEnded"]["required"])  # left out if they are null
    assert types["TurnBody"].get("required", []) == []
    assert types["CallView"]["properties"]["status"]["enum"][-2:] == ["done", "dead"]


def test_page_of_named_origin_gets_preflight_permission() -> None:
    settings = Settings.load(http_origins="https://app.example", http_token="t0ken")
    app = make_application([api_door(cast(AsyncClient, Recorded()), settings)], settings, "127.0.0.1")
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "DELETE"}

    answer = TestClient(app).options("/v1/instances/coder/default", headers=asks)

    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (204, asks["Origin"])
    assert "DELETE" in answer.headers["Access-Control-Allow-Methods"]

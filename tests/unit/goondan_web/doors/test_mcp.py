"""The door ``mcp``: who is served at which path, refusals, and the events that reconnecting clients get."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from mcp.server.streamable_http import GET_STREAM_KEY, EventMessage
from mcp_types import INVALID_PARAMS, JSONRPCNotification, JSONRPCResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import AgentNotFoundError
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.fleet.http_tokens import auth_of
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.programs.mcp_server import AgentServer
from goondan_tasks.programs.mcp_tasks import EXTENSION
from goondan_web.answers import RequestError
from goondan_web.application import make_application
from goondan_web.doors.mcp import EventMemory, SessionEvents, _caller_of, _PlainRefusal, mcp_door
from tests.unit.goondan_tasks.cli.fake_client import record

NEWS = JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params={})
ANSWER = JSONRPCResponse(jsonrpc="2.0", id=1, result={})


def replayed(store: SessionEvents, last_event_id: str) -> tuple[list[Any], str | None]:
    """Return the messages that come after an event, and the stream that may have more."""
    messages: list[Any] = []

    async def send(event: EventMessage) -> None:
        messages.append(event.message)

    return messages, asyncio.run(store.replay_events_after(last_event_id, send))


def stored(store: SessionEvents, stream: str, message: Any = None) -> str:
    return asyncio.run(store.store_event(stream, message))


def test_replay_sends_later_events_of_same_stream() -> None:
    store = SessionEvents(EventMemory())
    first = stored(store, GET_STREAM_KEY)
    stored(store, "2", ANSWER)
    stored(store, GET_STREAM_KEY, NEWS)

    assert replayed(store, first) == ([NEWS], GET_STREAM_KEY)


def test_response_after_replay_ends_stream_of_request() -> None:
    store = SessionEvents(EventMemory())
    first = stored(store, "1")
    messages: list[Any] = []

    async def resume() -> str | None:
        async def send(event: EventMessage) -> None:
            messages.append(event.message)
            if event.message is NEWS:  # as long as a client takes for it
                await store.store_event("2", ANSWER)
                asyncio.get_running_loop().call_soon(asyncio.ensure_future, store.store_event("1", ANSWER))

        await store.store_event("1", NEWS)
        return await store.replay_events_after(first, send)

    assert (asyncio.run(resume()), messages) == (None, [NEWS, ANSWER])


def test_stream_with_its_answer_ends_after_it() -> None:
    store = SessionEvents(EventMemory())
    first, second = stored(store, "1"), stored(store, "1", NEWS)
    third = stored(store, "1", ANSWER)

    assert replayed(store, first) == ([NEWS, ANSWER], None)
    assert replayed(store, second) == ([ANSWER], None)
    assert replayed(store, third) == ([], None)


def test_session_gets_no_events_of_other_sessions() -> None:
    memory = EventMemory()
    one, other = SessionEvents(memory), SessionEvents(memory)
    first = stored(one, "1")
    stored(other, "1", NEWS)
    stored(one, "1", ANSWER)

    assert replayed(other, first) == ([], None)
    assert replayed(one, first) == ([ANSWER], None)


def test_oldest_events_are_forgotten_first() -> None:
    store = SessionEvents(EventMemory(most_bytes=1_500))
    first, second = stored(store, "1"), stored(store, "1")
    stored(store, "1", ANSWER)

    assert replayed(store, first) == ([], None)
    assert replayed(store, second) == ([ANSWER], None)


def test_event_that_never_was_is_followed_by_nothing() -> None:
    assert replayed(SessionEvents(EventMemory()), "7") == ([], None)


class Catalogs:
    """A client that knows agents without tools, and one task of the user U1."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def record(self, _: str) -> CallRecord:
        names = {"toolCallId": "call_1", "toolName": "a__b", "correlationId": "c", "traceId": "1" * 32}
        place = {"agentName": "coder", "instanceKey": "mcp-1", "turnId": "mcp-task-1", "spanId": "1" * 16}
        return record("running", call=ToolCall.from_wire({**names, **place, "auth": auth_of("U1")}))

    async def cancel(self, call_id: str) -> None:
        self.cancelled.append(call_id)

    async def agents(self) -> dict[str, Any]:
        return {}

    async def catalog(self, agent: str) -> list[Any]:
        return []

    async def submit(self, agent: str, tool: str, args: Any, **fields: Any) -> Any:
        raise AgentNotFoundError(agent)


@contextmanager
def serving(*agents: str, tokens: Any = None, client: Catalogs | None = None) -> Iterator[TestClient]:
    settings = Settings.load(http_tokens=json.dumps(tokens) if tokens else None)
    asked = cast(AsyncClient, client or Catalogs())
    servers = [AgentServer(asked, agent, caller_of=_caller_of) for agent in agents]
    app = make_application([mcp_door(servers, settings)], settings, "127.0.0.1")
    with TestClient(app, base_url="http://127.0.0.1") as served:
        yield served


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def name_of(served: TestClient, path: str, **headers: str) -> Any:
    """Begin a conversation; return the server's name, or the status of a refusal."""
    answer = served.post(path, json=HELLO, headers={**ACCEPT, **headers})
    if answer.status_code != 200:
        return answer.status_code
    [data] = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return json.loads(data.removeprefix("data: "))["result"]["serverInfo"]["name"]


def test_sole_agent_has_two_paths_others_one_each() -> None:
    with serving("coder") as served:
        names = [name_of(served, path) for path in ("/mcp", "/mcp/coder", "/mcp/planner")]
    assert names == ["goondan-coder", "goondan-coder", 404]
    with serving("coder", "planner") as served:
        names = [name_of(served, path) for path in ("/mcp", "/mcp/coder", "/mcp/planner")]
    assert names == [404, "goondan-coder", "goondan-planner"]


def test_token_limits_agents_and_session_keeps_agent_and_token() -> None:
    tokens = {
        "a": {"token": "a", "scopes": ["call:coder"]},
        "b": {"token": "b", "scopes": ["call:*"]},
    }
    shown = {name: {"Authorization": f"Bearer {name}"} for name in tokens}
    with serving("coder", "planner", tokens=tokens) as served:
        assert name_of(served, "/mcp/coder", **shown["a"]) == "goondan-coder"
        assert name_of(served, "/mcp/planner", **shown["a"]) == 403
        assert name_of(served, "/mcp/planner", **shown["b"]) == "goondan-planner"
        begun = served.post("/mcp/coder", json=HELLO, headers={**ACCEPT, **shown["b"]})
        session = {"Mcp-Session-Id": begun.headers["Mcp-Session-Id"]}
        assert name_of(served, "/mcp/planner", **shown["b"], **session) == 404
        assert name_of(served, "/mcp/coder", **shown["a"], **session) == 404


TASKS_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}},
}


@pytest.mark.parametrize(
    ("token", "is_known"),
    [
        ({"scopes": ["call:coder"], "user": "U1"}, True),
        ({"scopes": ["call:coder", "approve"], "user": "U2"}, False),
        ({"scopes": ["call:coder"]}, False),
        ({"scopes": ["call:coder", "read"], "user": "U2"}, True),
    ],
)
def test_task_of_another_user_is_unknown(token: Any, is_known: bool) -> None:
    client = Catalogs()
    told: list[Any] = []
    with serving("coder", tokens={"a": {"token": "a", **token}}, client=client) as served:
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            params = {"taskId": "t-1", "inputResponses": {}, "_meta": TASKS_META}
            answer = served.post(
                "/mcp",
                json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
                headers={
                    **ACCEPT,
                    "Authorization": "Bearer a",
                    "Mcp-Protocol-Version": "2026-07-28",
                    "Mcp-Method": method,
                    "Mcp-Name": "t-1",
                },
            ).json()
            told.append("result" in answer or answer["error"]["code"])

    assert told == [True if is_known else INVALID_PARAMS] * 3
    assert len(client.cancelled) == is_known


def test_span_of_call_names_session_and_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("mcp.shared._otel._tracer", provider.get_tracer("mcp"))
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "a__b", "arguments": {}}}
    with serving("coder") as served:
        session = served.post("/mcp", json=HELLO, headers=ACCEPT).headers["Mcp-Session-Id"]
        served.post("/mcp", json=call, headers={**ACCEPT, "Mcp-Session-Id": session})

    [span] = [span for span in exporter.get_finished_spans() if span.name == "tools/call a__b"]
    assert span.kind is SpanKind.SERVER
    assert dict(span.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2025-06-18",
        "mcp.session.id": session,
        "jsonrpc.request.id": "2",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "a__b",
        "gen_ai.agent.name": "coder",
        "error.type": "tool_error",
    }


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"Content-Type": "text/plain"}, 415),
        ("POST", {"Content-Type": "application/jsonp"}, 415),
        ("GET", {"Mcp-Protocol-Version": "2026-07-28"}, 405),
    ],
)
def test_refusals_of_sdk_have_one_form(method: str, headers: dict[str, str], status: int) -> None:
    with serving("coder") as served:
        answer = served.request(method, "/mcp", content=b"{}", headers={**ACCEPT, **headers})

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, "E_REQUEST")
    assert answer.json()["error"]["message"]
    assert ("Allow" in answer.headers) == (status == 405)


def test_only_json_refusal_is_passed_on() -> None:
    sent: list[Any] = []

    async def refuse(content_type: bytes) -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        refusal = _PlainRefusal(send)
        head = {"type": "http.response.start", "status": 413, "headers": [(b"content-type", content_type)]}
        await refusal(head)
        await refusal({"type": "http.response.body", "body": b"Request body too large"})
        refusal.report()

    asyncio.run(refuse(b"application/json"))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    with pytest.raises(RequestError, match="Request body too large") as raised:
        asyncio.run(refuse(b"text/plain; charset=utf-8"))
    assert (raised.value.status, len(sent)) == (413, 2)

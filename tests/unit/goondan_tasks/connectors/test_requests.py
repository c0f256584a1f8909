"""Requests to Connections: what their connectors answer, and what is answered for them."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.authoring.webhooks import MAX_BODY_BYTES, HttpRequest, HttpResponse
from goondan_tasks.connectors.handover import Source
from goondan_tasks.connectors.open_requests import MOST_OPEN, MOST_OPEN_BYTES, OpenRequests
from goondan_tasks.connectors.process import ConnectorProgram
from goondan_tasks.connectors.runner import ConnectionRunner
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.fleet.crash_backoff import BackoffRules
from tests.javascript_runtimes import NAMES, runtime
from tests.waiting import wait_until

PATIENCE = 60

IN_PYTHON = """
import asyncio, os
from goondan_tasks.connector_api import HttpResponse
from goondan_tasks.errors import WebhookRefusedError

async def connect(ctx):
    waiting, all_here = [], asyncio.Event()

    async def handle(request):
        match request.path:
            case "/nothing":
                return None
            case "/object":
                return {"status": "fine"}
            case "/own":
                return HttpResponse(202, "\u00fcber", {"X-Own": "1", "Content-Length": "7"})
            case "/gone":
                return HttpResponse(204, "a body that 204 has not")
            case "/echo":
                await asyncio.sleep(0)
                return {"method": request.method, "query": dict(request.query), "body": list(request.body),
                        "headers": dict(request.headers)}
            case "/raise":
                raise LookupError("a secret of the connector")
            case "/refused":
                await ctx.emit({"name": "no message"})
            case "/too-large":
                text = {"type": "text", "text": "x" * 5_000_000}
                await ctx.emit({"name": "e", "message": text, "instanceKey": "i"})
            case "/long-line":
                ctx.logger.info("x" * 5_000_000, more="y" * 1_000_000)
            case "/long-refusal":
                raise WebhookRefusedError("x" * 5_000_000, status=403)
            case "/text":
                return 7
            case "/header":
                return HttpResponse(200, "", {"X-Own": "1\\r\\nSet-Cookie: a=b"})
            case "/status":
                return HttpResponse(99)
            case "/large":
                return HttpResponse(200, b"x" * 2_097_153)
            case "/verify":
                ctx.verify(request, "github")
                await ctx.emit({"name": "e", "message": {"type": "text", "text": "t"}, "instanceKey": "i"})
            case "/json":
                return {"read": request.json()}
            case "/hang":
                await asyncio.sleep(600)
            case "/meet":
                waiting.append(request)
                if len(waiting) == 40:
                    all_here.set()
                await all_here.wait()
            case "/emit":
                event = {"name": "e", "message": {"type": "text", "text": "t"}, "instanceKey": "i"}
                accepted = await ctx.emit(event)
                return {"agent": accepted.agent}
            case "/exit":
                os._exit(3)

    await ctx.http(handle)
"""
IN_TYPESCRIPT = """
export default async function (ctx: any) {
  const waiting: Function[] = [];

  async function handle(request: any) {
    switch (request.path) {
      case '/nothing': return;
      case '/object': return { status: 'fine' };
      case '/own':
        return new Response('\u00fcber', { status: 202, headers: { 'X-Own': '1', 'Content-Length': '7' } });
      case '/gone': return new Response(null, { status: 204 });
      case '/echo': {
        const { method, query, body, headers } = request;
        return { method, query, body: [...body], headers };
      }
      case '/raise': throw new Error('a secret of the connector');
      case '/refused': await ctx.emit({ name: 'no message' }); return;
      case '/too-large': {
        const message = { type: 'text', text: 'x'.repeat(5_000_000) };
        await ctx.emit({ name: 'e', message, instanceKey: 'i' });
        return;
      }
      case '/long-line': ctx.logger.info('\u0001'.repeat(1_000_000)); return;
      case '/long-refusal':
        throw Object.assign(new Error('x'.repeat(5_000_000)), { code: 'E_WEBHOOK_REFUSED', status: 403 });
      case '/text': return 7;
      case '/header': return new Response('', { headers: { 'X-Own': '1\\r\\nSet-Cookie: a=b' } });
      case '/status': return new Response('', { status: 99 });
      case '/large': return new Response('x'.repeat(2_097_153));
      case '/verify':
        ctx.verify(request, 'github');
        await ctx.emit({ name: 'e', message: { type: 'text', text: 't' }, instanceKey: 'i' });
        return;
      case '/json': return { read: request.json() };
      case '/hang': return new Promise(() => setTimeout(() => {}, 600_000));
      case '/meet':
        return new Promise<void>((resolve) => {
          waiting.push(resolve);
          if (waiting.length === 40) for (const one of waiting) one();
        });
      case '/emit': {
        const event = { name: 'e', message: { type: 'text', text: 't' }, instanceKey: 'i' };
        return { agent: (await ctx.emit(event)).agent };
      }
      case '/exit': process.exit(3);
    }
  }

  await ctx.http(handle);
}
"""
IN_THREADS = """
import threading

def connect(ctx):
    meeting = threading.Barrier(10)

    def handle(request):
        match request.path:
            case "/meet":
                meeting.wait(60)
            case "/emit":
                event = {"name": "e", "message": {"type": "text", "text": "t"}, "instanceKey": "i"}
                return {"agent": ctx.emit(event).agent}
            case "/raise":
                raise SystemExit("a secret of the connector")

    ctx.http(handle)
"""

POLLING = """
async def connect(ctx):
    await ctx.emit({"name": "e", "message": {"type": "text", "text": "t"}, "instanceKey": "i"})
"""


class FakeStore:
    """What the runner keeps in Redis."""

    def __init__(self) -> None:
        self.lease_seconds = 60.0
        self.events_waiting = 0
        self.counted: list[tuple[str, str]] = []
        self.errors: list[str] = []

    def key(self, name: str) -> str:
        return name

    def hold(self, _: Any) -> float:
        return 0

    def waiting(self, agent: str, instance_key: str) -> int:
        return self.events_waiting

    def count(self, _: Any, outcome: str, error: str = "") -> None:
        self.counted.append((outcome, error))

    def let_go(self, _: Any, error: str = "") -> None:
        self.errors.append(error)

    def note_error(self, _: Any, error: str) -> None:
        self.errors.append(error)


class ShorterQueue(FakeStore):
    """A queue that has room at the third look."""

    asked = 0

    def waiting(self, agent: str, instance_key: str) -> int:
        self.asked += 1
        return 5 if self.asked < 3 else 4


class Connection:
    """A Connection that answers requests, and what its events meet."""

    def __init__(self, runner: ConnectionRunner, store: FakeStore, client: Any) -> None:
        self.runner, self.store, self.client = runner, store, client

    def ask(self, path: str, **fields: Any) -> HttpResponse:
        [answer] = self.ask_all([HttpRequest("POST", path, **fields)])
        return answer

    def ask_all(self, requests: list[HttpRequest]) -> list[HttpResponse]:
        open_requests = self.runner.requests
        assert open_requests is not None

        async def ask() -> list[HttpResponse]:
            return await asyncio.gather(*map(open_requests.answer, requests))

        return asyncio.run(ask())

    def wait(self) -> None:
        """Wait until the connector serves."""
        requests = self.runner.requests
        assert requests is not None
        wait_until(lambda: requests.is_served, PATIENCE, show=lambda: self.store.errors)


@contextmanager
def serving(entry: Path, code: str, javascript: str | None = None) -> Iterator[Connection]:
    """Run a connector that answers requests."""
    entry.write_text(code, encoding="utf-8")
    store, client = FakeStore(), SimpleNamespace()
    client.send = lambda agent, _, **__: SimpleNamespace(target=agent, id="c-1")
    fakes: Any = {"store": store, "client": client}
    program = ConnectorProgram(
        entry, "shop", "shop", {}, {"SIGNING_SECRET": "s3cret"}, javascript=javascript, answers_http=True
    )
    runner = ConnectionRunner(
        program, Source("shop", "shop", (), "clerk", 5), owner="here:1",
        backoff=BackoffRules(crashes=1, first_ms=10, longest_ms=10), answer_seconds=PATIENCE, **fakes,
    )  # fmt: skip
    runner.start()
    connection = Connection(runner, store, client)
    connection.wait()
    yield connection
    runner.stop()
    assert runner.join(PATIENCE)


@pytest.fixture(scope="module", params=["python", *NAMES])
def connection(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("connection")
    if request.param == "python":
        arguments: tuple[Any, ...] = (folder / "shop.py", IN_PYTHON)
    else:
        arguments = (folder / "shop.ts", IN_TYPESCRIPT, runtime(request.param).program)
    with serving(*arguments) as connection:
        yield connection


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/nothing", 200, ""),
        ("/object", 200, '{"status":"fine"}'),
        ("/own", 202, "über"),
        ("/gone", 204, ""),
        ("/raise", 500, "The connector failed."),
        ("/refused", 422, "The event is not valid"),
        ("/too-large", 422, "bytes as JSON, more than 4,194,304"),
        ("/long-line", 200, ""),
        ("/long-refusal", 403, "E_WEBHOOK_REFUSED"),
        ("/text", 500, "The connector failed."),
        ("/header", 500, "The connector failed."),
        ("/status", 500, "The connector failed."),
        ("/large", 500, "The connector failed."),
        ("/verify", 401, "it lacks the header 'x-hub-signature-256'"),
        ("/json", 400, "The body is not JSON"),
    ],
)
def test_request_gets_its_answer(connection: Connection, path: str, status: int, body: str) -> None:
    answer = connection.ask(path, body=b"no JSON")

    assert (answer.status, body.replace(" ", "") in text_of(answer).replace(" ", "")) == (status, True)
    assert "secret of" not in text_of(answer)


def text_of(answer: HttpResponse) -> str:
    return answer.body if isinstance(answer.body, str) else answer.body.decode()


def test_request_arrives_unchanged(connection: Connection) -> None:
    body = bytes(range(256)) + b"\r\n\xff"
    answer = connection.ask("/echo", query={"a": "1 ü"}, headers={"x-own": "2"}, body=body)

    assert json.loads(text_of(answer)) == {
        "method": "POST", "query": {"a": "1 ü"}, "headers": {"x-own": "2"}, "body": list(body),
    }  # fmt: skip
    assert answer.headers["content-type"].partition(";")[0] == "application/json"


def test_headers_of_connection_are_servers(connection: Connection) -> None:
    headers = {name.lower(): value for name, value in connection.ask("/own").headers.items()}

    kind = headers.pop("content-type", "text/plain")  # Bun leaves the choice to the server
    assert headers == {"x-own": "1"}
    assert kind.partition(";")[0] == "text/plain"


def test_body_of_maximum_size_is_answered_larger_refused(connection: Connection) -> None:
    bodies = [b"x" * MAX_BODY_BYTES, b"x" * (MAX_BODY_BYTES + 1)]
    answers = connection.ask_all([HttpRequest("POST", "/nothing", body=body) for body in bodies])

    assert [one.status for one in answers] == [200, 413]


def test_many_requests_are_answered_at_time(connection: Connection) -> None:
    answers = connection.ask_all([HttpRequest("POST", "/meet")] * 40)

    assert [one.status for one in answers] == [200] * 40


def test_event_of_request_is_handed_over(connection: Connection) -> None:
    assert json.loads(text_of(connection.ask("/emit"))) == {"agent": "clerk"}


def test_event_is_put_off_while_too_many_wait(connection: Connection) -> None:
    connection.store.events_waiting = 5
    answer = connection.ask("/emit")
    connection.store.events_waiting = 0

    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert "5 events wait for the agent 'clerk'" in text_of(answer)
    assert connection.ask("/emit").status == 200


def test_event_is_put_off_while_redis_is_away(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BrokerUnreachableError("Redis is away.")

    with monkeypatch.context() as patch:
        patch.setattr(connection.client, "send", fail)
        answer = connection.ask("/emit")

    assert (answer.status, "retry-after" in answer.headers) == (503, True)


def test_refused_request_is_counted(connection: Connection) -> None:
    before = len(connection.store.counted)
    connection.ask("/verify", headers={"x-hub-signature-256": "sha256=00"})

    wait_until(lambda: len(connection.store.counted) > before, PATIENCE)
    text = "The signature of the request does not match."
    assert connection.store.counted[before:] == [("refused", text)]  # and no event


def test_event_of_signed_request_is_handed_over(connection: Connection) -> None:
    signed = hmac.new(b"s3cret", b"paid", hashlib.sha256).hexdigest()
    answer = connection.ask("/verify", headers={"x-hub-signature-256": f"sha256={signed}"}, body=b"paid")

    assert answer.status == 200
    assert connection.store.counted[-1] == ("events", "")


async def never_answered(requests: OpenRequests, count: int) -> list[int]:
    asked = [requests.answer(HttpRequest("POST", "/hang", body=b"x")) for _ in range(count)]
    return [answer.status for answer in await asyncio.gather(*asked)]


def test_unanswered_request_is_given_up_and_cancelled() -> None:
    requests, written, ended = OpenRequests("shop", answer_seconds=0.01), list[JsonObject](), list[str]()
    requests.attach(written.append, ended.append)

    assert asyncio.run(never_answered(requests, 1)) == [504]
    assert [(one["type"], one["id"]) for one in written] == [("request", 1), ("cancel", 1)]
    requests.respond({"type": "response", "id": 1, "status": 200})
    requests.respond({"type": "response", "id": [], "status": 200})


def test_unresponsive_connector_ends_when_requests_fill_up() -> None:
    requests, written, ended = OpenRequests("shop", answer_seconds=0.01), list[JsonObject](), list[str]()
    requests.attach(written.append, ended.append)

    assert asyncio.run(never_answered(requests, MOST_OPEN + 1)) == [504] * MOST_OPEN + [503]
    wait_until(lambda: asyncio.run(never_answered(requests, 1)) == [503] and ended, PATIENCE)
    assert ended[0] == "It answers no requests."
    requests.detach()
    requests.attach(written.append, ended.append)
    assert asyncio.run(never_answered(requests, 1)) == [504]


def test_bodies_together_have_limit() -> None:
    requests = OpenRequests("shop", answer_seconds=0.01)
    requests.attach(lambda _: None, print)

    async def ask() -> list[int]:
        large = HttpRequest("POST", "/", body=b"x" * MAX_BODY_BYTES)
        asked = [requests.answer(large) for _ in range(MOST_OPEN_BYTES // MAX_BODY_BYTES + 1)]
        return [answer.status for answer in await asyncio.gather(*asked)]

    assert sorted(asyncio.run(ask())) == [503] + [504] * (MOST_OPEN_BYTES // MAX_BODY_BYTES)


def test_ended_connectors_requests_must_be_sent_again(connection: Connection) -> None:
    hung, ended = connection.ask_all([HttpRequest("POST", "/hang"), HttpRequest("POST", "/exit")])

    assert (hung.status, ended.status) == (503, 503)
    connection.wait()
    assert connection.ask("/nothing").status == 200
    assert connection.store.errors == ["It ended with 3."]


def test_plain_handlers_answer_in_threads(tmp_path: Path) -> None:
    with serving(tmp_path / "shop.py", IN_THREADS) as connection:
        answers = connection.ask_all([HttpRequest("POST", "/meet")] * 10)
        assert [one.status for one in answers] == [200] * 10
        assert connection.ask("/emit").body == b'{"agent": "clerk"}'
        assert connection.ask("/raise").status == 500


def test_emit_of_connector_that_polls_waits_for_room(tmp_path: Path) -> None:
    entry, sent = tmp_path / "poll.py", list[str]()
    entry.write_text(POLLING, encoding="utf-8")
    store, client = ShorterQueue(), SimpleNamespace()

    def send(agent: str, event: Any, **_: Any) -> Any:
        sent.append(event.input)
        return SimpleNamespace(target=agent, id="c-1")

    client.send = send
    fakes: Any = {"store": store, "client": client}
    source = Source("shop", "shop", (), "clerk", 5)
    program = ConnectorProgram(entry, "shop", "shop", {}, {})
    runner = ConnectionRunner(program, source, owner="here:1", **fakes)
    runner.start()
    wait_until(lambda: sent, PATIENCE)
    assert runner.join(PATIENCE)

    assert (sent, store.asked) == (["t"], 3)
    assert store.counted == [("events", "")]

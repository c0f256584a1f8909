"""The transports: a program's stdin and stdout line by line, and streamable HTTP."""

import asyncio
import json
import sys
from typing import Any

import pytest
from mcp_types import JSONRPCError, JSONRPCResponse

from goondan_tasks.contract.errors import ConfigError, McpError
from tests.unit.workers.mcp.office import QUICK, UNASKED, Office, opened
from tests.unit.workers.mcp.plain_http_server import PlainHttpServer
from tests.unit.workers.mcp.web_server import WebServer
from tests.waiting import wait_until
from workers.mcp.servers import Connection, RestartTimes, ended
from workers.mcp.tasks import GetTask, TaskParams, TaskState, UnreadableAnswerError
from workers.mcp.transports import END_BYTES, Command, HttpTransport, StdioTransport, read_message

#: it does not end with its input
STUBBORN = Command((sys.executable, "-c", "import time; time.sleep(600)"))


async def comes_to_an_end(transport: StdioTransport) -> None:
    """Wait until the guard has ended, which ends after all that it guards."""
    await asyncio.to_thread(wait_until, lambda: transport._guard.process.returncode is not None)


def test_server_whose_stop_is_cancelled_ends() -> None:
    async def main() -> None:
        transport = StdioTransport(STUBBORN, on_end=lambda: None, on_line=lambda _: None, hide=str)
        for stream in await transport.__aenter__():
            stream.close()
        leaving = asyncio.create_task(transport.__aexit__(None, None, None))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await comes_to_an_end(transport)

    asyncio.run(main())


def test_server_whose_start_is_cancelled_ends() -> None:
    async def main() -> None:
        transport = StdioTransport(STUBBORN, on_end=lambda: None, on_line=lambda _: None, hide=str)
        starting = asyncio.create_task(transport.__aenter__())
        await asyncio.sleep(0)  # it has started, and is being connected
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await comes_to_an_end(transport)

    asyncio.run(main())


DEEP = "[" * 300 + "]" * 300
FAR = f'"far": "{"x" * END_BYTES}"'


def answered(line: str) -> int | str | None:
    """Return the id of the call that an unreadable line answers, if it does."""
    message = read_message(line.encode())
    assert message is None or isinstance(message, JSONRPCError)
    return None if message is None else message.id


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (f'{{"jsonrpc":"2.0","id":3,"result":{DEEP}}}', 3),
        (f'{{"jsonrpc":"2.0","result":{{"id":7,"x":{DEEP}}},"id":"a\\u0062"}}', "ab"),
        (f' {{ "error" : "\\"}}{{", "x": {DEEP}, "id" : 3 }}', 3),
        ('{"jsonrpc":"2.0","id":3,"result":[]}', 3),
        ('{"jsonrpc":"2.0","id":3,"result":{"a":', 3),
        (f'{{"result":{DEEP},"error":null,"jsonrpc":"2.0","id":3}}\r\n', 3),
        (f'{{"error":null,"id":3,"result":{DEEP}}}', 3),
        (f'{{"id":3,"result":{DEEP},{FAR}}}', 3),
        (f'{{{FAR},"result":{DEEP},"id":3}}', None),
        (f'{{"result":{DEEP},"id":3,{FAR}}}', None),
        ('{"id":3,"result":[' + "1," * 10_000, 3),
        ('{"id":3,"result":{"x":1,"id":7}', 3),
        (f'{{"id":1e3,"result":{DEEP}}}', None),
        (f'{{"id":03,"result":{DEEP}}}', None),
        ('{"id":3}', None),
        ('{"id":null,"result":[]}', None),
        ('{"id":true,"result":[]}', None),
        ('{"id":{"id":3},"result":[]}', None),
        ('{"params":{"id":3,"result":1}}', None),
        ('["id",3,"result",1]', None),
        ("warming up: 3", None),
        ("", None),
        ('{"' + '\\"' * 2_000_000, None),
    ],
)
def test_answer_has_id_and_result_or_error(line: str, number: int | str | None) -> None:
    assert answered(line) == number


def test_message_that_can_be_read_is_that_message() -> None:
    line = b'{"jsonrpc":"2.0","id":"3","result":{"content":[]}}\n'

    assert read_message(line) == JSONRPCResponse(jsonrpc="2.0", id="3", result={"content": []})


@pytest.mark.parametrize("rest", ["[" * 200_000, "0," + "11," * 70_000, "[]" * 100_000])
def test_length_does_not_affect_unreadable_answers_cost(rest: str) -> None:
    line = f'{{"jsonrpc":"2.0","id":3,"result":{rest}\n'.encode()
    steps: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: steps.append(event))
    try:
        message = read_message(line)
    finally:
        sys.setprofile(None)

    assert isinstance(message, JSONRPCError) and message.id == 3
    assert len(steps) < 1000


@pytest.mark.parametrize("token", ["Bearer opensesame", " Bearer opensesame\n"])
def test_tools_are_called_with_headers_of_config(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("WEB_TOKEN", token)
    headers = {"Authorization": {"valueFrom": {"env": "WEB_TOKEN"}}, "X-Team": "blue"}

    async def look(url: str) -> dict[str, str]:
        async with opened({"web": {"url": url, "headers": headers}}) as it:
            told: dict[str, str] = await it.call("web__headers")
            return told

    with WebServer() as server:
        told = asyncio.run(look(server.url))
    assert server.seen["authorization"] == "Bearer opensesame"
    assert (told["authorization"], told["x-team"]) == ("***", "blue")


@pytest.mark.parametrize("token", ["Bearer open\nsesame", "Bearer 열려라참깨", "Bearer \x7fopen"])
def test_unsendable_header_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("WEB_TOKEN", token)

    async def look() -> None:
        headers = {"Authorization": {"valueFrom": {"env": "WEB_TOKEN"}}}
        async with opened({"web": {"url": "http://127.0.0.1:9/mcp", "headers": headers}}):
            pass

    with pytest.raises(ConfigError, match=r"headers\.Authorization: .* no header may have") as raised:
        asyncio.run(look())
    assert "Bearer" not in str(raised.value)


def test_server_is_found_at_address_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> tuple[bool, str | None]:
        async with opened({"web": {"url": {"valueFrom": {"env": "WEB_URL"}}}}) as it:
            return it.state("web")

    with WebServer() as server:
        monkeypatch.setenv("WEB_URL", f"{server.url}\n")
        assert asyncio.run(look()) == (True, None)


def test_too_deeply_nested_answer_fails_call_immediately() -> None:
    async def look(url: str) -> tuple[str, Any]:
        async with opened({"web": {"url": url}}) as it:
            with pytest.raises(McpError) as raised:
                await it.call("web__nested", depth=240)
            return raised.value.message, await it.call("web__nested", depth=1)

    with WebServer() as server:
        message, output = asyncio.run(look(server.url))
    assert "recursion limit exceeded" in message
    assert "input_value" not in message
    assert output == {"deep": [0]}


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_overlong_answer_costs_only_its_own_call(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.mcp.transports.MESSAGE_BYTES", 100_000)

    async def look(url: str) -> tuple[int, str, bool, Any]:
        web = {"url": url, "headers": {"Accept-Encoding": encoding}}
        async with opened({"web": web}) as it:
            other = asyncio.create_task(it.call("web__hang"))
            allowed = await it.call("web__rant", characters=90_000)
            with pytest.raises(McpError) as raised:
                await it.call("web__rant", characters=500_000)
            again = await it.call("web__rant", characters=1)
            is_lost = other.done()
            other.cancel()
            await asyncio.wait([other])
            return len(allowed), raised.value.message, is_lost, again

    with WebServer(answers_json=True) as server:
        size, message, is_lost, again = asyncio.run(look(server.url))
    assert (size, is_lost, again) == (90_000, False, "!")
    assert "'web' answered with an error: " in message
    assert "it sent a message of more than 100000 bytes" in message


UNKNOWN = '{"jsonrpc": "2.0", "id": null, "error": {"code": -32602, "message": "no such task"}}'
LONG = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"text": "x" * 10_000}})


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", LONG),
        ("application/json", "<html>"),
        ("application/json", '{"a":' * 300),
        ("text/event-stream", f"event: message\ndata: {LONG}\n\n"),
    ],
)
def test_unreadable_task_answer_leaves_connection_open(
    kind: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.mcp.transports.MESSAGE_BYTES", 5_000)

    async def ask(server: PlainHttpServer) -> Any:
        connection = Connection(lambda _: HttpTransport(server.url, {}), UNASKED, takes_tasks=True)
        is_up = asyncio.Event()
        life = asyncio.create_task(connection.run(lambda _: is_up.set()))
        await is_up.wait()
        server.refusal = (200, kind, body, {})
        with pytest.raises(UnreadableAnswerError):
            await connection.ask(GetTask(params=TaskParams(task_id="t")), TaskState)
        server.refusal = (400, "application/json", UNKNOWN, {})
        with pytest.raises(McpError, match="no such task"):
            await connection.ask(GetTask(params=TaskParams(task_id="t")), TaskState)
        await ended(life)

    with PlainHttpServer() as server:
        asyncio.run(ask(server))


def test_broken_connection_costs_only_its_own_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.mcp.servers.REASON_SECONDS", 0.1)

    async def look(server: PlainHttpServer) -> tuple[str, Any, tuple[bool, str | None]]:
        async with opened({"web": {"url": server.url}}, UNASKED) as it:
            other = asyncio.create_task(it.call("web__count", waits=True))
            with pytest.raises(McpError) as raised:
                await it.call("web__count", breaks=True)
            server.goes_on.set()
            return raised.value.message, await other, it.state("web")

    with PlainHttpServer() as server:
        message, output, state = asyncio.run(look(server))
    assert "'web' was lost during the call: RemoteProtocolError: Server disconnected" in message
    assert (output, state) == ("1", (True, None))


def test_list_that_changes_is_followed() -> None:
    async def look(url: str) -> Any:
        async with opened({"web": {"url": url}}, UNASKED) as it:
            await it.call("web__learn", name="newer")
            await it.comes_true(lambda: "web__newer" in it.api.tools.registered)
            return await it.call("web__newer")

    with WebServer() as server:
        assert asyncio.run(look(server.url)) == "newer"


def test_lost_server_fails_calls_and_is_refound() -> None:
    async def look(it: Office, server: WebServer) -> tuple[str, str]:
        hanging = asyncio.create_task(it.call("web__hang"))
        await it.call("web__headers")
        await asyncio.to_thread(server.__exit__, None, None, None)
        with pytest.raises(McpError) as during:
            await hanging
        await it.comes_true(lambda: not it.state("web")[0])
        with pytest.raises(McpError) as after:
            await it.call("web__headers")
        return during.value.message, after.value.message

    async def lose_and_find() -> tuple[str, str]:
        server = WebServer().__enter__()
        async with opened({"web": {"url": server.url}}) as it:
            messages = await look(it, server)
            with WebServer(server.port):
                await it.comes_true(lambda: it.state("web")[0])
                await it.call("web__headers")
        return messages

    during, after = asyncio.run(lose_and_find())
    assert during.startswith("MCP server 'web' ")
    assert after.startswith("MCP server 'web' is not running: ConnectError: All connection attempts failed")


@pytest.mark.parametrize("path", ["/elsewhere", ""])
def test_address_without_server_costs_only_its_own_tools(path: str) -> None:
    async def look(server: WebServer) -> tuple[set[str], tuple[bool, str | None]]:
        nowhere = {"url": f"http://127.0.0.1:{server.port}{path}"}
        async with opened({"web": {"url": server.url}, "nowhere": nowhere}) as it:
            return set(it.api.tools.registered), it.state("nowhere")

    with WebServer() as server:
        tools, (is_up, reason) = asyncio.run(look(server))
    assert tools == {"web__headers", "web__hang", "web__learn", "web__nested", "web__rant"}
    assert (is_up, str(reason).partition(";")[0]) == (False, "HTTP 404 Not Found. Check the server's url")


@pytest.mark.parametrize("patience", [QUICK, UNASKED], ids=["asked", "unasked"])
@pytest.mark.parametrize(
    "unknown", [(404, "gone"), (404, ""), (400, "Bad Request: No valid session ID provided")]
)
def test_calls_continue_in_new_session_running_once(unknown: tuple[int, str], patience: RestartTimes) -> None:
    async def look(server: PlainHttpServer) -> list[Any]:
        async with opened({"web": {"url": server.url}}, patience) as it:
            first = await it.call("web__count")
            server.sessions.clear()
            return [first, *await asyncio.gather(*(it.call("web__count") for _ in range(3)))]

    with PlainHttpServer() as server:
        server.unknown = unknown
        outputs = asyncio.run(look(server))
    assert (outputs[0], sorted(outputs[1:])) == ("1", ["2", "3", "4"])
    assert server.calls == 4


def test_server_that_forgets_every_session_is_error() -> None:
    async def look(server: PlainHttpServer) -> None:
        async with opened({"web": {"url": server.url}}, UNASKED) as it:
            await it.call("web__count")

    with PlainHttpServer() as server:
        server.forgets_always = True
        with pytest.raises(McpError, match="'web' did not run the call: it has forgotten the session, twice"):
            asyncio.run(look(server))
    assert server.calls == 0


HTML = "<html><body>A page of a proxy</body></html>"
PLAIN, JSON = "text/plain; charset=utf-8", "application/json"
BUSY = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32_000, "message": "busy"}})


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((401, PLAIN, "", {}), "HTTP 401 Unauthorized. Check the credentials in the server's headers"),
        ((403, "text/html", HTML, {}), "HTTP 403 Forbidden. The credentials in the server's headers do not"),
        ((404, PLAIN, "", {}), "'web' did not run the call"),
        (
            (429, PLAIN, "slow\ndown", {"retry-after": "7"}),
            "HTTP 429 Too Many Requests: slow down. Try again after 7 s",
        ),
        (
            (500, JSON, '{"detail": "x"}', {}),
            'HTTP 500 Internal Server Error: {"detail": "x"}. Try again later',
        ),
        ((502, "text/html", HTML, {}), "HTTP 502 Bad Gateway. Try again later"),
        (
            (503, JSON, BUSY, {}),
            "answered with an error: HTTP 503 Service Unavailable: busy. Try again later",
        ),
        ((418, PLAIN, "y" * 5_000, {}), "HTTP 418 I'm a Teapot: yyy"),
        ((200, "text/html", HTML, {}), "Unexpected content type: text/html"),
        (
            (307, PLAIN, "", {"location": "http://127.0.0.2/mcp"}),
            "Redirect to http://127.0.0.2/mcp not followed",
        ),
        ((302, PLAIN, "", {"location": "/other"}), "not followed"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_refused_call_has_status_and_suggestion(
    refusal: tuple[int, str, str, dict[str, str]], message: str
) -> None:
    async def look(server: PlainHttpServer) -> tuple[str, Any]:
        async with opened({"web": {"url": server.url}}, UNASKED) as it:
            server.refusal = refusal
            with pytest.raises(McpError) as raised:
                await it.call("web__count")
            server.refusal = None
            await it.comes_true(lambda: it.state("web")[0])
            return raised.value.message, await it.call("web__count")

    with PlainHttpServer() as server:
        told, output = asyncio.run(look(server))
    assert message in told
    assert "A page" not in told
    assert len(told) < 500
    assert output == "1"


def test_server_refusing_start_is_down_with_status() -> None:
    async def look(server: PlainHttpServer) -> str | None:
        async with opened({"web": {"url": server.url}}) as it:
            return it.state("web")[1]

    with PlainHttpServer() as server:
        server.refusal, server.refuses_all = (401, PLAIN, "", {}), True
        reason = asyncio.run(look(server))
    assert str(reason).startswith("HTTP 401 Unauthorized. Check the credentials in the server's headers")

"""``goondan mcp-server``: clients of the official SDK, over stdio and HTTP, with two workers behind it."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp_types import INVALID_PARAMS, ToolListChangedNotification

from broker_config.connections import connect
from broker_config.keys import Keys
from goondan_tasks.fleet.agent_registry import AgentRegistry
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import PROGRAM, environment, goondan, serving
from tests.integration.mcp_doors import (
    PATIENCE,
    Door,
    Doors,
    Mode,
    mcp_over_http,
    raw_server,
    say,
    with_token,
)
from tests.processes import runs
from tests.waiting import wait_until

CALLS_BUNDLE = Path(__file__).parent.parent / "bundles" / "calls"

WAITS = "patient__waits"
HANDSHAKE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "a-test", "version": "1"},
}

every_door = pytest.mark.parametrize("door", ["stdio", "http"])
both_ages = pytest.mark.parametrize("mode", ["legacy", "auto"])


@pytest.fixture(autouse=True)
def _left_open() -> Iterator[None]:
    """Collect the pipes that the SDK's clients leave open here, not amid any other test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    with (
        LocalStack(CALLS_BUNDLE, agents=["smith"], workers=2, concurrency=1) as stack,
        mcp_over_http(stack) as url,
    ):
        yield Doors(stack, url)


async def until(condition: Callable[[], object]) -> None:
    """Return as soon as ``condition()`` is true."""
    await asyncio.to_thread(wait_until, condition, PATIENCE)


@every_door
@both_ages
def test_client_lists_and_calls_agents_tools(doors: Doors, door: Door, mode: Mode) -> None:
    async def use() -> tuple[Any, Any, Any]:
        async with doors.client(door, mode) as client:
            listed = await client.list_tools()
            return (
                listed.tools,
                await client.call_tool("echo__args", {"n": [1, None]}),
                await client.call_tool("wait__seconds", {"seconds": 0}),
            )

    tools, echoed, waited = asyncio.run(use())

    strict = next(tool for tool in tools if tool.name == "echo__strict")
    assert strict.description == "Take exactly a text and maybe a number."
    assert strict.input_schema["required"] == ["text"]
    assert (echoed.structured_content, echoed.content[0].text) == ({"n": [1, None]}, '{"n":[1,null]}')
    assert (echoed.is_error, waited.is_error) == (False, False)
    origin = doors.stack.client.record(echoed.meta["goondan.ai/callId"]).call.origin
    assert origin == {"connector": "mcp", "client": {"name": "mcp", "version": "0.1.0"}}


@every_door
@both_ages
def test_one_clients_calls_run_on_both_workers_together(
    doors: Doors, door: Door, mode: Mode, tmp_path: Path
) -> None:
    async def meet() -> tuple[Any, Any]:
        async with doors.client(door, mode) as client:
            call = client.call_tool("meeting__sync", {"place": str(tmp_path), "guests": 2})
            again = client.call_tool("meeting__sync", {"place": str(tmp_path), "guests": 2})
            return await asyncio.gather(call, again)

    results = asyncio.run(meet())

    records = [doors.stack.client.record(result.meta["goondan.ai/callId"]) for result in results]
    assert [result.is_error for result in results] == [False, False]
    assert len({record.worker for record in records}) == 2


WRONG = {
    ("echo__strict", '{"text": 3}'): "E_TOOL_INVALID_ARGS",
    ("echo__strict", "null"): "E_TOOL_INVALID_ARGS",
    ("no__such-tool", "{}"): "E_TOOL_NOT_IN_CATALOG",
    ("", "{}"): "E_TOOL_NOT_IN_CATALOG",
    ("goondan__read-output", '{"id": "x"}'): "E_TOOL_INVALID_ARGS",
    ("odd__raises", '{"kind": "forge", "message": "cold"}'): "E_FORGE",
    ("echo__args", f'{{"big": "{"x" * 1_100_000}"}}'): "E_PAYLOAD_TOO_LARGE",
}


@every_door
@both_ages
def test_failed_call_is_structured_error(doors: Doors, door: Door, mode: Mode) -> None:
    async def use() -> list[Any]:
        async with doors.client(door, mode) as client:
            return [await client.call_tool(tool, json.loads(args)) for tool, args in WRONG]

    results = asyncio.run(use())

    errors = [result.structured_content["error"] for result in results]
    assert [error["code"] for error in errors] == list(WRONG.values())
    for result, error in zip(results, errors, strict=True):
        assert result.is_error
        assert result.content[0].text.startswith(f"{error['code']}: {error['message']}")


@every_door
@both_ages
def test_progress_of_handler_reaches_client(doors: Doors, door: Door, mode: Mode, tmp_path: Path) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))
        (tmp_path / "guest").touch()

    async def use() -> Any:
        async with doors.client(door, mode) as client:
            args = {"steps": 3, "place": str(tmp_path)}
            return await client.call_tool("teller__counts", args, progress_callback=on_progress)

    assert asyncio.run(use()).content[0].text == "counted"
    assert told[-1] == (3, 3, None)
    assert told == sorted(told, key=lambda one: one[0])
    assert len(told) >= 2


@every_door
@both_ages
def test_call_that_client_cancels_is_cancelled(doors: Doors, door: Door, mode: Mode, tmp_path: Path) -> None:
    async def use() -> None:
        async with doors.client(door, mode) as client:
            call = asyncio.create_task(client.call_tool(WAITS, {"place": str(tmp_path)}))
            await until((tmp_path / "began").exists)
            call.cancel()
            await until((tmp_path / "cleaned").exists)
            echoed = await client.call_tool("echo__args", {"still": "here"})
            assert echoed.structured_content == {"still": "here"}

    asyncio.run(use())


def test_closed_stdin_cancels_calls_client_waits_for(doors: Doors, tmp_path: Path) -> None:
    with raw_server(doors.stack) as server:
        begin_a_call(server, tmp_path)

        assert server.stdin is not None
        server.stdin.close()

        assert server.wait(PATIENCE) == 0
    wait_until((tmp_path / "cleaned").exists, PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_server_cancels_calls_client_waits_for(
    doors: Doors, tmp_path: Path, number: signal.Signals
) -> None:
    with raw_server(doors.stack) as server:
        begin_a_call(server, tmp_path)

        server.send_signal(number)

        assert server.wait(PATIENCE) == 128 + number
    wait_until((tmp_path / "cleaned").exists, PATIENCE)


@both_ages
def test_stopped_http_server_cancels_calls_clients_await(doors: Doors, mode: Mode, tmp_path: Path) -> None:
    async def use(url: str, stop: Callable[[], object]) -> None:
        async with Doors(doors.stack, url).client("http", mode) as client:
            call = asyncio.create_task(client.call_tool(WAITS, {"place": str(tmp_path)}))
            await until((tmp_path / "began").exists)
            stop()
            result = await call
            assert result.structured_content["error"]["code"] == "E_TOOL_CANCELLED"

    env = environment(redis_url=doors.stack.redis_url)
    with serving("mcp-server", "--agent", "smith", "--http", env=env) as server:
        asyncio.run(use(server.url, server.process.terminate))
        assert server.process.wait(PATIENCE) == 0
    wait_until((tmp_path / "cleaned").exists, PATIENCE)


def begin_a_call(server: "subprocess.Popen[str]", place: Path) -> None:
    """Call a tool that waits, and return when it has begun."""
    say(server, id=1, method="initialize", params=HANDSHAKE)
    say(server, method="notifications/initialized")
    say(server, id=2, method="tools/call", params={"name": WAITS, "arguments": {"place": str(place)}})
    wait_until((place / "began").exists, PATIENCE)


def test_rubbish_on_stdin_is_not_end_of_conversation(doors: Doors) -> None:
    with raw_server(doors.stack) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write("not JSON\n\n[]\n{}\n" + "x" * 1_000_000 + "\n")
        say(server, id=1, method="initialize", params=HANDSHAKE)
        assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"] == "goondan-smith"
        say(server, id=2, method="tools/call", params={"name": "echo__args", "arguments": "text"})
        assert json.loads(server.stdout.readline())["error"]["code"] == INVALID_PARAMS


@every_door
def test_handshake_client_is_notified_of_catalog_change(doors: Doors, door: Door) -> None:
    async def use() -> list[str]:
        changed = asyncio.Event()

        async def on_message(message: Any) -> None:
            if isinstance(message, ToolListChangedNotification):
                changed.set()

        async with doors.client(door, "legacy", message_handler=on_message) as client:
            await client.call_tool("echo__args", {})
            await asyncio.to_thread(announce, doors.stack, "echo__args", f"new__{door}")
            await asyncio.wait_for(changed.wait(), PATIENCE)
            return [tool.name for tool in (await client.list_tools()).tools]

    with catalog_restored(doors.stack):
        assert asyncio.run(use()) == ["echo__args", f"new__{door}"]


@every_door
def test_listening_client_is_notified_of_catalog_change(doors: Doors, door: Door) -> None:
    async def use() -> list[str]:
        async with doors.client(door, "auto") as client, client.listen(tools_list_changed=True) as changes:
            await asyncio.to_thread(announce, doors.stack, f"other__{door}")
            await asyncio.wait_for(anext(aiter(changes)), PATIENCE)
            return [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]

    with catalog_restored(doors.stack):
        assert asyncio.run(use()) == [f"other__{door}"]


@contextmanager
def catalog_restored(stack: LocalStack) -> Iterator[None]:
    """Announce the catalog as it was after the block."""
    names = [item["name"] for item in stack.client.catalog("smith")]
    try:
        yield
    finally:
        announce(stack, *names)


def announce(stack: LocalStack, *names: str) -> None:
    """Announce that the agent has these tools, as a worker would."""
    record = stack.client.agents()["smith"]
    known = {item["name"]: item for item in record.catalog}
    source = {"type": "extension", "name": "new"}
    items = tuple(known.get(name, {"name": name, "source": source}) for name in names)
    with connect(stack.redis_url) as redis:
        keys = Keys(stack.client.settings.namespace)
        AgentRegistry(redis, keys).publish_agents(
            [record.model_copy(update={"catalog": items})], served=["smith"]
        )


@both_ages
def test_each_handshake_session_has_own_instance(doors: Doors, mode: Mode) -> None:
    async def use() -> str:
        async with doors.client("http", mode) as client:
            first = await client.call_tool("echo__context", {})
            again = await client.call_tool("echo__context", {})
            assert first.structured_content["instanceKey"] == again.structured_content["instanceKey"]
            instance: str = again.structured_content["instanceKey"]
            return instance

    one, other = asyncio.run(use()), asyncio.run(use())

    assert one.startswith("mcp-")
    assert (one == other) is (mode == "auto"), "without sessions all share the server's instance"


def test_instance_can_be_named(doors: Doors) -> None:
    async def use() -> Any:
        async with doors.client("stdio", "auto", "--instance", "issue-42") as client:
            return await client.call_tool("echo__context", {})

    assert asyncio.run(use()).structured_content["instanceKey"] == "issue-42"


def post(url: str, **headers: str) -> int:
    """Begin a conversation and return the HTTP status."""
    return begun(url, **headers).status_code


def begun(url: str, **headers: str) -> httpx2.Response:
    """Begin a conversation."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HANDSHAKE}
    accept = {"Accept": "application/json, text/event-stream"}
    return httpx2.post(url, json=body, headers={**accept, **headers}, timeout=PATIENCE)


def ask(url: str, number: int, method: str, session: str = "", **params: Any) -> Any:
    """Begin a request of the handshake's latest version."""
    body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return httpx2.stream("POST", url, json=body, headers=stream_headers(session), timeout=PATIENCE)


def stream_headers(session: str) -> dict[str, str]:
    headers = {"Accept": "application/json, text/event-stream"}
    if session:
        headers |= {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"}
    return headers


def new_session(url: str) -> str:
    params: dict[str, Any] = {**HANDSHAKE, "protocolVersion": "2025-11-25"}
    with ask(url, 0, "initialize", **params) as response:
        session: str = response.headers["mcp-session-id"]
        response.read()
    return session


def first_event(response: Any) -> dict[str, str]:
    """Read one event of a stream."""
    event: dict[str, str] = {}
    for line in response.iter_lines():
        if not line:
            break
        name, _, value = line.partition(":")
        event[name] = value.strip()
    return event


def test_client_whose_stream_breaks_comes_back_for_result(doors: Doors, tmp_path: Path) -> None:
    session, stranger = new_session(doors.url), new_session(doors.url)
    call = {"name": WAITS, "arguments": {"place": str(tmp_path)}}
    with ask(doors.url, 7, "tools/call", session, **call) as response:
        opening = first_event(response)
        wait_until((tmp_path / "began").exists, PATIENCE)

    def missed(session: str) -> str:
        headers = {**stream_headers(session), "Last-Event-ID": opening["id"]}
        return httpx2.get(doors.url, headers=headers, timeout=PATIENCE).text

    assert (opening["data"], opening["retry"]) == ("", "1000")
    assert "data" not in missed(stranger)
    (tmp_path / "guest").touch()
    answer = json.loads(missed(session).rpartition("data: ")[2])
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "met")
    assert not (tmp_path / "cleaned").exists()


def test_call_is_cancelled_when_its_client_ends_session(doors: Doors, tmp_path: Path) -> None:
    session = new_session(doors.url)
    call = {"name": WAITS, "arguments": {"place": str(tmp_path)}}
    with ask(doors.url, 7, "tools/call", session, **call):
        wait_until((tmp_path / "began").exists, PATIENCE)

    assert httpx2.delete(doors.url, headers=stream_headers(session), timeout=PATIENCE).status_code == 200

    wait_until((tmp_path / "cleaned").exists, PATIENCE)


def test_page_of_another_site_is_refused(doors: Doors) -> None:
    assert post(doors.url) == 200
    assert post(doors.url, Origin="http://localhost:3000") == 200
    assert post(doors.url, Origin="https://evil.example") == 403
    assert post(doors.url, Host="evil.example") == 403


def test_configured_token_is_required(doors: Doors) -> None:
    async def use(url: str, token: str) -> Any:
        async with with_token(url, token) as client:
            return await client.call_tool("echo__args", {"n": 1})

    several = {
        "ci": {"token": "s3c0nd", "scopes": ["call:smith"], "user": "U1"},
        "reader": {"token": "th1rd", "scopes": ["read", "call:planner"]},
    }
    public_url = "https://tools.example/mcp"
    with mcp_over_http(
        doors.stack, http_token="s3cret", http_tokens=json.dumps(several), public_url=public_url
    ) as url:
        assert post(url) == 401
        assert post(url, Authorization="Bearer wrong") == 401
        assert post(url, Authorization="Basic s3cret") == 401
        assert post(url, Authorization="Bearer s3cret", Host="tools.example") == 200
        assert post(url, Authorization="Bearer s3cret", Origin="https://tools.example") == 200
        assert post(url, Authorization="Bearer s3cret", Origin="https://evil.example") == 403
        assert post(url, Authorization="Bearer th1rd") == 403
        results = [asyncio.run(use(url, token)) for token in ("s3cret", "s3c0nd")]
        assert [one.structured_content for one in results] == [{"n": 1}] * 2
        session = begun(url, Authorization="Bearer s3c0nd").headers["Mcp-Session-Id"]
        taken = {"Mcp-Session-Id": session}
        assert post(url, Authorization="Bearer s3cret", **taken) == 404

    ids = [one.meta["goondan.ai/callId"] for one in results]
    auths = [doors.stack.client.record(call_id).call.auth for call_id in ids]
    assert auths == [None, {"subjects": {"user": "U1"}}]


def test_remote_client_without_token_is_refused(doors: Doors) -> None:
    env = environment(redis_url=doors.stack.redis_url)
    done = goondan("mcp-server", "--agent", "smith", "--http", "--address", "0.0.0.0", "--json", env=env)

    assert done.exit_code == 3
    assert "GOONDAN_HTTP_TOKEN" in done.document["error"]["suggestion"]


@pytest.mark.parametrize(
    ("options", "exit_code", "word"),
    [
        ((), 2, "--agent"),
        (("--agent", "nobody"), 3, "smith"),
        (("--agent", "smith", "--port", "1"), 2, "--http"),
        (("--agent", "smith", "--http", "--address", "no.such.invalid"), 2, "no.such.invalid"),
        (("--agent", "smith", "--redis-url", "redis://127.0.0.1:1/0"), 5, "127.0.0.1:1"),
    ],
)
def test_reason_why_server_cannot_start_is_shown(
    doors: Doors, options: tuple[str, ...], exit_code: int, word: str
) -> None:
    env = environment(redis_url=doors.stack.redis_url, http_token="s3cret", connect_timeout_seconds=0)
    done = goondan("mcp-server", *options, env=env)

    assert (done.exit_code, done.stdout) == (exit_code, "")
    assert word in done.stderr


_HOST = """
import subprocess, sys
server = subprocess.Popen(sys.argv[1:])
print(server.pid, flush=True)
server.wait()
"""


@pytest.mark.usefixtures("fresh_programs")
def test_server_ends_with_client_despite_held_pipe(doors: Doors) -> None:
    source, stdin = os.pipe()
    command = [sys.executable, "-c", _HOST, *PROGRAM, "mcp-server", "--agent", "smith"]
    env = environment(redis_url=doors.stack.redis_url)
    with subprocess.Popen(command, env=env, stdin=source, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        server = int(host.stdout.readline())
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HANDSHAKE}
        os.write(stdin, json.dumps(request).encode() + b"\n")
        assert "serverInfo" in host.stdout.readline()

        host.kill()

    wait_until(lambda: not runs(server))
    os.close(source)
    os.close(stdin)

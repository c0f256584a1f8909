"""Servers behind an address, with a real one of the official SDK."""

import asyncio
from typing import Any

import pytest

from goondan_tasks.errors import ConfigError, McpError
from tests.unit.workers.mcp.office import UNASKED, Office, opened
from tests.unit.workers.mcp.web_server import WebServer


@pytest.mark.parametrize("token", ["Bearer opensesame", " Bearer opensesame\n"])
def test_tools_are_called_with_the_headers_of_the_config(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
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
def test_a_header_that_cannot_be_sent_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("WEB_TOKEN", token)

    async def look() -> None:
        headers = {"Authorization": {"valueFrom": {"env": "WEB_TOKEN"}}}
        async with opened({"web": {"url": "http://127.0.0.1:9/mcp", "headers": headers}}):
            pass

    with pytest.raises(ConfigError, match=r"headers\.Authorization: .* no header may have") as raised:
        asyncio.run(look())
    assert "Bearer" not in str(raised.value)


def test_a_server_is_found_at_an_address_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> tuple[bool, str | None]:
        async with opened({"web": {"url": {"valueFrom": {"env": "WEB_URL"}}}}) as it:
            return it.state("web")

    with WebServer() as server:
        monkeypatch.setenv("WEB_URL", f"{server.url}\n")
        assert asyncio.run(look()) == (True, None)


def test_an_answer_that_is_nested_too_deep_fails_its_call_at_once() -> None:
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


def test_a_list_that_changes_is_followed() -> None:
    async def look(url: str) -> Any:
        async with opened({"web": {"url": url}}, UNASKED) as it:
            await it.call("web__learn", name="newer")
            await it.comes_true(lambda: "web__newer" in it.api.tools.registered)
            return await it.call("web__newer")

    with WebServer() as server:
        assert asyncio.run(look(server.url)) == "newer"


def test_a_server_that_goes_away_fails_its_calls_and_is_found_again() -> None:
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
def test_an_address_without_a_server_costs_only_its_own_tools(path: str) -> None:
    async def look(server: WebServer) -> tuple[set[str], tuple[bool, str | None]]:
        nowhere = {"url": f"http://127.0.0.1:{server.port}{path}"}
        async with opened({"web": {"url": server.url}, "nowhere": nowhere}) as it:
            return set(it.api.tools.registered), it.state("nowhere")

    with WebServer() as server:
        tools, (is_up, reason) = asyncio.run(look(server))
    assert tools == {"web__headers", "web__hang", "web__learn", "web__nested"}
    assert (is_up, str(reason).partition(";")[0]) == (False, "Not Found")

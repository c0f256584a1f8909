"""The built-in Extension ``mcp``, as its loader calls it."""

import asyncio
import sys
from pathlib import Path

import pytest

from goondan_tasks.contract.errors import ConfigError, McpError
from goondan_tasks.fleet.agent_registry import McpServerRecord
from tests.processes import runs
from tests.unit.workers.mcp.memory_api import MemoryApi
from tests.unit.workers.mcp.office import moody
from tests.unit.workers.mcp.tool_contexts import Progress, context
from workers.builtin.mcp import register
from workers.mcp import process_board


def test_servers_start_with_register_and_end_with_worker(tmp_path: Path) -> None:
    async def look() -> list[McpServerRecord]:
        api = MemoryApi()
        await register(api, {"servers": {"moody": moody(tmp_path / "lives")}})
        records = list(process_board().records())
        [(event, listener)] = api.events.listeners
        assert event == "extension.unloading"
        await listener({})
        return records

    assert asyncio.run(look()) == [McpServerRecord(agent="clerk", name="moody", is_up=True, tools=24)]
    assert process_board().records() == ()
    assert not runs(int((tmp_path / "lives").read_text(encoding="utf-8")))


def test_call_running_at_worker_stop_finishes(tmp_path: Path) -> None:
    async def look() -> tuple[object, str]:
        api, progress = MemoryApi(), Progress()
        await register(api, {"servers": {"moody": moody(tmp_path / "lives")}})
        nap = asyncio.ensure_future(
            api.tools.registered["moody__nap"].handler(context(progress), {"seconds": 1})
        )
        await api.events.listeners[0][1]({})
        with pytest.raises(McpError) as raised:
            await api.tools.registered["moody__echo"].handler(context(progress), {"text": "x"})
        return await nap, raised.value.message

    assert asyncio.run(look()) == ("rested", "MCP server 'moody' is not running: its worker is stopping.")


def test_without_package_error_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("workers.mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)

    with pytest.raises(ConfigError) as raised:
        asyncio.run(register(MemoryApi(), {"servers": {"time": {"command": "mcp-server-time"}}}))

    assert raised.value.code == "E_CONFIG_PACKAGE_NOT_INSTALLED"
    assert raised.value.message == "mcp is not installed."
    assert raised.value.suggestion == "Install it with its extra: pip install 'goondan-workers[mcp]'"


def test_config_that_is_not_valid_starts_nothing() -> None:
    with pytest.raises(ConfigError, match=r"config\.servers: is missing"):
        asyncio.run(register(MemoryApi(), {}))

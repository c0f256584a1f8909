"""The built-in Extension ``mcp``, as its loader calls it."""

import asyncio
import sys
from pathlib import Path

import pytest

from goondan_tasks.errors import ConfigError, ExtensionInitError
from tests.unit.workers.mcp.memory_api import MemoryApi
from tests.unit.workers.mcp.office import moody
from workers.builtin.mcp.register import register
from workers.mcp.board import process_board


def test_servers_start_with_register_and_end_with_the_worker(tmp_path: Path) -> None:
    async def look() -> list[tuple[str, str, bool, int]]:
        api = MemoryApi()
        await register(api, {"servers": {"moody": moody(tmp_path / "lives")}})
        records = [
            (record.agent, record.name, record.is_up, record.tools) for record in process_board().records()
        ]
        [(event, listener)] = api.events.listeners
        assert event == "worker.stopping"
        await listener({})
        return records

    assert asyncio.run(look()) == [("clerk", "moody", True, 21)]
    assert process_board().records() == ()


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("workers.mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)

    with pytest.raises(ExtensionInitError) as raised:
        asyncio.run(register(MemoryApi(), {"servers": {"time": {"command": "mcp-server-time"}}}))

    assert raised.value.code == "E_EXT_INIT"
    assert raised.value.message == "The package 'mcp' is not installed."
    assert raised.value.suggestion == "Install the extra `mcp`: pip install 'goondan-workers[mcp]'."


def test_a_config_that_is_not_valid_starts_nothing() -> None:
    with pytest.raises(ConfigError, match=r"config\.servers: Field required"):
        asyncio.run(register(MemoryApi(), {}))

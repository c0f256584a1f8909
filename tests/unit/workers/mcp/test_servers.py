"""The servers of an agent, with a real program behind them: `tests/moody_server.py`."""

import asyncio
import json
import os
import signal
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.contract.errors import ConfigError, McpError, ToolError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.machine.process import child_environment
from tests.processes import runs
from tests.unit.workers.mcp.office import QUICK, UNASKED, Office, moody, opened
from workers.mcp.servers import ReadPace, RestartTimes
from workers.mcp.transports import KEPT_CHARACTERS


class Recorder:
    """A logger that keeps what it is told."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def __getattr__(self, _level: str) -> Any:
        return lambda event, **fields: self._lines.append(f"{event} {fields}")


def office(
    tmp_path: Path, patience: RestartTimes = QUICK, **fields: Any
) -> AbstractAsyncContextManager[Office]:
    """Start a moody server, and end it afterwards."""
    lives = tmp_path / "lives"
    return opened({"moody": moody(lives, **fields)}, patience, lives=lives)


@pytest.mark.requirement("catalog.item.source-mcp")
def test_server_tools_register_with_source_and_schema(tmp_path: Path) -> None:
    async def look() -> dict[str, JsonObject]:
        async with office(tmp_path) as it:
            return {name: tool.item.to_wire() for name, tool in it.api.tools.registered.items()}

    items = asyncio.run(look())

    source = {"type": "mcp", "name": "mcp", "mcp": {"extensionName": "mcp", "serverName": "moody"}}
    assert items["moody__echo"] == {
        "name": "moody__echo",
        "parameters": {"type": "object"},
        "source": source,
    }
    assert items["moody__facts"]["description"] == "Facts."
    assert items["moody__facts"]["parameters"]["definitions"]["name"]["x-shown-as"] == "name"
    assert len(items) == 24


def test_results_are_text_structure_or_mcp_content(tmp_path: Path) -> None:
    async def look() -> list[Any]:
        async with office(tmp_path) as it:
            return [
                await it.call("moody__echo", text="안녕\n"),
                await it.call("moody__facts", name="x"),
                await it.call("moody__picture"),
            ]

    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    assert asyncio.run(look()) == ["안녕\n", {"fact": "x"}, {"content": [image]}]


def test_answer_violating_output_schema_is_passed_on(tmp_path: Path) -> None:
    async def look() -> Any:
        async with office(tmp_path) as it:
            return await it.call("moody__facts", name="aaaab")

    assert asyncio.run(look()) == {"fact": "aaaab"}


def test_tool_that_fails_raises_its_text(tmp_path: Path) -> None:
    async def look() -> None:
        async with office(tmp_path) as it:
            await it.call("moody__fail")

    with pytest.raises(ToolError, match="no such city: Atlantis") as raised:
        asyncio.run(look())
    assert raised.value.code == "E_TOOL"


def test_names_that_are_forbidden_lead_back_to_tool(tmp_path: Path) -> None:
    async def look() -> tuple[list[str], Any]:
        async with office(tmp_path) as it:
            [name] = [name for name in it.api.tools.registered if "given" in name]
            return [name], await it.call(name)

    assert asyncio.run(look()) == (["moody__given_up_so_far-965d6da9"], "[]")


def test_progress_of_server_is_progress_of_call(tmp_path: Path) -> None:
    async def look() -> list[Any]:
        async with office(tmp_path) as it:
            await it.call("moody__count", to=3)
            await it.comes_true(lambda: len(it.progress.told) == 3)
            return sorted(it.progress.told)

    assert asyncio.run(look()) == [(1, 3, "at 1"), (2, 3, "at 2"), (3, 3, "at 3")]


def test_server_progress_messages_are_call_output(tmp_path: Path) -> None:
    async def look() -> list[Any]:
        async with office(tmp_path) as it:
            await it.call("moody__count", to=3)
            await it.comes_true(lambda: len(it.emitted) == 3)
            return sorted(it.emitted)

    assert asyncio.run(look()) == ["at 1\n", "at 2\n", "at 3\n"]


def test_cancelled_call_is_cancelled_at_server(tmp_path: Path) -> None:
    async def look() -> Any:
        async with office(tmp_path) as it:
            hanging = asyncio.create_task(it.call("moody__hang"))
            await it.call("moody__echo", text="x")
            hanging.cancel()
            await asyncio.wait([hanging])
            [name] = [name for name in it.api.tools.registered if "given" in name]
            return json.loads(await it.call(name)), it.pids

    given_up, lives = asyncio.run(look())
    assert given_up == ["caller cancelled"]
    assert len(lives) == 1


def test_list_that_changes_is_followed(tmp_path: Path) -> None:
    async def look() -> tuple[str | None, list[str]]:
        async with office(tmp_path, UNASKED) as it:
            before = set(it.api.tools.registered)
            await it.call("moody__grow")
            await it.comes_true(lambda: set(it.api.tools.registered) - before == {"moody__late"})
            louder = it.api.tools.registered["moody__echo"].item.description
            await it.call("moody__shrink")
            await it.comes_true(lambda: set(it.api.tools.registered) == before)
            return louder, [await it.call("moody__echo", text="still here")]

    assert asyncio.run(look()) == ("Louder.", ["still here"])


def test_dying_server_fails_its_call_and_restarts(tmp_path: Path) -> None:
    async def look() -> tuple[str, Any, int, Any]:
        async with office(tmp_path) as it:
            with pytest.raises(McpError) as raised:
                await it.call("moody__die")
            names = set(it.api.tools.registered)
            await it.comes_true(lambda: it.state() == (True, None))
            return raised.value.message, await it.call("moody__echo", text="back"), len(it.pids), len(names)

    message, output, lives, names = asyncio.run(look())
    assert "lost during the call: it ended with exit status 7" in message
    assert "out of cheese" in message
    assert (output, lives, names) == ("back", 2, 24)


def test_server_that_is_killed_comes_back(tmp_path: Path) -> None:
    async def look() -> tuple[str, Any]:
        async with office(tmp_path) as it:
            hanging = asyncio.create_task(it.call("moody__hang"))
            await it.call("moody__echo", text="x")
            os.kill(it.pids[0], signal.SIGKILL)
            with pytest.raises(McpError) as raised:
                await hanging
            await it.comes_true(lambda: it.state() == (True, None))
            return raised.value.message, await it.call("moody__echo", text="back")

    message, output = asyncio.run(look())
    assert "was lost during the call: it was ended by SIGKILL" in message
    assert output == "back"


def test_frozen_server_is_ended_after_abandoned_call(tmp_path: Path) -> None:
    async def look() -> tuple[str, Any, bool]:
        async with office(tmp_path) as it:
            frozen = asyncio.create_task(it.call("moody__freeze"))
            beside = asyncio.create_task(it.call("moody__echo", text="x"))
            await it.comes_true(lambda: (tmp_path / "lives.mood").exists())
            frozen.cancel()
            with pytest.raises(McpError) as raised:
                await beside
            await it.comes_true(lambda: len(it.pids) == 2 and it.state()[0])
            return raised.value.message, await it.call("moody__echo", text="back"), runs(it.pids[0])

    message, output, is_alive = asyncio.run(look())
    assert "was lost during the call: it did not answer within 1.5 s" in message
    assert (output, is_alive) == ("back", False)


@pytest.mark.parametrize("mischief", ["fall_silent", "fall_deaf"])
def test_silent_or_deaf_server_is_restarted(mischief: str, tmp_path: Path) -> None:
    async def look() -> tuple[Any, bool]:
        async with office(tmp_path) as it:
            call = asyncio.create_task(it.call(f"moody__{mischief}"))
            if mischief == "fall_deaf":
                await it.comes_true((tmp_path / "lives.mood").exists)
                call.cancel()
            await asyncio.wait([call])
            await it.comes_true(lambda: len(it.pids) == 2 and it.state()[0])
            assert call.cancelled() or isinstance(call.exception(), McpError)
            return await it.call("moody__echo", text="back"), runs(it.pids[0])

    assert asyncio.run(look()) == ("back", False)


def test_server_announcing_changes_endlessly_stays_usable(tmp_path: Path) -> None:
    async def look() -> list[Any]:
        async with office(tmp_path) as it:
            return [
                await it.call("moody__babble", times=2000),
                await it.call("moody__echo", text="x"),
                len(it.pids),
            ]

    assert asyncio.run(look()) == ["heard?", "x", 1]


def test_message_without_end_costs_connection_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.mcp.transports.MESSAGE_BYTES", 100_000)

    async def look() -> tuple[Any, str, Any]:
        async with office(tmp_path) as it:
            allowed = await it.call("moody__rant", characters=90_000)
            with pytest.raises(McpError) as raised:
                await it.call("moody__rant", characters=500_000)
            await it.comes_true(lambda: it.state()[0])
            return len(allowed), raised.value.message, await it.call("moody__echo", text="back")

    size, message, output = asyncio.run(look())
    assert (size, output) == (90_000, "back")
    assert "was lost during the call: it sent a message of more than 100000 bytes" in message


def test_server_may_be_busy_beyond_silence_limit(tmp_path: Path) -> None:
    async def look() -> tuple[Any, int]:
        async with office(tmp_path) as it:
            return await it.call("moody__nap", seconds=2 * (QUICK.idle + QUICK.answer)), len(it.pids)

    assert asyncio.run(look()) == ("rested", 1)


def test_down_servers_calls_fail_fast_but_tools_stay(tmp_path: Path) -> None:
    async def look() -> tuple[str, Any]:
        async with office(tmp_path) as it:
            ill = it.lives.with_name("lives.ill")
            ill.touch()
            os.kill(it.pids[0], signal.SIGKILL)
            await it.comes_true(lambda: "I am not well" in (it.state()[1] or ""))
            with pytest.raises(McpError) as raised:
                await it.call("moody__echo", text="x")
            ill.unlink()
            await it.comes_true(lambda: it.state()[0])
            return raised.value.message, await it.call("moody__echo", text="better")

    message, output = asyncio.run(look())
    assert message.startswith("MCP server 'moody' is not running: it ended with exit status 1: I am not well")
    assert "it is started again in 0." in message
    assert output == "better"


def test_server_gets_own_environment_without_workers_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOONDAN_OAUTH_KEY", "top")
    monkeypatch.setenv("KEY_OF_ANOTHER", "secret")
    monkeypatch.setenv("MOODY_PLACE", "/srv/notes")
    place = {"valueFrom": {"env": "MOODY_PLACE"}}

    async def look() -> dict[str, str]:
        async with office(tmp_path, env={"PLACE": place, "COLOUR": "red"}) as it:
            given: dict[str, str] = json.loads(await it.call("moody__environment"))
            return given

    given = asyncio.run(look())
    assert {name: given[name] for name in ("PLACE", "COLOUR")} == {"PLACE": "/srv/notes", "COLOUR": "red"}
    assert "PATH" in given
    assert set(given) <= {"PLACE", "COLOUR", "LC_CTYPE", *child_environment()}


def test_secret_in_servers_error_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOODY_KEY", "opensesame")

    async def look() -> None:
        async with office(tmp_path, env={"API_KEY": {"valueFrom": {"env": "MOODY_KEY"}}}) as it:
            await it.call("moody__refuse")

    with pytest.raises(McpError, match=r"answered with an error: the key \*\*\* is not welcome"):
        asyncio.run(look())


def test_servers_errors_output_and_log_show_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOODY_VALUE", "Bearer sk-opensesame")
    logged: list[str] = []

    async def look() -> tuple[str, Any, str]:
        async with office(tmp_path, env={"API_KEY": {"valueFrom": {"env": "MOODY_VALUE"}}}) as it:
            it.api.logger = Recorder(logged)
            with pytest.raises(ToolError) as raised:
                await it.call("moody__reject", before="x" * (KEPT_CHARACTERS - 20))
            output = await it.call("moody__environment")
            await it.comes_true(lambda: any("401" in line for line in logged))
            with pytest.raises(McpError) as died:
                await it.call("moody__die")
            return raised.value.message, json.loads(output)["API_KEY"], died.value.message

    error, output, death = asyncio.run(look())
    assert (error, output) == ("401 for key ***", "***")
    assert "401 for key ***" in death
    assert "opensesame" not in "".join((death, *logged))
    assert any("sk-" not in line and "401 for key ***" in line for line in logged)


@pytest.mark.parametrize("depth", [400, 100_000])
def test_too_deep_answer_immediately_fails_only_its_call(tmp_path: Path, depth: int) -> None:
    async def look() -> tuple[str, Any, int]:
        async with office(tmp_path) as it:
            other = asyncio.create_task(it.call("moody__hang"))
            with pytest.raises(McpError) as raised:
                await it.call("moody__nest", depth=depth)
            assert not other.done()
            other.cancel()
            await asyncio.wait([other])
            return raised.value.message, await it.call("moody__echo", text="x"), len(it.pids)

    message, output, lives = asyncio.run(look())
    assert "its answer cannot be read: recursion limit exceeded" in message
    assert (output, lives) == ("x", 1)


@pytest.mark.parametrize("answer", [{"result": [1]}, {"error": "no"}])
def test_malformed_answer_fails_its_call_at_once(tmp_path: Path, answer: JsonObject) -> None:
    async def look() -> None:
        async with office(tmp_path) as it:
            await it.call("moody__mumble", **answer)

    with pytest.raises(McpError, match="its answer cannot be read: it is not a response of JSON-RPC"):
        asyncio.run(look())


def test_processes_started_by_server_end_with_it(tmp_path: Path) -> None:
    async def look() -> int:
        async with office(tmp_path) as it:
            return int(await it.call("moody__child"))

    assert not runs(asyncio.run(look()))


def test_only_tools_declared_idempotent_may_run_twice(tmp_path: Path) -> None:
    async def look() -> dict[str, Any]:
        async with office(tmp_path, idempotent=["ec*"], timeoutSeconds=3) as it:
            return {name: dict(tool.policy) for name, tool in it.api.tools.registered.items()}

    policies = asyncio.run(look())
    twice = {name for name, policy in policies.items() if policy["idempotent"]}
    assert twice == {"moody__echo", "moody__count", "moody__picture", "moody__ponder"}
    assert {policy["timeoutSeconds"] for policy in policies.values()} == {3}


def test_unstartable_server_costs_only_its_own_tools(tmp_path: Path) -> None:
    nowhere = {"command": "/no/such/program"}
    homeless = {"command": sys.executable, "cwd": str(tmp_path / "gone")}
    lives = tmp_path / "lives"

    async def look() -> tuple[Any, tuple[bool, str | None], tuple[bool, str | None]]:
        async with opened({"nowhere": nowhere, "homeless": homeless, "moody": moody(lives)}) as it:
            return await it.call("moody__echo", text="x"), it.state("nowhere"), it.state("homeless")

    output, nobody, lost = asyncio.run(look())
    assert output == "x"
    assert nobody[0] is False
    assert "'/no/such/program' cannot be started: No such file or directory" in str(nobody[1])
    assert "No such file or directory" in str(lost[1])


def test_silent_server_does_not_block_agent_start() -> None:
    mute = {"command": "sleep", "args": ["600"]}
    patience = RestartTimes(connect=0.3, first_pause=5)

    async def look() -> tuple[int, tuple[bool, str | None]]:
        async with opened({"mute": mute}, patience, startSeconds=0.1) as it:
            tools = len(it.api.tools.registered)
            await it.comes_true(lambda: "not ready" in (it.state("mute")[1] or ""))
            return tools, it.state("mute")

    assert asyncio.run(look()) == (0, (False, "it was not ready within 0.3 s; it is started again in 5 s"))


def test_missing_value_is_error_before_anything_starts(tmp_path: Path) -> None:
    async def look() -> None:
        env = {"API_KEY": {"valueFrom": {"env": "NO_SUCH_VARIABLE_HERE"}}}
        async with office(tmp_path, env=env):
            raise AssertionError("it started")

    with pytest.raises(ConfigError, match="NO_SUCH_VARIABLE_HERE"):
        asyncio.run(look())
    assert not (tmp_path / "lives").exists()


def test_endlessly_announcing_server_is_asked_less_often() -> None:
    pace = ReadPace(shortest=0.1, longest=1.0)

    assert [pace.next_pause(waited=0) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert pace.next_pause(waited=5) == 0.1


def test_pace_delays_announced_change_not_health_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadPace, "next_pause", lambda _self, waited: 600)

    async def look() -> bool:
        async with office(tmp_path, UNASKED, env={"API_KEY": "key"}) as it:
            await it.call("moody__grow")
            was_read = "moody__late" in it.api.tools.registered
            with pytest.raises(McpError, match="not welcome"):
                await it.call("moody__refuse")  # after an error the server is asked how it is
            await it.comes_true(lambda: "moody__late" in it.api.tools.registered)
            return was_read

    assert not asyncio.run(look())

"""goondan flower: what it becomes, and what it checks before."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from flower import events
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.options import declared_queues
from goondan_tasks.cli import addresses, servers
from goondan_tasks.cli.addresses import require_free, why_not_free
from goondan_tasks.programs import flower_program
from goondan_tasks.programs.flower_program import BoundedPauses, QueueNames, receiving
from tests.unit.goondan_tasks.cli.invoke import goondan

EXAMPLE = Path(__file__).parents[4] / "examples" / "coding-swarm"

Started = list[tuple[list[str], dict[str, str]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Note what the process would become; the broker is there, and every port is free."""
    noted: Started = []
    monkeypatch.setattr(os, "execve", lambda path, argv, env: noted.append((argv, env)))
    monkeypatch.setattr(servers, "require_broker", lambda settings: None)
    monkeypatch.setattr(addresses, "why_not_free", lambda address, port: None)
    return noted


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Listen on a port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_flower_listens_on_loopback_with_arguments_and_results(started: Started) -> None:
    told = goondan("flower")

    [(command, _)] = started
    assert command[:4] == [sys.executable, "-P", "-m", "goondan_tasks.programs.flower_program"]
    assert command[4:8] == ["--app", "goondan_tasks", "--quiet", "flower"]
    assert {"--address=127.0.0.1", "--port=5555"} <= set(command)
    assert "--tasks_columns=name,state,kwargs,result,worker,runtime,received,uuid" in command
    assert told.stderr == "Flower: http://127.0.0.1:5555\n"


def test_its_own_options_come_last_and_win(started: Started) -> None:
    goondan("flower", "--port", "6000", "--", "--basic-auth=u:p", "--max_tasks=10")

    [(command, _)] = started
    assert "--port=6000" in command
    assert command[-2:] == ["--basic-auth=u:p", "--max_tasks=10"]


def test_opening_it_to_others_gives_warning(started: Started) -> None:
    told = goondan("flower", "--address", "::1", "--json")

    assert told.document == {"url": "http://[::1]:5555"}
    assert "anyone who reaches it" in told.stderr


def test_flower_gets_sound_bundle_and_faulty_is_reported(started: Started, tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_text("kind: Aget\n", encoding="utf-8")
    told = goondan("flower", "--bundle", str(tmp_path))
    assert (told.exit_code, "Aget" in told.stderr) == (0, True)
    assert "GOONDAN_BUNDLE" not in started.pop()[1]

    goondan("flower", "--bundle", str(EXAMPLE))
    [(_, environment)] = started
    assert environment["GOONDAN_BUNDLE"] == str(EXAMPLE)


def test_port_that_is_taken_is_usage_error(taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "require_broker", lambda settings: None)

    refused = goondan("flower", "--port", str(taken_port))

    assert refused.exit_code == 2
    assert f"port {taken_port}: Address already in use" in refused.stderr


def test_broker_that_is_not_there_ends_with_five() -> None:
    assert goondan("flower", "--redis-url", "redis://127.0.0.1:1").exit_code == 5


def test_reason_why_address_cannot_be_used_is_reported(taken_port: int) -> None:
    assert why_not_free("127.0.0.1", taken_port) == "Address already in use"
    with pytest.raises(typer.BadParameter, match="choose another port"):
        require_free("127.0.0.1", taken_port)
    assert why_not_free("no-such-host.invalid", 5555) is not None


STUCK = """
import atexit, sys, threading, time
from goondan_tasks import celery
from goondan_tasks.programs import flower_program

threading.Thread(target=time.sleep, args=(600,)).start()
atexit.register(print, "state saved", flush=True)
celery.main = lambda: sys.exit(3)
flower_program.main()
"""


def test_flowers_threads_do_not_block_process_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=30, check=False
    )

    assert (done.returncode, done.stdout) == (3, "state saved\n"), done.stderr


class FakeAgentRegistry:
    """Knows the agents that a test gives it, or cannot be reached."""

    def __init__(self, *agents: str) -> None:
        self.known: tuple[str, ...] | None = agents

    def agents(self) -> dict[str, None]:
        if self.known is None:
            raise RedisConnectionError
        return dict.fromkeys(self.known)


def page(configured: tuple[str, ...] = (), consumed: tuple[str, ...] = ()) -> Any:
    """Make what Flower hands over with a request."""
    workers = {"w": {"active_queues": [{"name": name} for name in consumed]}, "old": {}}
    conf = SimpleNamespace(task_queues=declared_queues(configured) or None)
    return SimpleNamespace(capp=SimpleNamespace(conf=conf), application=SimpleNamespace(workers=workers))


def names(agent_registry: FakeAgentRegistry) -> QueueNames:
    """Make the names over a fake agent registry."""
    return QueueNames(agent_registry)  # type: ignore[arg-type]


def test_flower_lists_idle_queues_beside_consumed_queues() -> None:
    listed = names(FakeAgentRegistry("announced")).for_page(page(("configured",), ("agent.consumed",)))

    assert listed == [
        "agent.announced",
        "agent.announced.events",
        "agent.configured",
        "agent.configured.events",
        "agent.consumed",
    ]


def test_flower_lists_known_queues_during_outage() -> None:
    agent_registry = FakeAgentRegistry("coder")
    queue_names = names(agent_registry)
    before = queue_names.for_page(page())
    agent_registry.known = None

    assert queue_names.for_page(page()) == before == ["agent.coder", "agent.coder.events"]


def test_address_that_no_host_can_have_is_refused() -> None:
    assert why_not_free("a" * 64, 1) == "that is not the name of a host"


def test_missing_mcp_extra_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("goondan_tasks.programs.mcp_server")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "mcp.server.context", None)

    done = goondan("mcp-server", "--agent", "coder")

    assert done.exit_code == 3
    assert "pip install 'goondan-workers[mcp]'" in done.stderr


def test_address_without_http_is_mistake() -> None:
    done = goondan("mcp-server", "--agent", "coder", "--address", "0.0.0.0")

    assert (done.exit_code, "--http" in done.stderr) == (2, True)


class Stopped(BaseException):
    """Ends the loop of a test."""


def test_flower_retries_at_constant_pace_during_outage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[None] = []

    def connection() -> None:
        attempts.append(None)
        raise OSError("away") if len(attempts) < 40 else Stopped

    monkeypatch.setattr(events, "time", BoundedPauses)
    monkeypatch.setattr(flower_program, "RETRY_SECONDS", 0)
    with pytest.raises(Stopped):
        receiving(events.Events.run)(SimpleNamespace(capp=SimpleNamespace(connection=connection)))

    assert {record.message for record in caplog.records} == {
        "Failed to capture events: 'away', trying again in 2 seconds."
    }

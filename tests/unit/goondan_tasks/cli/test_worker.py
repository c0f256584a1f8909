"""goondan worker: what it becomes, and what it checks before."""

import os
import sys
from pathlib import Path

import pytest

from broker_config.queues import declared_queues
from goondan_tasks.cli import worker
from goondan_tasks.cli.worker import node_label
from tests.unit.goondan_tasks.cli.invoke import goondan

EXAMPLE = Path(__file__).parents[4] / "examples" / "coding-swarm"

Started = list[tuple[list[str], dict[str, str]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Note what the process would become; the broker is there."""
    noted: Started = []
    monkeypatch.setattr(os, "execve", lambda path, argv, env: noted.append((argv, env)))
    monkeypatch.setattr(worker, "require_broker", lambda settings: None)
    monkeypatch.setenv("GOONDAN_BUNDLE", str(EXAMPLE))
    return noted


def option(command: list[str], name: str) -> str:
    """Return the value of an option of a command."""
    return command[command.index(name) + 1]


def test_it_becomes_celerys_worker_on_the_agents_queues(started: Started) -> None:
    goondan("worker", "--agent", "coder", "--agent", "planner", "--concurrency", "3")

    [(command, _)] = started
    assert command[:4] == [sys.executable, "-P", "-m", "goondan_tasks.worker_program"]
    assert option(command, "--queues") == "agent.coder,agent.coder.events,agent.planner,agent.planner.events"
    assert option(command, "--concurrency") == "3"
    assert {"--without-gossip", "--without-mingle"} <= set(command)


def test_its_name_tells_agents_and_process_so_that_workers_of_one_host_differ(started: Started) -> None:
    goondan("worker", "--agent", "coder")

    [(command, _)] = started
    assert option(command, "--hostname") == f"coder-{os.getpid()}@%h"


def test_without_agents_it_serves_all_of_the_swarm_with_eight_places(started: Started) -> None:
    goondan("worker")

    [(command, _)] = started
    assert option(command, "--queues") == ",".join(
        queue.name for queue in declared_queues(["planner", "coder", "reviewer"])
    )
    assert option(command, "--concurrency") == "8"


def test_it_gets_the_settings_of_the_command_line_in_its_environment(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE.parent)

    goondan("worker", "--bundle", "coding-swarm", "--redis-url", "redis://named/1", "--verbose")

    [(command, environment)] = started
    assert environment["GOONDAN_BUNDLE"] == str(EXAMPLE)
    assert environment["GOONDAN_REDIS_URL"] == environment["GOONDAN_BROKER_URL"] == "redis://named/1"
    assert environment["GOONDAN_LOG_LEVEL"] == option(command, "--loglevel") == "debug"


def test_programs_are_told_who_it_is(started: Started) -> None:
    told = goondan("worker", "--agent", "coder", "--json").document

    assert told == {"worker": f"coder-{os.getpid()}", "agents": ["coder"], "concurrency": 8}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (("--agent", "codr"), 3, "E_AGENT_NOT_FOUND"),
        (("--bundle", "/no/such/place"), 3, "E_CONFIG_PARSE_ERROR"),
        (("--swarm", "codng"), 3, "E_CONFIG_REF_NOT_FOUND"),
        (("--redis-url", "http://host"), 3, "E_CONFIG_SCHEMA_INVALID"),
        (("--redis-url", "redis://host:port"), 3, "E_CONFIG_SCHEMA_INVALID"),
    ],
)
def test_nothing_is_started_for_what_cannot_run(
    arguments: tuple[str, ...], exit_code: int, code: str, started: Started
) -> None:
    refused = goondan("worker", *arguments, "--json")

    assert (refused.exit_code, refused.document["error"]["code"]) == (exit_code, code)
    assert started == []


def test_nothing_is_started_without_a_bundle(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GOONDAN_BUNDLE")
    monkeypatch.chdir(tmp_path)

    refused = goondan("worker", "--agent", "coder")

    assert refused.exit_code == 3
    assert "No bundle is set" in refused.stderr
    assert started == []


def test_nothing_is_started_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it was started"))

    refused = goondan("worker", "--bundle", str(EXAMPLE), "--redis-url", "redis://:secret@127.0.0.1:1/0")

    assert refused.exit_code == 5
    assert "Redis at redis://:***@127.0.0.1:1/0 cannot be reached" in refused.stderr
    assert "secret" not in refused.stderr


@pytest.mark.parametrize("concurrency", ["0", "-1", "many"])
def test_a_worker_has_at_least_one_place(concurrency: str, started: Started) -> None:
    assert goondan("worker", "--concurrency", concurrency).exit_code == 2
    assert started == []


def test_a_label_of_many_agents_stays_short() -> None:
    label = node_label([f"agent-{number}" for number in range(100)])

    assert len(label) <= 60
    assert label.startswith("agent-0.agent-1.")

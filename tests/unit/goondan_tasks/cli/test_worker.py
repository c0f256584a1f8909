"""goondan worker: what it becomes, and what it checks before."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker_config.options import declared_queues
from broker_config.settings import Settings
from goondan_tasks import celery
from goondan_tasks.cli import servers
from goondan_tasks.cli.servers import node_label
from goondan_tasks.revisions import bootstrap
from goondan_tasks.revisions.bootstrap import Bootstrap
from tests.unit.goondan_tasks.cli.invoke import goondan

EXAMPLE = Path(__file__).parents[4] / "examples" / "coding-swarm"


@dataclass
class Started:
    """What the worker was started with."""

    name: str
    queues: list[str]
    concurrency: int
    log_level: str
    environment: dict[str, str]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Started]]:
    """Note what would be run; the broker is there."""
    noted: list[Started] = []

    def run_worker(name: str, queues: list[str], *, concurrency: int, log_level: str) -> None:
        noted.append(Started(name, queues, concurrency, log_level, dict(os.environ)))

    monkeypatch.setattr(celery, "run_worker", run_worker)
    monkeypatch.setattr(servers, "require_broker", lambda settings: None)
    monkeypatch.setenv("GOONDAN_BUNDLE", str(EXAMPLE))
    before = dict(os.environ)
    yield noted
    os.environ.clear()
    os.environ.update(before)


def test_command_runs_worker_on_agents_queues(started: list[Started]) -> None:
    goondan("worker", "--agent", "coder", "--agent", "planner", "--concurrency", "3")

    [one] = started
    assert one.queues == ["agent.coder", "agent.coder.events", "agent.planner", "agent.planner.events"]
    assert one.concurrency == 3


def test_worker_starts_with_bundle_already_read(
    started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    goondan("worker", "--agent", "coder")

    monkeypatch.setattr(bootstrap, "load_bundle", lambda path: pytest.fail(f"{path} was read again"))
    assert "coder" in Bootstrap.of(EXAMPLE, Settings()).bundle.agents


def test_worker_name_includes_agents_and_process_id(started: list[Started]) -> None:
    goondan("worker", "--agent", "coder")

    assert [one.name for one in started] == [f"coder-{os.getpid()}@%h"]


def test_worker_without_agents_serves_swarm_with_eight_slots(started: list[Started]) -> None:
    goondan("worker")

    [one] = started
    assert one.queues == [queue.name for queue in declared_queues(["planner", "coder", "reviewer"])]
    assert one.concurrency == 8


def test_worker_gets_command_line_settings_in_environment(
    started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE.parent)

    goondan("worker", "--bundle", "coding-swarm", "--redis-url", "redis://named/1", "--verbose")

    [one] = started
    assert one.environment["GOONDAN_BUNDLE"] == str(EXAMPLE)
    assert one.environment["GOONDAN_REDIS_URL"] == "redis://named/1"
    assert one.environment["GOONDAN_LOG_LEVEL"] == one.log_level == "debug"


def test_json_output_identifies_worker(started: list[Started]) -> None:
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
def test_worker_does_not_start_with_invalid_options(
    arguments: tuple[str, ...], exit_code: int, code: str, started: list[Started]
) -> None:
    refused = goondan("worker", *arguments, "--json")

    assert (refused.exit_code, refused.document["error"]["code"]) == (exit_code, code)
    assert started == []


def test_worker_does_not_start_without_bundle(
    started: list[Started], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GOONDAN_BUNDLE")
    monkeypatch.chdir(tmp_path)

    refused = goondan("worker", "--agent", "coder")

    assert refused.exit_code == 3
    assert "No bundle is set" in refused.stderr
    assert started == []


def test_worker_does_not_start_without_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celery, "run_worker", lambda *_, **__: pytest.fail("it was started"))

    refused = goondan("worker", "--bundle", str(EXAMPLE), "--redis-url", "redis://:secret@127.0.0.1:1/0")

    assert refused.exit_code == 5
    assert "Redis at redis://:***@127.0.0.1:1/0 cannot be reached" in refused.stderr
    assert "secret" not in refused.stderr


@pytest.mark.parametrize("concurrency", ["0", "-1", "many"])
def test_worker_has_at_least_one_place(concurrency: str, started: list[Started]) -> None:
    assert goondan("worker", "--concurrency", concurrency).exit_code == 2
    assert started == []


def test_label_of_many_agents_stays_short() -> None:
    label = node_label([f"agent-{number}" for number in range(100)])

    assert len(label) <= 60
    assert label.startswith("agent-0.agent-1.")

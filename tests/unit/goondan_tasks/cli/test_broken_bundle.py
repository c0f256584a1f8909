"""Commands whose GOONDAN_BUNDLE names a bundle that is not valid."""

from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.client import Client, connection
from goondan_tasks.contract.errors import AgentNotFoundError
from goondan_tasks.fleet.agent_registry import AgentRecord, AgentRegistry
from tests.unit.goondan_tasks.cli.invoke import goondan

FAULT = "cannot be loaded"


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Redis]:
    """Announce the agent coder, and set a bundle with one typo."""
    (tmp_path / "goondan.yaml").write_text("apiVersion: goondan.ai/v1\nkind: Aget\n", encoding="utf-8")
    monkeypatch.setenv("GOONDAN_BUNDLE", str(tmp_path))
    server = fakeredis.FakeServer()
    monkeypatch.setattr(connection, "connect", lambda url, **_: fakeredis.FakeRedis(server=server))
    with fakeredis.FakeRedis(server=server) as redis:
        coder = AgentRecord(name="coder", swarm="default", workspace="shop", catalog=({"name": "a__b"},))
        AgentRegistry(redis, Keys()).publish_agents([coder], served=["coder"])
        yield redis


@pytest.fixture
def call_id(redis: Redis) -> str:
    return goondan("call", "coder", "a__b", "--detach").stdout.strip()


@pytest.mark.parametrize("command", ["show", "trace", "result", "cancel"])
def test_commands_by_call_id_load_no_bundle(command: str, call_id: str) -> None:
    done = goondan(command, call_id)

    assert (done.exit_code, done.stderr) == (0, "")
    assert call_id[:8] in done.stdout or "coder" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        "queues",
        "agents",
        "calls",
        "calls --agent coder",
        "traces",
        "approvals list",
        "dead-letters list",
        "dead-letters replay --all --yes",
        "dead-letters drop --all --yes",
        "call coder a__b --detach",
        "shutdown --agent coder",
    ],
)
def test_commands_use_announced_agents_if_bundle_is_broken(command: str, call_id: str) -> None:
    done = goondan(*command.split())

    assert done.exit_code == 0, done.stderr
    assert FAULT in done.stderr
    assert "Aget" in done.stderr


def test_announced_agents_events_are_sent_with_warning(redis: Redis) -> None:
    done = goondan("send", "coder", "hello")

    assert done.exit_code == 0
    assert FAULT in done.stderr


def test_connected_client_works_and_logs_fault_once(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    with Client.connect() as client:
        call = client.submit("coder", "a__b")
        client.cancel(call.id)
        assert [row.agent for row in client.queues()] == ["coder"]
        with pytest.raises(AgentNotFoundError, match=FAULT):
            client.submit("planner", "a__b")

    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [FAULT in text for text in warnings] == [True]

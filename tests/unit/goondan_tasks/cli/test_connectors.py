"""goondan connectors: the list, and which bundle it is about."""

from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest

from goondan_tasks.cli import connectors
from goondan_tasks.cli.output import Output
from tests.unit.goondan_tasks.cli.invoke import goondan

BUNDLE = """
apiVersion: goondan.ai/v1
kind: Package
metadata: { name: office }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: clerk }
spec: { tools: [Tool/bash] }
---
apiVersion: goondan.ai/v1
kind: Connection
metadata: { name: terminal }
spec: { connectorRef: Connector/cli, ingress: { rules: [{ route: { agentRef: Agent/clerk } }] } }
"""


@pytest.fixture
def redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fakeredis.FakeRedis]:
    """Go to the directory of a bundle; Redis is a fake one."""
    (tmp_path / "goondan.yaml").write_text(BUNDLE, "utf-8")
    monkeypatch.chdir(tmp_path)
    server = fakeredis.FakeServer()
    monkeypatch.setattr(connectors, "require_broker", lambda _: None)
    monkeypatch.setattr(connectors, "connect", lambda url: fakeredis.FakeRedis(server=server))
    with fakeredis.FakeRedis(server=server) as redis:
        yield redis


def test_current_directorys_connections_are_listed_with_local_times(redis: fakeredis.FakeRedis) -> None:
    at = 4_102_444_800_000
    redis.hset("goondan:connection:office:terminal", mapping={"events": 3, "lastEventAt": at})

    listed = goondan("connectors")
    [status] = goondan("connectors", "--json").document

    assert str(Output().time(at)) in listed.stdout
    assert (status["events"], status["lastEventAt"]) == (3, "2100-01-01T00:00:00.000Z")


def test_event_is_routed_by_bundle_of_this_directory(redis: fakeredis.FakeRedis) -> None:
    event = '{"name": "stdin_message", "message": {"type": "text", "text": "hi"}, "instanceKey": "a"}'

    done = goondan("connectors", "test", "terminal", "--event", event)

    assert (done.exit_code, done.stdout) == (0, "clerk@a by ingress.rules[0]\n")

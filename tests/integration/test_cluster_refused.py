"""A Redis Cluster is refused: its servers run no script over the keys of several slots."""

# redis-py leaves some of its commands untyped
# mypy: disable-error-code="no-untyped-call"

import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from redis import Redis

from broker_config.embedded import find_redis_server
from broker_config.settings import Settings
from goondan_tasks.cli.session import require_broker
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import BrokerUnreachableError
from tests.integration.goondan_process import environment, goondan
from tests.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding-swarm"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server that is a whole Cluster."""
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes", "--save", ""]
    directory = tmp_path_factory.mktemp("cluster")
    process = subprocess.Popen([find_redis_server(), *options], cwd=directory, stdout=subprocess.DEVNULL)
    try:
        with closing(Redis(port=port)) as redis:
            wait_until(lambda: answers(port))
            redis.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
            wait_until(lambda: redis.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    while True:
        port = secrets.choice(range(5_000, 6_300))  # the port of the Cluster's bus is 10,000 above
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_cluster_server_is_refused_at_start(url: str) -> None:
    with pytest.raises(BrokerUnreachableError, match="is part of a Redis Cluster") as refusal:
        require_broker(Settings(redis_url=url))
    assert "when-one-redis-is-not-enough" in refusal.value.suggestion


def test_worker_does_not_start_at_cluster(url: str) -> None:
    ended = goondan("worker", "--agent", "coder", env=environment(redis_url=url, bundle=EXAMPLE))
    assert ended.exit_code == 5
    assert "is part of a Redis Cluster" in ended.stderr


def test_producer_at_cluster_gets_suggested_alternative(url: str) -> None:
    with (
        Client.connect(url, bundle=EXAMPLE) as client,
        pytest.raises(BrokerUnreachableError, match="CROSSSLOT") as refusal,
    ):
        client.submit("coder", "bash__exec", {"command": "true"})
    assert "when-one-redis-is-not-enough" in refusal.value.suggestion

"""Whatever a process did with kombu before, its worker connects with our transport or ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import CALLS_BUNDLE

BEFORE = """
from kombu import Connection, serialization
URLS = ("redis://h/0", "rediss://h/0?ssl_cert_reqs=required", "redis+socket:///s?virtual_host=0")
kinds = [type(Connection(url).transport) for url in URLS]
assert {kind.__module__ for kind in kinds} == {"kombu.transport.redis"}, kinds
"""

WORKER = """
from goondan_tasks.celery import run_worker
run_worker("w@%h", ["agent.smith"], concurrency=1, log_level="INFO")
"""


def run(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


def test_transport_takes_effect_after_earlier_kombu_connections() -> None:
    done = run(
        BEFORE
        + """
from broker_config.transport import Transport, require_registered, use_transport
use_transport()
for url in URLS:
    assert type(Connection(url).transport) is Transport, url
    require_registered(Connection(url))
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("registers", "reason"),
    [
        ("raise LookupError('no aliases')", "no aliases"),
        ("return", "kombu.transport.redis:Transport, which ends when Redis accepts"),
    ],
)
def test_worker_with_ineffective_registration_ends_and_says_why(
    url: str, tmp_path: Path, registers: str, reason: str
) -> None:
    program = f"""
import workers.pool.consumer
def registers():
    {registers}
workers.pool.consumer.use_transport = registers
{WORKER}
"""
    done = run(
        program, GOONDAN_REDIS_URL=url, GOONDAN_BUNDLE=str(CALLS_BUNDLE), GOONDAN_STATE_ROOT=str(tmp_path)
    )
    assert done.returncode == 1
    assert reason in done.stdout + done.stderr

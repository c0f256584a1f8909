"""The health check of docker-compose.yml's workers, run against real ones."""

import os
import subprocess
import sys

import pytest
import yaml

from goondan_tasks.testing import LocalStack
from tests.architecture.sources import ROOT

pytestmark = pytest.mark.usefixtures("fresh_programs")


def check(redis_url: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the check as a container of a worker would, with options of the interpreter."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    [kind, program, *arguments] = compose["services"]["coder"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    environment = {**os.environ, "GOONDAN_REDIS_URL": redis_url}
    command = [sys.executable, *options, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return done


def is_well(stack: LocalStack, options: str = "") -> bool:
    """Return what the check says of the workers of this host; ``options`` are redis-py's, in the URL."""
    return check(stack.redis_url + options).returncode == 0


def test_absent_redis_does_not_make_workers_unhealthy() -> None:
    with LocalStack(ROOT / "examples/coding-swarm", workers=0) as stack:
        stack.redis.process.kill()
        stack.redis.process.wait()

        done = check(stack.redis_url)

        assert done.returncode == 0
        assert "Not known: Redis at redis://:***@" in done.stderr


def test_container_is_healthy_only_while_worker_exists() -> None:
    with LocalStack(ROOT / "examples/coding-swarm", agents=["coder"], workers=0) as stack:
        assert not is_well(stack)
        assert not is_well(stack, "?db=0")

        worker = stack.start_worker()
        assert is_well(stack)
        assert is_well(stack, "?db=0")

        stack.stop_worker(worker)
        assert not is_well(stack)


def test_check_imports_neither_redis_py_nor_pydantic() -> None:
    with LocalStack(ROOT / "examples/coding-swarm", workers=0) as stack:
        imported = {
            line.rpartition("|")[2].strip()
            for line in check(stack.redis_url, "-X", "importtime").stderr.splitlines()
        }

    assert "hiredis" in imported
    assert not {"redis", "pydantic"} & imported

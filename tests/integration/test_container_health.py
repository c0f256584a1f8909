"""The health check of docker-compose.yml's workers, run against real ones."""

import os
import subprocess
import sys

import yaml

from goondan_tasks.testing import LocalStack
from tests.architecture.sources import ROOT


def is_well(stack: LocalStack) -> bool:
    """Run the check as a container of a worker would."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    [kind, program, *arguments] = compose["services"]["coder"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    environment = {**os.environ, "GOONDAN_REDIS_URL": stack.redis_url}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode == 0


def test_while_redis_is_away_no_worker_is_at_fault() -> None:
    with LocalStack(ROOT / "examples/coding-swarm", workers=0) as stack:
        stack.redis.process.kill()
        stack.redis.process.wait()

        assert is_well(stack)


def test_a_worker_container_is_well_while_its_worker_is_there() -> None:
    with LocalStack(ROOT / "examples/coding-swarm", agents=["coder"], workers=0) as stack:
        assert not is_well(stack)

        worker = stack.start_worker()
        assert is_well(stack)

        stack.stop_worker(worker)
        assert not is_well(stack)

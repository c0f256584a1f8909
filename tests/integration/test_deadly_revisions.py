"""Revisions that end the process that loads them: the swarm goes on with the one before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.revisions.activation import Activation
from tests.integration.machines import Machines, colour
from tests.waiting import wait_until


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with Machines(tmp_path) as machines:
        yield machines


def test_a_revision_that_ends_its_workers_is_withdrawn_and_no_crash_loop(machines: Machines) -> None:
    worker = machines.start("one", "newt")
    deadly = machines.commit({"newt.py": "import os\nos._exit(9)\n", **colour("red")})
    machines.propose(deadly)
    assert worker.wait(20) == 9
    machines.stack._workers.remove(worker)

    again = machines.start("one", "newt")
    assert again.wait(20) == 9
    machines.stack._workers.remove(again)

    machines.start("one", "newt")
    wait_until(lambda: Activation.of(deadly, machines.state).status == "failed", 20, show=machines.logs)
    assert "workers have ended" in (Activation.of(deadly, machines.state).reason or "")
    assert machines.client.call("newt", "skin__colour", timeout=20).output == "green"

    pulled = machines.clone("pulled")  # a folder of this very revision
    assert f"git:{pulled.git('rev-parse', 'HEAD').strip()}" == deadly
    survivor = machines.start("pulled", "newt")
    machines.are_followed(machines.state.active)
    assert survivor.poll() is None

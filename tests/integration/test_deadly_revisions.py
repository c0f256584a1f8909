"""Revisions whose code ends the process that loads it, or hangs: the swarm goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.revisions.activation import Activation
from tests.integration.machines import MEADOW, Machines, colour
from tests.waiting import wait_until


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with Machines(tmp_path) as machines:
        yield machines


def test_a_revision_that_ends_its_workers_is_withdrawn_and_no_crash_loop(machines: Machines) -> None:
    worker = machines.start("one", "newt")
    deadly = machines.commit({"newt.py": "import os\nos._exit(9)\n", **colour("red")})
    machines.propose(deadly)
    assert worker.wait(30) == 9
    machines.stack._workers.remove(worker)

    again = machines.start("one", "newt")
    assert again.wait(30) == 9
    machines.stack._workers.remove(again)

    machines.start("one", "newt")
    wait_until(lambda: Activation.of(deadly, machines.state).status == "failed", show=machines.logs)
    assert "workers have ended" in (Activation.of(deadly, machines.state).reason or "")
    assert machines.client.call("newt", "skin__colour", timeout=30).output == "green"

    pulled = machines.clone("pulled")  # a folder of this very revision
    assert f"git:{pulled.git('rev-parse', 'HEAD').strip()}" == deadly
    survivor = machines.start("pulled", "newt")
    machines.are_followed(machines.state.active)
    assert survivor.poll() is None


def test_calls_of_a_tool_whose_import_hangs_end_and_those_of_its_repair_run(machines: Machines) -> None:
    skin = MEADOW["skin/__init__.py"]
    machines.commit({"skin/__init__.py": f"import time\nwhile True:\n    time.sleep(0.05)\n{skin}"})
    machines.start("one", "lizard")
    calls = [{"agentName": "lizard", "toolName": "skin__colour", "timeoutSeconds": 1}] * 20

    results = [call.result(30) for call in machines.client.submit_many(calls)]
    assert {result.error.code for result in results if result.error is not None} == {"E_TOOL_TIMEOUT"}
    assert all("skin/__init__.py: importing the file" in str(result.error) for result in results)

    machines.switch({"skin/__init__.py": skin, **colour("mended")})
    assert machines.client.call("lizard", "skin__colour", timeout=30).output == "mended"

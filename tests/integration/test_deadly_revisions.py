"""Revisions whose code ends the process that loads it, or hangs: the swarm goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.revisions.active import Activation
from tests.integration.machines import MEADOW, Load, Machines, Worker, colour
from tests.waiting import wait_until

SEGFAULT = "import ctypes\nctypes.string_at(0)\n"
EAR = MEADOW["ear.py"]
#: deadly, but not where a commit is checked: that is another process
IN_A_WORKER = "import os\nif 'GOONDAN_REDIS_URL' in os.environ:\n    os._exit(9)\n"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with Machines(tmp_path) as machines:
        yield machines


@pytest.fixture(scope="module")
def meadow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machines, list[Worker]]]:
    """Run four workers, of two agents."""
    with Machines(tmp_path_factory.mktemp("meadow")) as machines:
        workers = [machines.start("one", agent) for agent in ("newt", "newt", "lizard", "lizard")]
        yield machines, workers


@pytest.mark.parametrize(
    ("files", "how"),
    [
        (
            {"newt.py": "import os\nos._exit(9)\n"},
            "newt.py:1: importing the file ends the process with exit status 9",
        ),
        (
            {"skin/__init__.py": SEGFAULT},
            "skin/__init__.py:1: importing the file ends the process by SIGSEGV",
        ),
        ({"ear.py": IN_A_WORKER + EAR}, "ear.py:1: importing the file ends the process with exit status 9"),
    ],
    ids=["an entry", "a C library in a tool", "an extension in workers only"],
)
def test_revision_ending_processes_is_withdrawn_without_worker_loss(
    meadow: tuple[Machines, list[Worker]], files: dict[str, str], how: str
) -> None:
    machines, workers = meadow
    sound = {name: MEADOW[name] for name in files}
    before = machines.state.active
    calls = [{"agentName": agent, "toolName": "skin__colour"} for agent in ("newt", "lizard")] * 4
    with Load(machines.client, calls) as load:
        deadly = machines.commit({**files, **colour("red")})
        machines.propose(deadly)
        wait_until(lambda: Activation.of(deadly, machines.state).status == "failed", show=machines.logs)
        known = len(load.results)
        wait_until(lambda: len(load.results) > known + 16)  # of the rounds, one began after it

    assert how in (Activation.of(deadly, machines.state).reason or "")
    assert (load.errors, machines.state.active) == ([], before)
    assert {result.output for result in load.results} == {"green"}
    assert codes(workers) == [None] * 4
    machines.switch({**sound, **colour("green")})
    machines.are_followed(machines.state.active)


def codes(workers: list[Worker]) -> list[int | None]:
    return [worker.poll() for worker in workers]


def test_revision_deadly_at_registration_costs_two_workers_at_most(machines: Machines) -> None:
    workers = [machines.start("one", "lizard") for _ in range(4)]
    register = EAR.replace(") -> None:\n", ") -> None:\n    import os\n    os._exit(9)\n", 1)
    deadly = machines.commit({"ear.py": register, **colour("red")})
    machines.propose(deadly)
    wait_until(lambda: codes(workers).count(9) == 1, 60, show=machines.logs)
    machines.end_claim_of_dead(deadly)
    wait_until(lambda: codes(workers).count(9) == 2, 60, show=machines.logs)
    machines.end_claim_of_dead(deadly)
    wait_until(lambda: Activation.of(deadly, machines.state).status == "failed", 60, show=machines.logs)

    assert "2 workers died" in (Activation.of(deadly, machines.state).reason or "")
    assert sorted(map(str, codes(workers))) == ["9", "9", "None", "None"]
    machines.stack._workers[:] = [worker for worker in workers if worker.poll() is None]
    assert machines.client.call("lizard", "skin__colour", timeout=30).output == "green"


def test_worker_starting_in_deadly_folder_runs_active_revision(machines: Machines) -> None:
    machines.start("one", "newt")
    deadly = machines.commit({"newt.py": "import os\nos._exit(9)\n", **colour("red")})

    pulled = machines.clone("pulled")  # a folder of this very revision
    assert f"git:{pulled.git('rev-parse', 'HEAD').strip()}" == deadly
    survivor = machines.start("pulled", "newt")

    machines.are_followed(machines.state.active)
    assert Activation.of(deadly, machines.state).status == "failed"
    assert survivor.poll() is None
    assert machines.client.call("newt", "skin__colour", timeout=30).output == "green"


def test_hanging_import_times_calls_out_until_repaired(machines: Machines) -> None:
    skin = MEADOW["skin/__init__.py"]
    machines.commit({"skin/__init__.py": f"import time\nwhile True:\n    time.sleep(0.05)\n{skin}"})
    machines.start("one", "lizard")
    calls = [{"agentName": "lizard", "toolName": "skin__colour", "timeoutSeconds": 1}] * 20

    results = [call.result(30) for call in machines.client.submit_many(calls)]
    assert {result.error.code for result in results if result.error is not None} == {"E_TOOL_TIMEOUT"}
    assert all("skin/__init__.py: importing the file" in str(result.error) for result in results)

    machines.switch({"skin/__init__.py": skin, **colour("corrected")})
    assert machines.client.call("lizard", "skin__colour", timeout=30).output == "corrected"

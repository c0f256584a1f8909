"""Workers follow the revisions of their bundle: two machines, one remote, one Redis."""

from collections.abc import Iterator

import pytest

from tests.integration.machines import Machines, colour
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with Machines(tmp_path_factory.mktemp("machines")) as machines:
        machines.start("one", "lizard", "newt")
        machines.start("two", "lizard", "newt")
        yield machines


def test_two_machines_run_the_next_revision_without_a_restart(machines: Machines) -> None:
    ref = machines.switch(colour("red"))
    client = machines.client
    wait_until(lambda: {worker.bundle_ref for worker in client.workers()} == {ref}, seconds=20)
    results = [call.result(10) for call in [client.submit("lizard", "skin__colour") for _ in range(40)]]
    assert {result.output for result in results} == {"red"}

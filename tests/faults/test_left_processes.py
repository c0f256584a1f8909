"""What a bash call started ends with it: past its deadline, cancelled, or when its worker ends."""

import signal
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest

from goondan_tasks.testing import LocalStack
from tests.faults.crowd import AGENT
from tests.faults.reckoning import UNKNOWN
from tests.faults.sizes import LEASE_SECONDS, MARGIN_SECONDS
from tests.processes import with_environment
from tests.waiting import wait_until

PATIENCE = 60
#: how long the guard gives a tree to end by itself, and then some
END_SECONDS = 40
#: a child, an orphan, and two in a session of their own; some of them deaf to SIGTERM
COMMAND = """
sleep 600 & (trap '' TERM; sleep 600) & (sleep 600 &)
setsid sh -c "trap '' TERM; sleep 600 & sleep 600" &
sleep 600
"""
SLEEPS = 6


@dataclass(frozen=True, slots=True)
class Family:
    """The processes of one command, known by a mark in the environment that all of them inherit."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def args(self) -> dict[str, Any]:
        """The arguments of ``bash__exec`` that start it."""
        return {"command": COMMAND, "env": {"FAULTS_MARK": self.mark}, "timeoutMs": 0}

    def members(self) -> list[int]:
        """Return the process ids of those that live."""
        return with_environment(f"FAULTS_MARK={self.mark}")


@pytest.mark.faults
@pytest.mark.long
def test_bash_call_past_deadline_leaves_no_process(stack: LocalStack) -> None:
    stack.start_worker()
    family = Family()
    call = stack.client.submit(AGENT, "bash__exec", family.args, timeout_seconds=2)
    wait_until(lambda: len(family.members()) >= SLEEPS)
    result = call.result(PATIENCE)
    assert result.error is not None
    assert result.error.code == "E_TOOL_TIMEOUT"
    wait_until(lambda: family.members() == [], END_SECONDS)


@pytest.mark.faults
@pytest.mark.long
def test_cancelled_bash_call_leaves_no_process_behind(stack: LocalStack) -> None:
    stack.start_worker()
    family = Family()
    call = stack.client.submit(AGENT, "bash__exec", family.args)
    wait_until(lambda: len(family.members()) >= SLEEPS)
    call.cancel()
    result = call.result(PATIENCE)
    assert result.error is not None
    assert result.error.code == "E_TOOL_CANCELLED"
    wait_until(lambda: family.members() == [], END_SECONDS)


@pytest.mark.faults
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)],
    ids=["SIGKILL", "SIGTERM"],
)
def test_bash_call_of_ended_worker_leaves_no_process(stack: LocalStack, number: signal.Signals) -> None:
    stack._environment["GOONDAN_GRACE_SECONDS"] = "1"
    worker = stack.start_worker()
    families = [Family() for _ in range(4)]
    calls = [stack.client.submit(AGENT, "bash__exec", family.args) for family in families]
    wait_until(lambda: all(len(family.members()) >= SLEEPS for family in families))
    worker.send_signal(number)
    worker.wait(PATIENCE)
    wait_until(lambda: [family.members() for family in families] == [[]] * 4, END_SECONDS)
    stack.start_worker()
    results = [call.result(LEASE_SECONDS + MARGIN_SECONDS) for call in calls]
    assert {result.error.code for result in results if result.error} == {UNKNOWN}
    assert [family.members() for family in families] == [[]] * 4

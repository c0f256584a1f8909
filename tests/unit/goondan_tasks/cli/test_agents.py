"""goondan agents."""

import pytest

from goondan_tasks.orchestrator.supervisor import CrashBackoff
from tests.unit.goondan_tasks.cli.fake_client import NOW, FakeClient, queue_status
from tests.unit.goondan_tasks.cli.invoke import goondan

LOOPING = CrashBackoff(crashes=6, retry_at=NOW + 2_000, reason="It ended with 3.\nthinker.py:2: no")


def test_programs_get_tools_workers_and_state_of_each_agent(client: FakeClient) -> None:
    client.figures["planner"] = queue_status("planner", backlog=2)

    coder, planner = goondan("agents", "--json").document

    assert coder == {
        "name": "coder",
        "swarm": "coding",
        "workspace": "shop",
        "tools": ["bash__exec"],
        "workers": ["coder-7@host"],
        "backlog": 0,
        "running": 0,
        "state": "idle",
        "orchestrated": False,
        "crashes": 0,
        "nextStartSeconds": None,
        "reason": None,
    }
    assert (planner["name"], planner["backlog"], planner["state"]) == ("planner", 2, "none")


def test_people_get_a_table(client: FakeClient) -> None:
    client.figures["coder"] = queue_status("coder", running=1)

    rows = goondan("agents").stdout.splitlines()

    assert [row.split() for row in rows] == [
        ["agent", "swarm", "workspace", "tools", "backlog", "running", "state", "workers"],
        ["coder", "coding", "shop", "1", "0", "1", "running", "coder-7@host"],
        ["planner", "coding", "shop", "0", "0", "0", "none", "-"],
    ]


def test_an_orchestrated_agent_without_workers_gets_one_when_it_is_needed(client: FakeClient) -> None:
    client.is_orchestrated = True

    assert "none, started when needed" in goondan("agents").stdout.splitlines()[2]


def test_a_crash_loop_is_told_with_its_reason_and_the_next_start(client: FakeClient) -> None:
    client.upkeeps["planner"] = LOOPING

    document, told = goondan("agents", "--json").document[1], goondan("agents")

    assert (document["state"], document["crashes"]) == ("crashLoopBackOff", 6)
    assert (document["nextStartSeconds"], document["reason"]) == (2.0, LOOPING.reason)
    assert "crashLoopBackOff" in told.stdout
    assert "planner: 6 workers in a row have crashed" in told.stderr
    assert "in 2 s" in told.stderr
    assert "thinker.py:2: no" in told.stderr


@pytest.mark.parametrize(
    ("upkeep", "state"),
    [
        (CrashBackoff(starting_until=NOW + 1), "starting"),
        (CrashBackoff(crashes=5, retry_at=NOW - 1), "crashLoopBackOff"),
        (CrashBackoff(crashes=5, retry_at=NOW - 1, starting_until=NOW + 1), "starting"),
        (CrashBackoff(crashes=4), "none"),
    ],
)
def test_an_agent_without_workers_says_what_becomes_of_them(
    client: FakeClient, upkeep: CrashBackoff, state: str
) -> None:
    client.upkeeps["planner"] = upkeep

    assert goondan("agents", "--json").document[1]["state"] == state


def test_a_worker_that_has_come_up_is_at_work_whatever_was_before(client: FakeClient) -> None:
    client.upkeeps["coder"] = LOOPING

    assert goondan("agents", "--json").document[0]["state"] == "idle"

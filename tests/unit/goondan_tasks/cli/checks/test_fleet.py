"""Are there workers for every agent, and do they belong together?"""

import pytest

from goondan_tasks.cli.checks.check import Check
from goondan_tasks.cli.checks.fleet import fleet_checks
from goondan_tasks.client.agent_status import AgentStatus
from goondan_tasks.orchestrator.supervisor import CrashBackoff
from goondan_tasks.roster import WorkerRecord
from tests.unit.goondan_tasks.cli.fake_client import agent, queue_status, worker

AGENTS = {"coder": agent("coder", "bash__exec"), "planner": agent("planner")}


def faults(*workers: WorkerRecord) -> list[Check]:
    """Return what is not ok about these workers of our agents."""
    return [check for check in fleet_checks(AGENTS, AGENTS, workers) if check.level != "ok"]


def test_workers_for_every_agent_are_ok() -> None:
    assert faults(worker("a", ("coder",)), worker("b", ("planner", "coder"))) == []


def test_an_agent_without_workers_is_a_warning_with_the_command_that_starts_one() -> None:
    [check] = faults(worker("a", ("coder",)))

    assert (check.name, check.level) == ("workers of planner", "warning")
    assert check.remedy == "Start one: goondan worker --agent planner"


@pytest.mark.parametrize(
    ("backlog", "upkeep", "message"),
    [
        (0, CrashBackoff(), "none"),
        (1, CrashBackoff(), "none: calls or events wait"),
        (1, CrashBackoff(crashes=6, retry_at=2_000, reason="exit 3"), "crash as soon as they start: exit 3"),
    ],
)
def test_it_is_said_why_an_agent_has_no_worker_and_whether_something_waits(
    backlog: int, upkeep: CrashBackoff, message: str
) -> None:
    queue = queue_status("planner", backlog=backlog)
    status = AgentStatus(AGENTS["planner"], [], queue, upkeep, is_orchestrated=False, now=1_000)

    checks = fleet_checks(AGENTS, AGENTS, [], statuses=[status])

    [check] = [check for check in checks if check.name == "workers of planner"]
    assert (check.level, check.message) == ("warning", message)


def test_one_agent_of_two_systems_is_a_warning_with_the_workers_of_each() -> None:
    ours = {"swarm": "coding", "workspace": "shop"}
    workers = [
        worker("a", ("coder", "planner"), **ours),
        worker("b", ("coder",), **{**ours, "workspace": "other"}),
        worker("of an older version", ("coder",)),
    ]

    [check] = faults(*workers)

    assert (check.name, check.level) == ("systems of coder", "warning")
    assert check.message == (
        "workers of 2 share its queue: "
        "swarm coding in workspace shop (a); swarm coding in workspace other (b)"
    )
    assert faults(worker("a", ("coder", "planner"), **ours), worker("b", ("coder",), **ours)) == []


def test_workers_of_one_agent_with_two_state_roots_are_a_problem() -> None:
    workers = [worker("a", ("coder", "planner")), worker("b", ("coder",), root_id="other")]

    [check] = faults(*workers)

    assert (check.name, check.level) == ("state roots", "problem")
    assert check.message == "workers of coder see different files: a and b"


def test_an_agent_with_a_local_workdir_may_have_many_state_roots() -> None:
    workers = [
        worker("a", ("coder", "planner"), local_workdir=("coder",)),
        worker("b", ("coder",), local_workdir=("coder",), root_id="other"),
    ]

    assert faults(*workers) == []


def test_workers_that_serve_another_catalog_than_ours_are_a_warning() -> None:
    announced = {"coder": agent("coder", "old__tool"), "planner": AGENTS["planner"]}

    checks = fleet_checks(AGENTS, announced, [worker("a", ("coder", "planner"))])

    [check] = [check for check in checks if check.level != "ok"]
    assert (check.name, check.level) == ("catalog of coder", "warning")


def test_tools_of_extensions_do_not_make_it_another_catalog() -> None:
    weather = {"name": "weather__get", "source": {"type": "extension", "name": "weather"}}
    catalog = (*AGENTS["coder"].catalog, weather)
    announced = {**AGENTS, "coder": AGENTS["coder"].model_copy(update={"catalog": catalog})}

    checks = fleet_checks(AGENTS, announced, [worker("a", ("coder", "planner"))])

    assert [check for check in checks if check.level != "ok"] == []


def test_without_any_agent_there_is_one_warning() -> None:
    [check] = fleet_checks({}, {}, [])

    assert (check.name, check.level) == ("agents", "warning")

"""goondan pause and goondan resume, and where a pause is seen."""

from goondan_tasks.cli.fleet_checks import pause_checks
from goondan_tasks.fleet.pauses import Pause
from tests.unit.goondan_tasks.cli.fake_client import FakeClient, queue_status
from tests.unit.goondan_tasks.cli.invoke import goondan

LOOPS = Pause(agent="coder", reason="loops", by="ann")
TOOL = Pause(agent="coder", tool="bash__exec")


def test_pause_names_its_reason_author_and_end(client: FakeClient) -> None:
    done = goondan("pause", "coder", "--reason", "loops", "--by", "ann")

    assert done.stdout == "coder is paused by ann: loops; to end it: goondan resume coder\n"
    assert client.pauses == [LOOPS]


def test_resumed_agent_reports_tool_still_paused(client: FakeClient) -> None:
    client.pauses = [LOOPS, TOOL]

    done = goondan("resume", "coder")

    assert done.stdout == "coder is resumed\n"
    assert done.stderr == "bash__exec of coder is still paused\n"
    assert goondan("resume", "coder").stdout == "coder was not paused\n"
    assert goondan("resume", "coder", "bash__exec", "--json").document["wasPaused"] is True


def test_unknown_agent_is_error_of_its_own(client: FakeClient) -> None:
    assert goondan("pause", "nobody", "--json").document["error"]["code"] == "E_AGENT_NOT_FOUND"


def test_queues_and_agents_show_pauses(client: FakeClient) -> None:
    row = queue_status("coder", backlog=3, paused=(LOOPS, TOOL))
    client.queue_rows, client.figures = [row, queue_status("planner")], {"coder": row}

    queues, agents = goondan("queues"), goondan("agents")

    assert "paused" in queues.stdout
    assert "coder is paused by ann: loops" in queues.stderr
    assert "bash__exec of coder is paused" in agents.stderr
    states = {one["name"]: one["state"] for one in goondan("agents", "--json").document}
    assert states == {"coder": "paused", "planner": "idle" if client.worker_records == [] else "none"}


def test_doctor_warns_of_each_pause(client: FakeClient) -> None:
    client.figures = {"coder": queue_status("coder", paused=(LOOPS, TOOL))}

    checks = list(pause_checks(client.agent_statuses()))

    assert [(one.level, one.message) for one in checks] == [
        ("warning", "paused by ann: loops"),
        ("warning", "paused"),
    ]
    assert checks[1].remedy == "To end it: goondan resume coder bash__exec"

"""goondan queues."""

import pytest

from goondan_tasks.client.queue_status import QueueStatus
from tests.unit.goondan_tasks.cli.fake_client import FakeClient
from tests.unit.goondan_tasks.cli.invoke import goondan

CODER = QueueStatus(
    agent="coder",
    queue="agent.coder",
    backlog=3,
    running=2,
    oldest_seconds=12.3,
    workers=1,
    events=2,
    pending=5,
)
IDLE = QueueStatus(agent="planner", queue="agent.planner", backlog=0, running=0, workers=0)


@pytest.fixture(autouse=True)
def _two_queues(client: FakeClient) -> None:
    client.queue_rows = [CODER, IDLE]


def test_programs_get_every_field_even_one_that_is_null() -> None:
    assert goondan("queues", "--json").document == [
        {
            "agent": "coder",
            "queue": "agent.coder",
            "backlog": 3,
            "running": 2,
            "waitingForLimit": 0,
            "oldestSeconds": 12.3,
            "workers": 1,
            "events": 2,
            "deadLetters": 0,
            "lateAnswers": 0,
            "mailboxes": 0,
            "pending": 5,
        },
        {
            "agent": "planner",
            "queue": "agent.planner",
            "backlog": 0,
            "running": 0,
            "waitingForLimit": 0,
            "oldestSeconds": None,
            "workers": 0,
            "events": 0,
            "deadLetters": 0,
            "lateAnswers": 0,
            "mailboxes": 0,
            "pending": 0,
        },
    ]


def test_people_get_a_table() -> None:
    heading, *rows = goondan("queues").stdout.splitlines()

    assert heading.split() == [
        "agent",
        "queue",
        "backlog",
        "running",
        "waiting",
        "for",
        "limit",
        "pending",
        "oldest",
        "workers",
    ]
    assert [row.split() for row in rows] == [
        ["coder", "agent.coder", "3", "2", "0", "5", "12", "s", "1"],
        ["planner", "agent.planner", "0", "0", "0", "0", "-", "0"],
    ]


def test_mailboxes_and_dead_letters_are_shown_where_there_are_any(client: FakeClient) -> None:
    client.queue_rows = [CODER, IDLE.model_copy(update={"mailboxes": 4})]
    heading, coder, planner = goondan("queues").stdout.splitlines()

    assert heading.endswith("workers  mailboxes")
    assert (coder.split()[-1], planner.split()[-1]) == ("0", "4")

    client.queue_rows = [CODER.model_copy(update={"dead_letters": 1, "mailboxes": 1})]
    assert goondan("queues").stdout.splitlines()[0].endswith("workers  mailboxes  dead letters")


def test_the_queues_of_one_agent_are_shown_alone() -> None:
    assert [row["agent"] for row in goondan("queues", "--agent", "planner", "--json").document] == ["planner"]
    assert goondan("queues", "--agent", "plannr").exit_code == 3


def test_on_a_narrow_terminal_the_names_of_queues_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    heading, coder, _ = goondan("queues").stdout.splitlines()

    assert "queue" not in heading
    assert coder.split()[:2] == ["coder", "3"]

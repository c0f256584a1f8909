"""goondan calls."""

import pytest

from goondan_tasks.calls import new_call
from goondan_tasks.cli.output import local_time
from goondan_tasks.messages import wall_clock
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, NOW, FakeClient, record
from tests.unit.goondan_tasks.cli.invoke import goondan

RECORDS = [
    record("queued", id="q"),
    record("running", id="r", claimed_at=1, worker="w"),
    record("done", id="o", outcome="ok", claimed_at=1_000, finished_at=1_250),
    record("done", id="e", outcome="error"),
    record("dead", id="d", outcome="error"),
]


@pytest.fixture(autouse=True)
def _five_calls(client: FakeClient) -> None:
    client.records = RECORDS


def ids(*arguments: str) -> list[str]:
    """Return the ids of the calls that are listed."""
    return [call["id"] for call in goondan("calls", *arguments, "--json").document]


def test_programs_get_the_records_rows() -> None:
    assert goondan("calls", "--json").document == [known.to_wire() for known in RECORDS]


def test_people_get_a_table_with_outcome_and_duration() -> None:
    heading, *rows = goondan("calls").stdout.splitlines()

    assert heading.split() == ["queued", "agent", "tool", "instance", "status", "took", "worker", "id"]
    assert [row.split()[5] for row in rows] == ["queued", "running", "ok", "error", "dead"]
    assert "250 ms" in rows[2]


@pytest.mark.parametrize(("columns", "shown"), [(80, "0b7c7a1e"), (120, CALL_ID)])
def test_on_a_narrow_terminal_an_id_is_shown_as_far_as_a_command_needs_it(
    client: FakeClient, columns: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    client.records = [record("queued", id=CALL_ID)]

    row = goondan("calls").stdout.splitlines()[-1]

    assert row.split()[-1] == shown


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("queued", ["q"]),
        ("running", ["r"]),
        ("ok", ["o"]),
        ("error", ["e", "d"]),
        ("dead", ["d"]),
        ("done", ["o", "e"]),
        ("pending", []),
    ],
)
def test_calls_are_found_by_status_or_outcome(status: str, found: list[str]) -> None:
    assert ids("--status", status) == found


def test_the_list_can_be_limited() -> None:
    assert ids("--limit", "2") == ["q", "r"]
    assert ids("--status", "error", "--limit", "1") == ["e"]


def test_calls_are_found_by_tool_instance_and_age(client: FakeClient) -> None:
    painted = new_call("coder", "image__paint", {}, {"instance_key": "k"})
    client.records = [*RECORDS, record(id="new", queued_at=round(wall_clock()), call=painted)]

    assert ids("--tool", "image__*") == ids("--instance", "k") == ids("--since", "10m") == ["new"]
    assert ids("--tool", "bash__exec", "--status", "ok") == ["o"]
    assert ids("--tool", "bash__exec", "--since", "10m") == []


def test_on_a_narrow_terminal_year_and_worker_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    heading, *rows = goondan("calls").stdout.splitlines()

    assert "worker" not in heading
    assert {row.split(" ")[0] for row in rows} == {local_time(NOW)[5:10]}


def test_that_there_are_none_is_said_in_words(client: FakeClient) -> None:
    shown = goondan("calls", "--instance", "nobody")
    client.records = []

    assert (shown.stdout, shown.stderr) == ("", "There are no such calls.\n")
    assert goondan("calls").stderr == "There are no calls.\n"


def test_the_calls_of_one_agent_can_be_listed() -> None:
    assert len(ids("--agent", "coder")) == 5
    assert ids("--agent", "planner") == []


@pytest.mark.parametrize("arguments", [("--limit", "0"), ("--limit", "many"), ("--status", "lost")])
def test_what_cannot_be_listed_is_a_usage_error(arguments: tuple[str, str]) -> None:
    assert goondan("calls", *arguments).exit_code == 2


def test_an_unknown_agent_is_not_an_agent_without_calls() -> None:
    assert goondan("calls", "--agent", "codr").exit_code == 3

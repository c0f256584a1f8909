"""goondan calls."""

import re

import pytest
from rich.cells import cell_len

from broker_config import serializer
from goondan_tasks.cli.output import local_time
from goondan_tasks.contract.calls import new_call
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, NOW, FakeClient, record, result
from tests.unit.goondan_tasks.cli.invoke import goondan

RECORDS = [
    record("queued", id="q"),
    record("running", id="r", claimed_at=1, worker="w"),
    record("done", id="o", outcome="ok", claimed_at=1_000, finished_at=1_250, has_started=True),
    record("done", id="e", outcome="error"),
    record("dead", id="d", outcome="error"),
]


@pytest.fixture(autouse=True)
def _five_calls(client: FakeClient) -> None:
    client.records = RECORDS


def ids(*arguments: str) -> list[str]:
    """Return the ids of the calls that are listed."""
    return [call["id"] for call in goondan("calls", *arguments, "--json").document]


def test_programs_get_records_rows() -> None:
    assert goondan("calls", "--json").document == [known.to_wire() for known in RECORDS]


def test_people_get_table_with_outcome_and_duration() -> None:
    heading, *rows = goondan("calls").stdout.splitlines()

    assert heading.split() == [
        *["queued", "agent", "tool", "instance", "status", "code", "took", "worker", "id"]
    ]
    assert [row.split()[5] for row in rows] == ["queued", "running", "ok", "error", "dead"]
    assert "250 ms" in rows[2]


@pytest.mark.parametrize(("columns", "shown"), [(80, "0b7c7a1e"), (120, CALL_ID)])
def test_narrow_terminal_shortens_ids_to_what_commands_need(
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


def test_list_can_be_limited() -> None:
    assert ids("--limit", "2") == ["q", "r"]
    assert ids("--status", "error", "--limit", "1") == ["e"]


def test_calls_are_found_by_tool_instance_and_age(client: FakeClient) -> None:
    painted = new_call("coder", "image__paint", {}, {"instance_key": "k"})
    client.records = [*RECORDS, record(id="new", call=painted)]

    assert ids("--tool", "image__*") == ids("--instance", "k") == ["new"]
    assert ids("--tool", "bash__exec", "--status", "ok") == ["o"]
    assert client.wanted == {"older_than": None, "newer_than": None}
    ids("--since", "10m", "--until", "30s")
    assert client.wanted == {"older_than": 30, "newer_than": 600}


FAILURE = {"code": "E_TOOL_OUTCOME_UNKNOWN", "name": "E", "message": "m"}


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 119, 120, 140, 300])
def test_call_takes_one_line_at_any_width(
    client: FakeClient, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    wide = new_call("a" * 60, "tool__" + "t" * 90, {}, {"instance_key": "한국어 \n" + "k" * 200})
    failed = serializer.encode(result("error", error=FAILURE).to_wire())
    shown = {"call": wide, "worker": "w" * 80, "result": failed, "outcome": "error"}
    client.records = [record("done", id=f"{number}{CALL_ID[1:]}", **shown) for number in range(3)]

    lines = re.sub(r"\x1b\[[\d;]*m", "", goondan("calls").stdout).splitlines()

    assert len(lines) == 4
    assert all(cell_len(line) <= columns for line in lines)
    if columns >= 60:
        # instance and worker are left out of 300 columns, which then have room for the rest
        assert [("…" in line) for line in lines[1:]] == [columns < 300] * 3
        assert [line.split()[-1][:8] for line in lines[1:]] == [
            f"{number}{CALL_ID[1:8]}" for number in range(3)
        ]


@pytest.mark.parametrize(("columns", "has_worker"), [(119, False), (120, False), (170, True)])
def test_dropping_worker_column_makes_tool_names_whole(
    client: FakeClient, columns: int, has_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    call = new_call("thinker", "goondan__model-llm", {}, {"instance_key": "issue-42"})
    client.records = [record("done", call=call, worker="thinker-15660@a-long-name", outcome="ok")]

    shown = goondan("calls").stdout

    assert "goondan__model-llm" in shown
    assert ("thinker-15660" in shown) == has_worker


def test_error_codes_lost_and_waiting_calls_are_listed(client: FakeClient) -> None:
    failed = serializer.encode(result("error", error=FAILURE).to_wire())
    client.records = [
        record("done", id="e", outcome="error", result=failed),
        record("running", id="l", worker="w", lost_at=NOW),
        record("queued", id="w", waiting_for="rate:x"),
    ]

    assert [row["code"] for row in goondan("calls", "--json").document] == [FAILURE["code"], None, None]
    assert [row.split()[5] for row in goondan("calls").stdout.splitlines()[1:]] == [
        "error",
        "lost",
        "waiting",
    ]
    assert (ids("--status", "lost"), ids("--status", "waiting")) == (["l"], ["w"])
    assert (ids("--status", "running"), ids("--status", "queued")) == (["l"], ["w"])


def test_narrow_terminal_leaves_out_year_and_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    heading, *rows = goondan("calls").stdout.splitlines()

    assert "worker" not in heading
    assert {row.split(" ")[0] for row in rows} == {local_time(NOW)[5:10]}


def test_empty_list_of_calls_is_explained(client: FakeClient) -> None:
    shown = goondan("calls", "--instance", "nobody")
    client.records = []

    assert (shown.stdout, shown.stderr) == ("", "There are no such calls.\n")
    assert goondan("calls").stderr == "There are no calls.\n"


def test_calls_of_one_agent_can_be_listed() -> None:
    assert len(ids("--agent", "coder")) == 5
    assert ids("--agent", "planner") == []


@pytest.mark.parametrize("arguments", [("--limit", "0"), ("--limit", "many"), ("--status", "gone")])
def test_unusable_list_options_are_usage_error(arguments: tuple[str, str]) -> None:
    assert goondan("calls", *arguments).exit_code == 2


def test_unknown_agent_is_not_agent_without_calls() -> None:
    assert goondan("calls", "--agent", "codr").exit_code == 3

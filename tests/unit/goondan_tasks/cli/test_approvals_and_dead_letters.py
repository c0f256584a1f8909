"""goondan approvals."""

import getpass
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.cli import session
from goondan_tasks.contract.wording import on_one_line
from goondan_tasks.history.failures import FailureGroup
from goondan_tasks.ledger.record import CallRecord
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, NOW, FakeClient, record, result
from tests.unit.goondan_tasks.cli.invoke import goondan

OTHER = "1" + CALL_ID[1:]


def waiting(call_id: str = CALL_ID, **fields: Any) -> CallRecord:
    """Make the record of a call that waits for an approval."""
    times = {"suspended_at": NOW, "expires_at": NOW + 1000}
    return record("pending", id=call_id, awaits="approval", **times, **fields)


def test_calls_that_wait_are_listed_with_their_arguments(client: FakeClient) -> None:
    call = record().call.model_copy(update={"args": {"command": "rm -rf build"}})
    client.records = [waiting(call=call), record("pending", awaits="completion"), record("queued")]

    table = goondan("approvals", "list", "--agent", "coder").stdout
    [document] = goondan("approvals", "list", "--json").document

    assert 'bash__exec  default   {"command": "rm -rf build"}' in table
    assert table.count("\n") == 2
    assert (document["id"], document["args"], document["awaits"]) == (
        CALL_ID,
        {"command": "rm -rf build"},
        "approval",
    )


def test_empty_list_is_not_mistake(client: FakeClient) -> None:
    assert goondan("approvals", "list", "--json").document == []


def test_several_calls_are_approved_at_once(client: FakeClient) -> None:
    client.records = [waiting(), waiting(OTHER)]

    done = goondan("approvals", "approve", CALL_ID, OTHER[:8])

    assert done.stdout == f"approved {CALL_ID}\napproved {OTHER}\n"
    assert client.completed == [{"id": one, "by": getpass.getuser()} for one in (CALL_ID, OTHER)]


@pytest.mark.parametrize("given", ["text", "file"])
def test_call_is_approved_with_other_arguments(client: FakeClient, tmp_path: Path, given: str) -> None:
    client.records = [waiting()]
    (tmp_path / "args.json").write_text('{"command": "ls"}', "utf-8")
    args = '{"command": "ls"}' if given == "text" else f"@{tmp_path / 'args.json'}"

    done = goondan("approvals", "approve", CALL_ID, "--args", args, "--by", "ops")

    assert done.stdout == f"approved {CALL_ID}\n"
    assert client.completed == [{"id": CALL_ID, "by": "ops", "args": {"command": "ls"}}]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([CALL_ID, "--args", "[1]"], "must be a JSON object"),
        ([CALL_ID, "--args", "{"], "is not JSON"),
        ([CALL_ID, OTHER, "--args", "{}"], "--args goes with the id of one call"),
        (["--all", "--yes", "--args", "{}"], "--args goes with the id of one call"),
        ([CALL_ID, "--dry-run"], "--dry-run goes with a filter"),
    ],
)
def test_arguments_that_fit_no_call_approve_nothing(
    client: FakeClient, arguments: list[str], fault: str
) -> None:
    client.records = [waiting(), waiting(OTHER)]

    done = goondan("approvals", "approve", *arguments)

    assert (done.exit_code, client.completed) == (2, [])
    assert fault in on_one_line(done.stderr)


def test_decision_by_filter_reaches_only_calls_shown(client: FakeClient) -> None:
    other = record().call.model_copy(update={"tool_name": "mail__send"})
    client.records = [waiting(), waiting(OTHER, call=other)]
    chosen = ("--tool", "mail__*", "--by", "ops")

    shown = goondan("approvals", "deny", *chosen, "--dry-run", "--json").document
    assert (shown["calls"], client.completed) == ([OTHER], [])
    done = goondan("approvals", "deny", *chosen, "--reason", "late", "--yes")

    assert done.stdout == "denied 1\n"
    assert client.completed == [{"id": OTHER, "reason": "late", "by": "ops"}]


def test_all_that_wait_are_approved_at_once(client: FakeClient) -> None:
    client.records = [waiting(), waiting(OTHER)]

    done = goondan("approvals", "approve", "--all", "--yes", "--by", "ops", "--json")

    assert done.document == [{"id": one, "decision": "approve", "by": "ops"} for one in (CALL_ID, OTHER)]
    assert len(client.completed) == 2


def test_denial_says_why_and_by_whom(client: FakeClient) -> None:
    client.records = [waiting()]

    done = goondan("approvals", "deny", CALL_ID, "--reason", "too late", "--by", "ops", "--json")

    assert done.document == [{"id": CALL_ID, "decision": "deny", "by": "ops"}]
    assert client.completed == [{"id": CALL_ID, "reason": "too late", "by": "ops"}]


def test_decision_without_login_name_names_nobody(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_name() -> str:
        raise KeyError("uid not found")

    client.records = [waiting()]
    monkeypatch.setattr(getpass, "getuser", no_name)

    assert goondan("approvals", "approve", CALL_ID).exit_code == 0
    assert client.completed == [{"id": CALL_ID, "by": ""}]


def test_approving_decided_call_gives_exit_code_two(client: FakeClient) -> None:
    client.records = [record("done")]

    done = goondan("approvals", "approve", CALL_ID, "--json")

    assert (done.exit_code, done.document["error"]["code"]) == (2, "E_CALL_CLOSED")


@pytest.mark.parametrize(
    "arguments",
    [
        ["approve"],
        ["deny"],
        ["list", CALL_ID],
        ["approve", CALL_ID, "--reason", "fine"],
        ["list", "--reason", "x"],
        ["deny", CALL_ID, "--agent", "coder"],
        ["allow", CALL_ID],
    ],
)
def test_mistake_decides_nothing(client: FakeClient, arguments: list[str]) -> None:
    client.records = [waiting()]

    assert goondan("approvals", *arguments).exit_code == 2
    assert client.completed == []


def test_unknown_agent_ends_with_three(client: FakeClient) -> None:
    assert goondan("approvals", "list", "--agent", "nobody").exit_code == 3


POISONED = {"code": "E_TOOL_POISONED", "name": "ToolPoisonedError", "message": "It killed every worker."}
FIRST, SECOND = "first-letter", "second-letter"


@pytest.fixture(autouse=True)
def _letters(client: FakeClient) -> None:
    dead = {"outcome": "error", "attempt": 3, "finished_at": 1_790_000_000_000}
    client.records = [record("dead", id=FIRST, **dead), record("done"), record("dead", id=SECOND, **dead)]
    client.answer = result("error", error=POISONED)


def test_letters_are_listed_for_people_and_programs(client: FakeClient) -> None:
    heading, *rows = goondan("dead-letters", "list").stdout.splitlines()
    documents = goondan("dead-letters", "list", "--json").document

    assert heading.split() == ["died", "agent", "tool", "instance", "attempts", "replayed", "as", "id"]
    assert [row.split()[-1] for row in rows] == [FIRST, SECOND]
    assert [document["id"] for document in documents] == [FIRST, SECOND]


def test_filters_reach_client(client: FakeClient) -> None:
    ages = ("--older-than", "60", "--newer-than", "0")
    errors = ("--code", "E_TOOL", "--text", "no file", "--fingerprint", "3f0a9c", "--subject", "U1")
    goondan("dead-letters", "list", "--tool", "bash__*", "--instance", "i", *errors, *ages)

    about = {"code": "E_TOOL", "text": "no file", "fingerprint": "3f0a9c", "subject": "U1"}
    assert client.wanted == {
        "tool": "bash__*",
        "instance": "i",
        **about,
        "older_than": 60.0,
        "newer_than": 0.0,
    }
    assert goondan("dead-letters", "list", "--agent", "planner").exit_code == 0
    assert goondan("dead-letters", "list", "--agent", "codr").exit_code == 3


def test_letters_are_counted_by_kinds_of_their_failures(client: FakeClient) -> None:
    kind = FailureGroup(
        fingerprint="3f0a9c1d2e4b",
        tool="bash__exec",
        code="E_TOOL_POISONED",
        message="It killed <n> workers.",
        agents=("coder",),
        count=1_990,
        replayed=3,
        first_at="2026-02-01T10:00:00.000Z",
        last_at="2026-02-01T11:00:00.000Z",
        last_id=FIRST,
        last_message="It killed 3 workers.",
    )
    client.groups = (kind,)
    shown = goondan("dead-letters", "list", "--group", "--newer-than", "1h")

    assert "1990" in shown.stdout
    assert "3f0a9c1d2e4b" in shown.stdout
    assert "Counted are the latest 2,000 of 3,000." in shown.stderr
    assert client.wanted == {"only_dead": True, "older_than": None, "newer_than": 3_600.0}
    assert goondan("dead-letters", "list", "--group", "--json").document == [
        {**kind.to_wire(), "agents": ["coder"]}
    ]
    assert goondan("dead-letters", "list", "--group", "--tool", "x").exit_code == 2


def test_unreplayable_letters_are_named_without_stopping_others(client: FakeClient) -> None:
    client.refused = {SECOND}
    done = goondan("dead-letters", "replay", "--all", "--yes", "--json")

    assert done.document == [{"id": FIRST, "replayedBy": CALL_ID}]
    assert f"{SECOND}: E_AGENT_NOT_FOUND: No agent 'gone'." in done.stderr
    assert "It could not be done with 1; 1 are done." in done.stderr


def test_letter_is_shown_with_arguments_and_error() -> None:
    shown = goondan("dead-letters", "show", FIRST)
    document = goondan("dead-letters", "show", FIRST, "--json").document

    assert "args" in shown.stdout
    assert "It killed every worker." in shown.stdout
    assert document["id"] == FIRST
    assert document["call"]["toolName"] == "bash__exec"
    assert document["result"]["error"] == POISONED


def test_letters_are_replayed_by_their_ids() -> None:
    done = goondan("dead-letters", "replay", FIRST, SECOND, "--json")

    assert done.exit_code == 0
    assert done.document == [{"id": FIRST, "replayedBy": CALL_ID}, {"id": SECOND, "replayedBy": CALL_ID}]


def test_second_replay_must_be_meant(client: FakeClient) -> None:
    client.records = [record("dead", id=FIRST, replayed_by="x", replays=1)]

    assert goondan("dead-letters", "replay", FIRST).exit_code == 2
    assert goondan("dead-letters", "replay", FIRST, "--again").exit_code == 0


def test_replays_before_one_that_is_refused_are_named(client: FakeClient) -> None:
    client.records = [record("dead", id=FIRST), record("dead", id=SECOND, replayed_by="x", replays=1)]

    refused = goondan("dead-letters", "replay", FIRST, SECOND)

    assert refused.exit_code == 2
    assert f"{FIRST} was replayed as {CALL_ID}." in refused.stderr


def test_letters_are_dropped_by_their_ids(client: FakeClient) -> None:
    assert goondan("dead-letters", "drop", FIRST).stdout == "dropped 1\n"
    assert [found.id for found in client.records] == [CALL_ID, SECOND]


@pytest.mark.parametrize("action", ["replay", "drop"])
def test_off_terminal_many_must_be_confirmed_beforehand(action: str, client: FakeClient) -> None:
    refused = goondan("dead-letters", action, "--all")

    assert refused.exit_code == 2
    assert "give --yes" in refused.stderr
    assert len(client.records) == 3
    assert goondan("dead-letters", action, "--tool", "*", "--yes").exit_code == 0


@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("n", 3)])
def test_on_terminal_many_are_asked_for(
    answer: str, left: int, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "can_ask", lambda output: True)

    done = goondan("dead-letters", "drop", "--all", stdin=f"{answer}\n")
    assert done.exit_code == (answer == "n")
    assert "Drop 2 dead letters of 1 tool" in done.stderr + done.stdout
    assert len(client.records) == left


@pytest.mark.parametrize(
    "misused",
    [
        ("replay",),
        ("drop",),
        ("show",),
        ("show", FIRST, SECOND),
        ("show", "--all"),
        ("list", FIRST),
        ("replay", FIRST, "--all"),
        ("drop", FIRST, "--older-than", "0"),
        ("replay", "--all", "--again", "--yes"),
        ("drop", "--all", "--json"),
        ("burn", FIRST),
        ("list", "--older-than", "-1"),
        (),
    ],
    ids=" ".join,
)
def test_misused_dead_letters_command_is_usage_error(misused: tuple[str, ...], client: FakeClient) -> None:
    assert goondan("dead-letters", *misused).exit_code == 2
    assert len(client.records) == 3

"""goondan dead-letters."""

import pytest

from goondan_tasks.cli import confirmation
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, FakeClient, record, result
from tests.unit.goondan_tasks.cli.invoke import goondan

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


def test_filters_reach_the_client(client: FakeClient) -> None:
    goondan("dead-letters", "list", "--tool", "bash__*", "--older-than", "60", "--newer-than", "0")

    assert client.wanted == {"tool": "bash__*", "older_than": 60.0, "newer_than": 0.0}
    assert goondan("dead-letters", "list", "--agent", "planner").exit_code == 0
    assert goondan("dead-letters", "list", "--agent", "codr").exit_code == 3


def test_a_letter_is_shown_with_arguments_and_error() -> None:
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


def test_a_second_replay_must_be_meant(client: FakeClient) -> None:
    client.records = [record("dead", id=FIRST, replayed_by="x", replays=1)]

    assert goondan("dead-letters", "replay", FIRST).exit_code == 2
    assert goondan("dead-letters", "replay", FIRST, "--again").exit_code == 0


def test_letters_are_dropped_by_their_ids(client: FakeClient) -> None:
    assert goondan("dead-letters", "drop", FIRST).stdout == "dropped 1\n"
    assert [found.id for found in client.records] == [CALL_ID, SECOND]


@pytest.mark.parametrize("action", ["replay", "drop"])
def test_off_a_terminal_many_must_be_confirmed_beforehand(action: str, client: FakeClient) -> None:
    refused = goondan("dead-letters", action, "--all")

    assert refused.exit_code == 2
    assert "say --yes" in refused.stderr
    assert len(client.records) == 3
    assert goondan("dead-letters", action, "--tool", "*", "--yes").exit_code == 0


@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("n", 3)])
def test_on_a_terminal_many_are_asked_for(
    answer: str, left: int, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation, "can_ask", lambda output: True)

    assert goondan("dead-letters", "drop", "--all", stdin=f"{answer}\n").exit_code == (answer == "n")
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
def test_what_makes_no_sense_is_a_usage_error(misused: tuple[str, ...], client: FakeClient) -> None:
    assert goondan("dead-letters", *misused).exit_code == 2
    assert len(client.records) == 3

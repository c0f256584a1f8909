"""goondan cancel."""

import pytest

from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, FakeClient, record
from tests.unit.goondan_tasks.cli.invoke import goondan


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("queued", "bash__exec of coder: cancelled\n"),
        ("running", "bash__exec of coder: its worker was told to end it\n"),
    ],
)
def test_call_is_cancelled(client: FakeClient, status: str, said: str) -> None:
    client.records = [record(status)]
    done = goondan("cancel", CALL_ID)
    assert (done.exit_code, done.stdout) == (0, said)
    assert client.records[0].is_cancelled


def test_for_programs_record_is_printed(client: FakeClient) -> None:
    client.records = [record("running")]
    document = goondan("cancel", CALL_ID, "--json").document
    assert document == client.records[0].to_wire()
    assert (document["status"], document["cancelled"]) == ("running", True)


def test_several_calls_are_cancelled_by_their_ids(client: FakeClient) -> None:
    other = record("running", id="1" + CALL_ID[1:])
    client.records = [record(), other]

    rows = goondan("cancel", CALL_ID, other.id[:8], "--json").document

    assert [(row["id"], row["cancelled"]) for row in rows] == [(CALL_ID, True), (other.id, True)]


def test_cancel_filter_shows_its_calls_and_asks_first(client: FakeClient) -> None:
    done = goondan("cancel", "--agent", "coder")

    assert done.exit_code == 2
    assert CALL_ID in done.stderr
    assert "coder  bash__exec  queued      1" in done.stderr
    assert "Cancel 1 call" in done.stderr
    assert client.cancelled == []


def test_confirmed_filter_cancels_calls_it_showed(client: FakeClient) -> None:
    other = record("running", id="1" + CALL_ID[1:])
    client.records, client.ended_meanwhile = [record(), other], {CALL_ID}

    done = goondan("cancel", "--tool", "bash__*", "--yes")

    assert client.cancelled == [CALL_ID, other.id]
    assert done.stdout == "cancelled 1; 1 had ended meanwhile\n"


def test_dry_run_lists_and_counts_without_cancelling(client: FakeClient) -> None:
    document = goondan("cancel", "--all", "--status", "queued", "--dry-run", "--json").document

    assert document == {
        "calls": [CALL_ID],
        "counts": [{"agent": "coder", "tool": "bash__exec", "state": "queued", "calls": 1}],
    }
    assert client.cancelled == []
    assert goondan("cancel", "--instance", "other", "--dry-run").stderr == "There is nothing to cancel.\n"


@pytest.mark.parametrize("words", [(), (CALL_ID, "--all"), (CALL_ID, "--dry-run")])
def test_ids_and_filters_are_never_mixed_or_missing(client: FakeClient, words: tuple[str, ...]) -> None:
    assert goondan("cancel", *words).exit_code == 2
    assert client.cancelled == []


@pytest.mark.parametrize(
    ("call_id", "code"),
    [(CALL_ID, "E_CALL_CLOSED"), ("nobody", "E_CALL_NOT_FOUND"), ("", "E_CALL_NOT_FOUND")],
)
def test_uncancellable_call_gives_exit_code_two(client: FakeClient, call_id: str, code: str) -> None:
    client.records = [record("done", outcome="ok")]
    done = goondan("cancel", call_id, "--json")
    assert (done.exit_code, done.document["error"]["code"]) == (2, code)
    assert done.document["error"]["suggestion"]

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
def test_a_call_is_cancelled(client: FakeClient, status: str, said: str) -> None:
    client.records = [record(status)]
    done = goondan("cancel", CALL_ID)
    assert (done.exit_code, done.stdout) == (0, said)
    assert client.records[0].is_cancelled


def test_for_programs_the_record_is_printed(client: FakeClient) -> None:
    client.records = [record("running")]
    document = goondan("cancel", CALL_ID, "--json").document
    assert document == client.records[0].to_wire()
    assert (document["status"], document["cancelled"]) == ("running", True)


@pytest.mark.parametrize(
    ("call_id", "code"),
    [(CALL_ID, "E_CALL_CLOSED"), ("nobody", "E_CALL_NOT_FOUND"), ("", "E_CALL_NOT_FOUND")],
)
def test_what_cannot_be_cancelled_ends_with_two(client: FakeClient, call_id: str, code: str) -> None:
    client.records = [record("done", outcome="ok")]
    done = goondan("cancel", call_id, "--json")
    assert (done.exit_code, done.document["error"]["code"]) == (2, code)
    assert done.document["error"]["suggestion"]

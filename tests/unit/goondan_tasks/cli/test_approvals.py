"""goondan approvals."""

import getpass
from typing import Any

import pytest

from goondan_tasks.ledger.record import CallRecord
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, NOW, FakeClient, record
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


def test_an_empty_list_is_no_mistake(client: FakeClient) -> None:
    assert goondan("approvals", "list", "--json").document == []


def test_several_calls_are_approved_at_once(client: FakeClient) -> None:
    client.records = [waiting(), waiting(OTHER)]

    done = goondan("approvals", "approve", CALL_ID, OTHER[:8])

    assert done.stdout == f"approved {CALL_ID}\napproved {OTHER}\n"
    assert client.completed == [{"id": one, "by": getpass.getuser()} for one in (CALL_ID, OTHER)]


def test_a_denial_says_why_and_by_whom(client: FakeClient) -> None:
    client.records = [waiting()]

    done = goondan("approvals", "deny", CALL_ID, "--reason", "too late", "--by", "ops", "--json")

    assert done.document == [{"id": CALL_ID, "decision": "deny", "by": "ops"}]
    assert client.completed == [{"id": CALL_ID, "reason": "too late", "by": "ops"}]


def test_without_a_login_name_nobody_is_named(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise KeyError("uid not found")

    client.records = [waiting()]
    monkeypatch.setattr(getpass, "getuser", no_name)

    assert goondan("approvals", "approve", CALL_ID).exit_code == 0
    assert client.completed == [{"id": CALL_ID, "by": ""}]


def test_what_was_decided_before_ends_with_two(client: FakeClient) -> None:
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
def test_a_mistake_decides_nothing(client: FakeClient, arguments: list[str]) -> None:
    client.records = [waiting()]

    assert goondan("approvals", *arguments).exit_code == 2
    assert client.completed == []


def test_an_unknown_agent_ends_with_three(client: FakeClient) -> None:
    assert goondan("approvals", "list", "--agent", "nobody").exit_code == 3

"""goondan show."""

import re
from typing import Any

import pytest

from broker_config import serializer
from goondan_tasks.contract.calls import new_call
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, META, NOW, FakeClient, record, result
from tests.unit.goondan_tasks.cli.invoke import goondan

ON_W = {"worker": "w", "attempt": 1, "claimed_at": NOW - 10_000, "has_started": True}
FAILURE = {"code": "E_TOOL", "name": "KeyError", "message": "'path'", "suggestion": "Give one."}


def ended(status: str, **fields: Any) -> dict[str, Any]:
    wire = serializer.encode(result(status, **fields).to_wire())
    return {"outcome": status, "result": wire, "finished_at": NOW - 3_000, **ON_W}


def facts() -> dict[str, str]:
    """Return what is shown of the call, by its first words."""
    lines = goondan("show", CALL_ID).stdout.split("\n\n")[0].splitlines()[1:]
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in lines)


def test_running_call_is_shown_with_runs_left(client: FakeClient) -> None:
    client.records = [record("running", **ON_W, most_attempts=3, is_idempotent=False)]

    shown = facts()

    assert shown["state"] == "running on w for 10.0 s"
    assert (shown["agent"], shown["instance"], shown["tool"]) == ("coder", "default", "bash__exec")
    assert shown["runs left"] == "0: it is not run again if its worker dies"
    assert (shown["trace"], shown["correlation"]) == (META["traceId"], META["correlationId"])


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"status": "queued"}, "not known before it has started"),
        (
            {"status": "running", **ON_W, "most_attempts": 3, "is_idempotent": True},
            "2, if its worker dies",
        ),
        ({"status": "done", **ended("ok", output=1)}, "not kept of a call that has ended"),
    ],
)
def test_runs_left_are_shown_or_reported_unknown(
    client: FakeClient, fields: dict[str, Any], left: str
) -> None:
    client.records = [record(**fields)]

    assert facts()["runs left"] == left


def test_error_shows_suggestion_and_traceback_place(client: FakeClient) -> None:
    client.records = [record("done", **ended("error", error=FAILURE))]

    shown = goondan("show", CALL_ID)

    assert shown.exit_code == 0
    assert "ended with E_TOOL 3.0 s ago" in shown.stdout
    assert "E_TOOL: KeyError: 'path'\nWhat to do: Give one.\n" in shown.stdout
    assert "Traceback: none is kept with the call. See the log of w." in shown.stdout


def test_call_awaiting_approval_shows_approving_command(client: FakeClient) -> None:
    client.records = [record("pending", awaits="approval", suspended_at=NOW, expires_at=NOW + 60_000)]

    assert facts()["to let it run"] == f"goondan approvals approve {CALL_ID}"


def test_secrets_are_masked_and_long_arguments_cut(client: FakeClient) -> None:
    call = new_call("coder", "bash__exec", {"apiKey": "sk-123456789", "text": "x" * 9_000}, {})
    client.records = [record(call=call)]

    shown, document = goondan("show", CALL_ID).stdout, goondan("show", CALL_ID, "--json").document

    assert "sk-123456789" not in shown + document["args"]["text"]
    assert re.search(r"x… \(9,\d{3} bytes\)", shown)
    assert document["args"]["isCut"]


def test_programs_get_story_as_one_document(client: FakeClient) -> None:
    client.records = [record("done", **ended("ok", output={"n": 1}))]

    document = goondan("show", CALL_ID[:8], "--json").document

    assert (document["id"], document["state"], document["agent"]) == (CALL_ID, "ok", "coder")
    assert document["output"] == {"text": '{"n":1}', "size": 7, "isCut": False}
    assert [attempt["ended"] for attempt in document["attempts"]] == ["ok"]


def test_unknown_call_ends_with_two(client: FakeClient) -> None:
    assert goondan("show", "nobody").exit_code == 2

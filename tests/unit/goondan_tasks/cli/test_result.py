"""goondan result."""

import re

import pytest

from goondan_tasks.contract.messages import iso_time
from goondan_tasks.contract.output import Progress
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, META, NOW, FakeClient, record, result
from tests.unit.goondan_tasks.cli.invoke import goondan

ERROR = {"code": "E_TOOL", "name": "ToolError", "message": "It failed."}


def test_result_that_is_there_is_printed(client: FakeClient) -> None:
    assert client.answer is not None

    assert goondan("result", CALL_ID, "--json").document == client.answer.to_wire()
    assert goondan("result", CALL_ID).stdout == '{\n  "exitCode": 0\n}\n'


def test_error_result_gives_exit_code_one(client: FakeClient) -> None:
    client.answer = result("error", error=ERROR)

    assert goondan("result", CALL_ID).exit_code == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ERROR, "E_TOOL: It failed.\n"),
        ({"code": "E_TOOL", "name": "KeyError", "message": "'path'"}, "E_TOOL: KeyError: 'path'\n"),
        ({"code": "ENOENT", "name": "FileNotFoundError", "message": "no file"}, "ENOENT: no file\n"),
    ],
)
def test_exception_without_code_is_shown_with_its_class(
    client: FakeClient, error: dict[str, str], line: str
) -> None:
    client.answer = result("error", error=error)

    assert goondan("result", CALL_ID).stdout.startswith(line)


@pytest.mark.parametrize(
    ("awaits", "hints"),
    [
        ("approval", [f"goondan approvals approve {CALL_ID}", f"goondan approvals deny {CALL_ID}"]),
        ("completion", [f"goondan resolve {CALL_ID} VALUE"]),
    ],
)
def test_call_awaiting_person_shows_next_steps(client: FakeClient, awaits: str, hints: list[str]) -> None:
    client.answer = result("pending", handle="h", meta={**META, "awaits": awaits})

    shown = goondan("result", CALL_ID)

    assert shown.exit_code == 0
    assert [line.split(": ")[-1].strip() for line in shown.stderr.splitlines()[1:]] == hints
    assert goondan("result", CALL_ID, "--json").stderr == ""


def test_call_reporting_progress_is_described_with_progress(client: FakeClient) -> None:
    client.answer = None
    told = Progress(done=0.5, message="halfway\n", updated_at="2026-02-01T10:00:00.000Z")
    client.records = [record("running", worker="coder-7@host", attempt=1, progress=told)]

    assert goondan("result", CALL_ID).stdout.endswith(", 0.5 · halfway\\n\n")


def test_described_call_without_result_exits_with_0(client: FakeClient) -> None:
    client.answer = None
    known = {"worker": "coder-7@host", "attempt": 1, "claimed_at": NOW, "has_started": True}
    client.records = [record("running", **known)]

    shown = goondan("result", CALL_ID)
    document = goondan("result", CALL_ID, "--json").document

    assert shown.exit_code == 0
    assert re.match(r"running on coder-7@host for \S+ h: bash__exec of coder, queued 20", shown.stdout)
    assert (document["status"], document["id"], document["worker"]) == ("running", CALL_ID, "coder-7@host")


def test_call_lost_with_worker_appears_as_lost(client: FakeClient) -> None:
    client.answer = None
    client.records = [record("running", worker="coder-7@host", attempt=1, has_started=True, lost_at=NOW)]

    assert goondan("result", CALL_ID).stdout.startswith("lost with coder-7@host ")
    assert goondan("result", CALL_ID, "--json").document["lostAt"] == iso_time(NOW)


def test_with_timeout_result_is_waited_for(client: FakeClient) -> None:
    client.waits = 3

    assert goondan("result", CALL_ID, "--timeout", "30").exit_code == 0


def test_missing_result_after_timeout_exits_with_4(client: FakeClient) -> None:
    client.answer = None

    assert goondan("result", CALL_ID, "--timeout", "0").exit_code == 4


def test_unknown_call_ends_with_two(client: FakeClient) -> None:
    refused = goondan("result", "nobody", "--json")

    assert (refused.exit_code, refused.document["error"]["code"]) == (2, "E_CALL_NOT_FOUND")


def test_long_unique_call_id_prefix_is_enough(
    client: FakeClient,
) -> None:
    other = CALL_ID[:12] + "9" * 24
    client.records = [record("done"), record("done", id=other), record("done", id="plain-id")]

    assert goondan("result", CALL_ID).exit_code == 0
    assert goondan("result", "plain-id").exit_code == 0
    assert goondan("result", other[:13]).exit_code == 0
    assert goondan("result", CALL_ID[:7]).exit_code == 2
    ambiguous = goondan("result", CALL_ID[:12])
    assert ambiguous.exit_code == 2
    assert CALL_ID in ambiguous.stderr
    assert other in ambiguous.stderr


def test_result_tells_where_to_get_large_output(client: FakeClient) -> None:
    file = {"path": ".outputs/x.json", "size": 999_999, "preview": "aaa"}
    client.answer = result(output=file, meta={**META, "outputFile": file["path"]})

    assert f"See it with: goondan output {CALL_ID}" in goondan("result", CALL_ID).stderr
    assert goondan("result", CALL_ID, "--json").stderr == ""

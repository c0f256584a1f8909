"""goondan output."""

import json

import pytest

from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, META, FakeClient, record, result
from tests.unit.goondan_tasks.cli.invoke import goondan

LARGE = json.dumps("한글 " * 20, ensure_ascii=False).encode()


@pytest.fixture(autouse=True)
def _large_output(client: FakeClient) -> None:
    client.file = LARGE
    client.answer = result(output={"path": "f"}, meta={**META, "outputFile": "f"})


def test_output_command_writes_exactly_all_parts() -> None:
    done = goondan("output", CALL_ID)

    assert (done.exit_code, done.stdout.encode(), done.stderr) == (0, LARGE, "")


def test_later_part_is_written_from_its_offset_on() -> None:
    assert goondan("output", CALL_ID[:8], "--offset", "71").stdout.encode() == LARGE[71:]


def test_programs_get_one_document() -> None:
    document = goondan("output", CALL_ID, "--json").document

    assert document == {"id": CALL_ID, "size": len(LARGE), "output": "한글 " * 20}


def test_small_output_is_written_as_in_result(client: FakeClient) -> None:
    client.answer = result(output={"exitCode": 0})

    assert goondan("output", CALL_ID).stdout == '{"exitCode":0}'
    past = goondan("output", CALL_ID, "--offset", "99")
    assert (past.exit_code, "past the end" in past.stderr) == (2, True)


def test_call_that_failed_has_no_output(client: FakeClient) -> None:
    client.answer = result("error", error={"code": "E_TOOL", "name": "ToolError", "message": "It failed."})

    done = goondan("output", CALL_ID, "--json")

    assert (done.exit_code, done.document["error"]["code"]) == (1, "E_CALL_NO_OUTPUT")
    assert "E_TOOL" in done.document["error"]["message"]


def test_output_without_workers_answer_exits_with_4(client: FakeClient) -> None:
    client.waits = 999
    client.records = [record(), record(id="x")]

    assert goondan("output", CALL_ID, "--timeout", "0").exit_code == 4


@pytest.mark.parametrize("misused", [("--offset", "-1"), ("--offset", "1", "--json"), ("--timeout", "soon")])
def test_misused_output_options_are_usage_error(misused: tuple[str, ...]) -> None:
    assert goondan("output", CALL_ID, *misused).exit_code == 2

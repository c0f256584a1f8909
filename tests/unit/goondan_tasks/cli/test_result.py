"""goondan result."""

from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, FakeClient, record, result
from tests.unit.goondan_tasks.cli.invoke import goondan

ERROR = {"code": "E_TOOL", "name": "ToolError", "message": "It failed."}


def test_a_result_that_is_there_is_printed(client: FakeClient) -> None:
    assert client.answer is not None

    assert goondan("result", CALL_ID, "--json").document == client.answer.to_wire()
    assert goondan("result", CALL_ID).stdout == '{\n  "exitCode": 0\n}\n'


def test_an_error_ends_with_one(client: FakeClient) -> None:
    client.answer = result("error", error=ERROR)

    assert goondan("result", CALL_ID).exit_code == 1


def test_a_call_without_a_result_is_described_and_ends_with_zero(client: FakeClient) -> None:
    client.answer = None
    client.records = [record("running", worker="coder-7@host", attempt=1)]

    shown = goondan("result", CALL_ID)
    document = goondan("result", CALL_ID, "--json").document

    assert shown.exit_code == 0
    assert shown.stdout.startswith("running on coder-7@host, attempt 1: bash__exec of coder, queued 20")
    assert (document["status"], document["id"], document["worker"]) == ("running", CALL_ID, "coder-7@host")


def test_with_a_timeout_the_result_is_waited_for(client: FakeClient) -> None:
    client.waits = 3

    assert goondan("result", CALL_ID, "--timeout", "30").exit_code == 0


def test_a_result_that_does_not_come_in_time_ends_with_four(client: FakeClient) -> None:
    client.answer = None

    assert goondan("result", CALL_ID, "--timeout", "0").exit_code == 4


def test_an_unknown_call_ends_with_two(client: FakeClient) -> None:
    refused = goondan("result", "nobody", "--json")

    assert (refused.exit_code, refused.document["error"]["code"]) == (2, "E_CALL_NOT_FOUND")

"""goondan call."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from goondan_tasks.contract.errors import BrokerUnreachableError
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, NOW, FakeClient, record, result
from tests.unit.goondan_tasks.cli.invoke import goondan

EXAMPLE = Path(__file__).parents[4] / "examples" / "coding-swarm"

ERROR = {
    "code": "E_TOOL_TIMEOUT",
    "name": "ToolTimeoutError",
    "message": "It took too long.",
    "suggestion": "Ask for less.",
    "helpUrl": "https://docs.goondan.ai/errors/E_TOOL_TIMEOUT",
}


def test_call_is_submitted_as_it_was_written(client: FakeClient) -> None:
    goondan(
        *("call", "coder", "bash__exec", '{"command": "ls"}'),
        *("--instance", "issue-42", "--turn", "t-1", "--id", "call_9"),
        *("--auth", '{"subjects": {"user": "U1"}}', "--origin", '{"channel": "c"}'),
    )

    assert client.submitted == [
        {
            "agent": "coder",
            "tool": "bash__exec",
            "args": {"command": "ls"},
            "instance_key": "issue-42",
            "turn_id": "t-1",
            "tool_call_id": "call_9",
            "auth": {"subjects": {"user": "U1"}},
            "origin": {"channel": "c"},
        }
    ]


def test_omitted_options_are_left_to_client(client: FakeClient) -> None:
    goondan("call", "coder", "bash__exec")

    [submitted] = client.submitted
    assert [name for name, value in submitted.items() if value is None] == [
        "args",
        "instance_key",
        "turn_id",
        "tool_call_id",
        "auth",
        "origin",
    ]


@pytest.mark.parametrize("auth", ["[]", "null", "U1", "{subjects: 1}"])
def test_auth_that_is_not_object_is_usage_error(client: FakeClient, auth: str) -> None:
    done = goondan("call", "coder", "bash__exec", "--auth", auth)

    assert (done.exit_code, client.submitted) == (2, [])
    assert "--auth" in done.stderr


def test_arguments_come_from_stdin_or_file_too(client: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text('{"from": "file"}', encoding="utf-8")

    goondan("call", "coder", "bash__exec", "-", stdin='{"from": "stdin"}')
    goondan("call", "coder", "bash__exec", f"@{tmp_path / 'args.json'}")

    assert [submitted["args"] for submitted in client.submitted] == [{"from": "stdin"}, {"from": "file"}]


def test_people_see_output_on_stdout_facts_on_stderr(client: FakeClient) -> None:
    shown = goondan("call", "coder", "bash__exec")

    assert (shown.exit_code, shown.stdout) == (0, '{\n  "exitCode": 0\n}\n')
    assert shown.stderr == f"ok  bash__exec · 12 ms · coder-7@host · id {CALL_ID}\n"


def test_text_output_is_plain_but_terminal_safe(client: FakeClient) -> None:
    client.answer = result(output="two\nlines\x1b[2J")

    assert goondan("call", "coder", "bash__exec").stdout == "two\nlines\\x1b[2J\n"


def test_json_output_is_result_in_wire_form(client: FakeClient) -> None:
    shown = goondan("call", "coder", "bash__exec", "--json")

    assert client.answer is not None
    assert (shown.document, shown.stderr) == (client.answer.to_wire(), "")


def test_tool_error_exits_with_1_and_suggests_remedy(client: FakeClient) -> None:
    client.answer = result("error", error=ERROR)

    shown = goondan("call", "coder", "bash__exec")

    assert shown.exit_code == 1
    assert shown.stdout == (
        "E_TOOL_TIMEOUT: It took too long.\n"
        "What to do: Ask for less.\n"
        "More: goondan explain E_TOOL_TIMEOUT, or https://docs.goondan.ai/errors/E_TOOL_TIMEOUT\n"
    )
    assert goondan("call", "coder", "bash__exec", "--json").exit_code == 1


def test_pending_result_exits_with_0_and_shows_handle(client: FakeClient) -> None:
    client.answer = result("pending", handle="job-3")

    shown = goondan("call", "coder", "bash__exec")

    assert shown.exit_code == 0
    assert "handle job-3" in shown.stderr


def test_detached_only_id_is_printed(client: FakeClient) -> None:
    client.answer = None

    assert goondan("call", "coder", "bash__exec", "--detach").stdout == f"{CALL_ID}\n"
    assert goondan("call", "coder", "bash__exec", "--detach", "--json").document == {"id": CALL_ID}


def test_missing_result_after_timeout_exits_with_4(client: FakeClient) -> None:
    client.answer = None

    waited = goondan("call", "coder", "bash__exec", "--timeout", "0.01")

    assert waited.exit_code == 4
    assert f"goondan result {CALL_ID}" in waited.stderr


def test_unknown_agent_ends_with_three(client: FakeClient) -> None:
    assert goondan("call", "codr", "bash__exec").exit_code == 3
    assert goondan("call", "codr", "bash__exec", "--json").document["error"]["code"] == "E_AGENT_NOT_FOUND"


def test_unreachable_broker_ends_with_five(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise BrokerUnreachableError("Redis at redis://h:1 cannot be reached: refused")

    monkeypatch.setattr(client, "submit", unreachable)

    refused = goondan("call", "coder", "bash__exec")

    assert refused.exit_code == 5
    assert "Redis at redis://h:1 cannot be reached" in refused.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("--delay", "10m"), {"delay": 600.0}),
        (("--at", "2026-12-01T09:00+09:00"), {"not_before": datetime(2026, 12, 1, tzinfo=UTC)}),
    ],
)
def test_time_of_call_is_passed_on(
    client: FakeClient, given: tuple[str, ...], expected: dict[str, object]
) -> None:
    for command in (("call", "coder", "bash__exec"), ("send", "coder", "hi"), ("request", "coder", "hi")):
        goondan(*command, *given)

    assert [{name: one[name] for name in expected} for one in client.submitted] == [expected] * 3


@pytest.mark.parametrize("given", [("--at", "tomorrow"), ("--delay", "1", "--at", "2026-12-01T09:00")])
def test_wrong_time_of_call_is_usage_error(client: FakeClient, given: tuple[str, ...]) -> None:
    done = goondan("call", "coder", "bash__exec", *given)

    assert done.exit_code == 2
    assert client.submitted == []


def test_run_now_says_how_calls_stand(client: FakeClient) -> None:
    client.records = [record("scheduled", not_before=NOW + 60_000)]

    done = goondan("run-now", CALL_ID, "--json")

    assert client.records[0].status == "queued"
    assert json.loads(done.stdout)["status"] == "queued"

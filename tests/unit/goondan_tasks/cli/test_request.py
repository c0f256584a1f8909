"""``goondan request``."""

from pathlib import Path

import pytest

from tests.unit.goondan_tasks.cli.fake_client import FakeClient, result
from tests.unit.goondan_tasks.cli.invoke import goondan

FAILED = {"code": "E_API", "name": "ApiError", "message": "too fast"}


def test_answer_is_printed_and_id_goes_to_stderr(client: FakeClient) -> None:
    client.answer = result(output={"words": 2})

    done = goondan("request", "coder", "x")

    assert (done.exit_code, done.document) == (0, {"words": 2})
    assert "id 0b7c7a1e" in done.stderr


@pytest.mark.parametrize("command", ["request", "send"])
def test_turns_auth_and_origin_are_handed_on(client: FakeClient, command: str, tmp_path: Path) -> None:
    origin = tmp_path / "origin.json"
    origin.write_text('{"channel": "c"}')

    goondan(command, "coder", "x", "--auth", '{"subjects": {"user": "U1"}}', "--origin", f"@{origin}")

    [submitted] = client.submitted
    assert submitted["auth"] == {"subjects": {"user": "U1"}}
    assert submitted["origin"] == {"channel": "c"}


def test_schema_of_answer_is_read_from_file(client: FakeClient, tmp_path: Path) -> None:
    schema = tmp_path / "answer.json"
    schema.write_text('{"type": "array"}')

    goondan("request", "coder", "x", "--schema", f"@{schema}")

    [submitted] = client.submitted
    assert submitted["output_schema"] == {"type": "array"}
    assert goondan("request", "coder", "x", "--schema", "[]").exit_code == 2


def test_failed_request_names_id_of_its_trace(client: FakeClient) -> None:
    client.answer = result("error", error=FAILED)

    done = goondan("request", "coder", "x")

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("E_API: too fast\n")
    assert done.stderr.endswith("See it with: goondan trace c-1\n")


def test_exception_without_code_is_shown_with_its_class(client: FakeClient) -> None:
    client.answer = result("error", error={"code": "E_AGENT_FAILED", "name": "KeyError", "message": "'text'"})

    assert goondan("request", "coder", "x").stderr.startswith("E_AGENT_FAILED: KeyError: 'text'\n")
    assert goondan("request", "coder", "x", "--json").document["error"]["message"] == "'text'"


def test_request_unanswered_in_time_names_its_trace(client: FakeClient) -> None:
    client.answer = None

    done = goondan("request", "coder", "x", "--timeout", "0.05")

    assert (done.exit_code, done.stdout) == (4, "")
    assert done.stderr.endswith("See it with: goondan trace c-1\n")


@pytest.mark.parametrize(
    ("answer", "code", "exit_code"),
    [(result("error", error=FAILED), "E_API", 1), (None, "E_HANDOFF_TIMEOUT", 4)],
)
def test_programs_get_id_with_error(client: FakeClient, answer: object, code: str, exit_code: int) -> None:
    client.answer = answer  # type: ignore[assignment]

    done = goondan("request", "coder", "x", "--timeout", "0.05", "--json")

    assert done.exit_code == exit_code
    assert (done.document["error"]["code"], done.document["error"]["correlationId"]) == (code, "c-1")


def test_advice_is_for_shell(client: FakeClient) -> None:
    client.answer = None

    assert "ask with --async." in goondan("request", "coder", "x", "--timeout", "0.05").stderr


def test_request_that_waits_no_time_is_usage_error(client: FakeClient) -> None:
    assert goondan("request", "coder", "x", "--timeout", "0").exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        ("call", "coder", "bash__exec", "--instance"),
        ("call", "coder", "bash__exec", "--turn"),
        ("call", "coder", "bash__exec", "--id"),
        ("request", "coder", "x", "--instance"),
        ("send", "coder", "x", "--instance"),
        ("mcp-server", "--agent", "coder", "--instance"),
        ("oauth", "login", "slack", "--subject", "s", "--instance"),
    ],
)
def test_empty_name_is_usage_error(client: FakeClient, command: tuple[str, ...]) -> None:
    done = goondan(*command, "")

    assert (done.exit_code, client.submitted) == (2, [])
    assert f"'{command[-1]}': is empty" in done.stderr


@pytest.mark.parametrize("option", ["--agent", "--worker"])
def test_shutdown_without_target_is_usage_error(client: FakeClient, option: str) -> None:
    done = goondan("shutdown", option, "")

    assert done.exit_code == 2
    assert "give either --agent or --worker" in done.stderr

"""How commands tell that they failed."""

import json

import pytest
import typer

from broker_config.embedded import PortInUse
from broker_config.settings import SettingsError
from goondan_tasks.cli.failures import Command, describe_failure, reported
from goondan_tasks.errors import (
    BrokerUnreachableError,
    CallNotFoundError,
    ConfigError,
    GoondanError,
    HandoffError,
    WaitTimeout,
)


def failing(error: Exception) -> Command:
    """Make a command that raises ``error`` and reports it."""

    def command(as_json: bool = False) -> None:
        raise error

    return reported(command)


def test_a_failure_has_code_message_suggestion_and_a_page() -> None:
    assert describe_failure(BrokerUnreachableError("Redis is away.")) == {
        "code": "E_BROKER_UNREACHABLE",
        "message": "Redis is away.",
        "suggestion": BrokerUnreachableError.suggestion,
        "helpUrl": "https://docs.goondan.ai/errors/E_BROKER_UNREACHABLE",
    }


def test_the_page_is_below_the_configured_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_HELP_URL", "https://help.example/")

    assert describe_failure(CallNotFoundError())["helpUrl"] == "https://help.example/E_CALL_NOT_FOUND"


def test_a_wrong_setting_is_told_even_though_no_setting_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_LEASE_SECONDS", "soon")

    failure = describe_failure(SettingsError("GOONDAN_LEASE_SECONDS: no number"))

    assert failure["code"] == "E_CONFIG_SCHEMA_INVALID"
    assert failure["helpUrl"] == "https://docs.goondan.ai/errors/E_CONFIG_SCHEMA_INVALID"


def test_an_error_without_a_page_of_its_own_names_none() -> None:
    for error in (GoondanError("no"), WaitTimeout("id", 3), PortInUse(5), HandoffError("no", code="ENOENT")):
        assert "helpUrl" not in describe_failure(error)


def test_a_timeout_names_the_call() -> None:
    failure = describe_failure(WaitTimeout("the-id", 3))

    assert (failure["code"], failure["callId"]) == ("E_WAIT_TIMEOUT", "the-id")
    assert "goondan result the-id" in failure["message"]


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (BrokerUnreachableError(), 5),
        (ConfigError(), 3),
        (SettingsError("no"), 3),
        (WaitTimeout("id", 3), 4),
        (CallNotFoundError(), 2),
        (PortInUse(5), 5),
        (GoondanError(), 1),
    ],
)
def test_a_failure_ends_the_command_with_its_exit_code(error: Exception, exit_code: int) -> None:
    with pytest.raises(typer.Exit) as ended:
        failing(error)()

    assert ended.value.exit_code == exit_code


def test_people_are_told_on_stderr_and_programs_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for as_json in (False, True):
        with pytest.raises(typer.Exit):
            failing(CallNotFoundError("No call \x1b[2J."))(as_json=as_json)
        told.append(capsys.readouterr())

    for_people, for_programs = told
    assert for_people.err.startswith("Error: No call \\x1b[2J.\nWhat to do: Check the id")
    assert for_people.out == for_programs.err == ""
    assert json.loads(for_programs.out) == {"error": describe_failure(CallNotFoundError("No call \x1b[2J."))}


def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())()

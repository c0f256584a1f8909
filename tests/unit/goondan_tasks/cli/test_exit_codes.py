"""How a command ends for each error code."""

import pytest

from goondan_tasks.cli.exit_codes import exit_code_of


@pytest.mark.parametrize(
    ("error_code", "exit_code"),
    [
        ("E_USAGE", 2),
        ("E_CALL_NOT_FOUND", 2),
        ("E_PAYLOAD_TOO_LARGE", 2),
        ("E_TOOL_CALL_CONFLICT", 2),
        ("E_CONFIG_SCHEMA_INVALID", 3),
        ("E_CONFIG_REF_NOT_FOUND", 3),
        ("E_AGENT_NOT_FOUND", 3),
        ("E_WAIT_TIMEOUT", 4),
        ("E_BROKER_UNREACHABLE", 5),
        ("E_GOONDAN", 1),
    ],
)
def test_an_error_code_has_its_exit_code(error_code: str, exit_code: int) -> None:
    assert exit_code_of(error_code) == exit_code

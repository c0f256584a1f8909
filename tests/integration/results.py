"""What tests ask of a result."""

from goondan_tasks.contract.messages import ToolCallResult


def error_of(result: ToolCallResult) -> tuple[str, str]:
    """Return the error's code and message; fail the test if there is none."""
    assert result.status == "error"
    assert result.error is not None
    return result.error.code, result.error.message


def code_of(result: ToolCallResult) -> str | None:
    """Return the error's code, or None for a result without one."""
    return None if result.error is None else result.error.code

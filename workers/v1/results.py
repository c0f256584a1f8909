"""Results in the words of the older version (002 §6.1)."""

from goondan_tasks.messages import ToolCallResult
from goondan_tasks.v1_api import ToolError, ToolResult


def v1_result(result: ToolCallResult) -> ToolResult:
    """Return a result as the older version has it."""
    error = result.error
    told = None if error is None else ToolError(error.message, error.name, error.code)
    return ToolResult(result.status, result.output, result.handle, told)

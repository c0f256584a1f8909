"""Calls and results in the words of the older version (002 §5.2, §6.1)."""

from goondan_tasks.messages import ToolCallResult
from goondan_tasks.steps.llm_messages import error_output
from goondan_tasks.v1_api import ToolError, ToolResult


def v1_result(result: ToolCallResult) -> ToolResult:
    """Return a result as the older version has it."""
    error = result.error
    told = None if error is None else ToolError(error.message, error.name, error.code)
    return ToolResult(result.status, result.output, result.handle, told)


def with_error_in_output(result: ToolCallResult) -> ToolCallResult:
    """Return a result whose error stands in its output as well, unless it has one (000 §12.3.1)."""
    if result.status != "error" or result.output is not None:
        return result
    return result.model_copy(update={"output": error_output(result)})

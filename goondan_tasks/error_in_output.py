"""Errors of calls of the older version's tools: they stand in the output as well (000 §12.3.1, 002 §7.1)."""

from goondan_tasks.messages import JsonObject, ToolCallResult
from goondan_tasks.names import is_v1_name


def error_output(result: ToolCallResult) -> JsonObject:
    """Return the error of a result as an output: ``{status, error: {message, name, code}}``."""
    error = result.error
    told = {} if error is None else {"message": error.message, "name": error.name, "code": error.code}
    return {"status": "error", "error": told}


def with_error_in_output(result: ToolCallResult) -> ToolCallResult:
    """Return a result whose error stands in its output, unless it has an output, or no error."""
    if result.status != "error" or result.output is not None:
        return result
    return result.model_copy(update={"output": error_output(result)})


def with_error_in_output_by_name(result: ToolCallResult) -> ToolCallResult:
    """Do so where nobody has the tool, and its name alone says of which version it is: it has a dot."""
    is_dotted = "." in result.tool_name and is_v1_name(result.tool_name)
    return with_error_in_output(result) if is_dotted else result

"""Errors that middlewares have made or reworded: no longer than ``errorMessageLimit`` (000 §12.3.1)."""

from goondan_tasks.failure import fitted_message
from goondan_tasks.messages import ToolCallResult


def limited(result: ToolCallResult, message_limit: int) -> ToolCallResult:
    """Return a result whose error message, if it has one, is no longer than ``message_limit`` characters."""
    error = result.error
    if error is None:
        return result
    message = fitted_message(error.message, message_limit)
    if message == error.message:
        return result
    return result.model_copy(update={"error": error.model_copy(update={"message": message})})

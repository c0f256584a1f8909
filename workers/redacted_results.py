"""Secrets of OAuth in what a tool answers: nobody is handed them (000 §12.5.3 rule 2)."""

from goondan_tasks.messages import ToolCallError, ToolCallResult
from goondan_tasks.redaction import KNOWN_SECRETS


def without_secrets(result: ToolCallResult) -> ToolCallResult:
    """Return a result whose output, handle and error hold no secret; the same if they held none."""
    error = None if result.error is None else result.error.to_wire()
    said = {"output": result.output, "handle": result.handle, "error": error}
    shown = KNOWN_SECRETS.hidden_in_answer(said)
    if shown == said:
        return result
    if error is not None:
        shown["error"] = ToolCallError.from_wire(shown["error"])
    return result.model_copy(update=shown)

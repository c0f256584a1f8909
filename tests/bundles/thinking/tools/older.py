"""A tool of the older version, which is shown what the model has said."""

from typing import Any


def look(ctx: Any, input: dict[str, Any]) -> Any:
    return ctx.step.llm_result.message


handlers = {"older.look": look}

"""What the doors for front ends read of requests in one way."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from goondan_tasks.contract.errors import ToolInputValidationError


class FromPage(BaseModel):
    """What a page sends. Unknown fields are ignored, since pages and newer protocols add theirs."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, extra="ignore", strict=True)


def text_of(content: Any) -> str:
    """Return the text of a message: a text, or parts that are all text.

    Raises:
        ToolInputValidationError: it is something else, or empty.
    """
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ToolInputValidationError(
                "messages: the last one is not only text.",
                suggestion="Store files where the agent can read them, and send their paths.",
            )
        texts.append(text)
    if not any(text.strip() for text in texts):
        raise ToolInputValidationError("messages: the last one is empty.")
    return "\n".join(texts)

"""What the doors for front ends read of requests in one way."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from starlette.requests import Request

from goondan_tasks.contract.errors import ToolInputValidationError


class FromPage(BaseModel):
    """What a page sends. Unknown fields are ignored, since pages and newer protocols add theirs."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, extra="ignore", strict=True)


def path_names(request: Request) -> dict[str, str]:
    """Return the names in the path, decoded."""
    return {name: unquote(text) for name, text in request.path_params.items()}


def no_front_end_tools(tools: Sequence[Any]) -> None:
    """Refuse tools that the page itself would run.

    Raises:
        ToolInputValidationError: there are any.
    """
    if tools:
        raise ToolInputValidationError(
            "tools: an agent has the tools of its bundle, and cannot call those of a page.",
            suggestion="Leave out `tools`. Let a tool of the bundle return a pending result, "
            "and complete its call from the page's server.",
        )


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

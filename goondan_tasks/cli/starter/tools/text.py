"""The Tool "text": each function below @tool is a tool; the model sees text__count."""

from typing import Annotated

from pydantic import Field

from goondan_tasks.tool_api import JsonObject, tool


@tool(idempotent=True)
def count(text: Annotated[str, Field(description="The text.")]) -> JsonObject:
    """Counts the words and characters of a text."""
    return {"words": len(text.split()), "characters": len(text)}

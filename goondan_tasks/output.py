"""What a handler, or an agent, may return."""

from typing import Any

from broker_config import serializer
from goondan_tasks.errors import ToolOutputError


def encoded_output(output: Any, tool_name: str) -> bytes:
    """Write what a handler returned as JSON.

    Raises:
        ToolOutputError: it has no JSON form.
    """
    try:
        return serializer.encode(output)
    except serializer.NotJsonError as error:
        raise ToolOutputError(f"{tool_name} returned a value that is not JSON: {error}.") from error

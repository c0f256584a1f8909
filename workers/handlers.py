"""Handlers, the same way in the worker and in an isolated child: finding one, and what it may return."""

from pathlib import Path
from typing import Any

from broker_config import serializer
from goondan_tasks.entry import EntryError, load_entry
from goondan_tasks.errors import ToolNotFoundError, ToolOutputError, ToolTimeoutError
from goondan_tasks.tool_api import ToolHandler


def find_handler(entry: Path, tool_name: str, export_name: str) -> ToolHandler:
    """Load the entry file and return the handler of one of its exports.

    Raises:
        ToolNotFoundError: the file cannot be loaded, or exports no such handler.
        Exception: whatever the file's own code raises when it is imported.
    """
    try:
        handler = load_entry(entry).get(export_name)
    except EntryError as error:
        raise ToolNotFoundError(f"Tool {tool_name!r} cannot be loaded: {error.message}") from error
    if handler is None:
        raise ToolNotFoundError(f"Tool {tool_name!r} has no handler {export_name!r} in {entry.name}.")
    return handler


def encoded_output(output: Any, tool_name: str) -> bytes:
    """Write what a handler returned as JSON.

    Raises:
        ToolOutputError: it has no JSON form.
    """
    try:
        return serializer.encode(output)
    except serializer.NotJsonError as error:
        raise ToolOutputError(f"{tool_name} returned a value that is not JSON: {error}.") from error


def timed_out(limit: float) -> ToolTimeoutError:
    """Return the error of a handler that took longer than ``limit`` seconds."""
    return ToolTimeoutError(f"The tool did not finish within {limit:g} s.")

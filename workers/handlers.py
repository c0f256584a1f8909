"""Finding handlers, for workers and isolated children alike."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from goondan_tasks.authoring.entry import EntryError, handlers_in, import_entry
from goondan_tasks.authoring.tool_api import ToolHandler
from goondan_tasks.contract.errors import ToolNotFoundError


def _imported(entry: Path) -> Mapping[str, ToolHandler]:
    return handlers_in(import_entry(entry))


def find_handler(
    entry: Path,
    tool_name: str,
    export_name: str,
    *,
    load: Callable[[Path], Mapping[str, ToolHandler]] = _imported,
) -> ToolHandler:
    """Load the entry file and return the handler of one of its exports.

    Raises:
        ToolNotFoundError: the file cannot be loaded, or exports no such handler.
        Exception: whatever ``load`` or the file's own code raises.
    """
    try:
        handler = load(entry).get(export_name)
    except EntryError as error:
        raise ToolNotFoundError(f"Tool {tool_name!r} cannot be loaded: {error.message}") from error
    if handler is None:
        raise ToolNotFoundError(f"Tool {tool_name!r} has no handler {export_name!r} in {entry.name}.")
    return handler


Function = TypeVar("Function", bound=Callable[..., Any])


def awaits_next_alone(middleware: Function) -> Function:
    """Mark an ``async`` middleware that awaits nothing but its ``next()``, and does not block.

    It needs no event loop, and runs on the thread of a plain handler. Of the result of a tool call it reads
    the status alone.
    """
    vars(middleware)["awaits_next_alone"] = True
    return middleware


def is_async_handler(handler: Callable[..., Any]) -> bool:
    """Return whether calling ``handler`` makes a coroutine."""
    called = getattr(handler, "__call__", None)  # noqa: B004 - the handler may be an object
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)

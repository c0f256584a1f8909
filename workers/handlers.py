"""Handlers, the same way in the worker and in an isolated child: finding one, and what it may return."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from goondan_tasks.entry import EntryError, handlers_in, import_entry
from goondan_tasks.errors import (
    GoondanError,
    HandoffTimeoutError,
    ToolNotFoundError,
    ToolTimeoutError,
)
from goondan_tasks.tool_api import ToolHandler


def _imported(entry: Path) -> Mapping[str, ToolHandler]:
    return handlers_in(import_entry(entry))


class TimedOut(Protocol):
    """Makes the error of what took longer than ``limit`` seconds."""

    def __call__(self, limit: float, *, agent: str | None = None) -> GoondanError:
        """Make it; if it was an agent, ``agent`` names it: ``agent@instance``."""


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
        Exception: whatever the file's own code raises when it is imported, and ``load`` besides.
    """
    try:
        handler = load(entry).get(export_name)
    except EntryError as error:
        raise ToolNotFoundError(f"Tool {tool_name!r} cannot be loaded: {error.message}") from error
    if handler is None:
        raise ToolNotFoundError(f"Tool {tool_name!r} has no handler {export_name!r} in {entry.name}.")
    return handler


def is_async_handler(handler: Callable[..., Any]) -> bool:
    """Return whether calling ``handler`` makes a coroutine."""
    called = getattr(handler, "__call__", None)  # noqa: B004 - an object may be called, too
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)


def timed_out(limit: float, *, agent: str | None = None) -> GoondanError:
    """Return the error of a handler, or of an agent, that took longer than ``limit`` seconds."""
    if agent is not None:
        return HandoffTimeoutError(f"{agent} did not finish within {limit:g} s.")
    return ToolTimeoutError(f"The tool did not finish within {limit:g} s.")


def way_timed_out(limit: float, *, agent: str | None = None) -> GoondanError:
    """Return the error of a handler that took longer than ``limit`` seconds, its middlewares included."""
    if agent is not None:
        return HandoffTimeoutError(f"{agent} and its middlewares did not finish within {limit:g} s.")
    return ToolTimeoutError(f"The tool and the middlewares around it did not finish within {limit:g} s.")

"""Finding handlers, and the errors of those that take too long; for workers and isolated children alike."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from goondan_tasks.authoring.entry import EntryError, handlers_in, import_entry
from goondan_tasks.authoring.tool_api import ToolHandler
from goondan_tasks.contract.errors import (
    GoondanError,
    HandoffTimeoutError,
    ToolNotFoundError,
    ToolTimeoutError,
)


def _imported(entry: Path) -> Mapping[str, ToolHandler]:
    return handlers_in(import_entry(entry))


class TimedOut(Protocol):
    """Makes the error of a run that took longer than ``limit`` seconds."""

    def __call__(self, limit: float, *, agent: str | None = None) -> GoondanError:
        """Make the error; if an agent handled an event, ``agent`` is ``agent@instance``."""


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


def is_async_handler(handler: Callable[..., Any]) -> bool:
    """Return whether calling ``handler`` makes a coroutine."""
    called = getattr(handler, "__call__", None)  # noqa: B004 - the handler may be an object
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

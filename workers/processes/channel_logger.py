"""The logger of a call in an isolated child: the worker writes the lines, with the call's fields."""

import sys
import traceback
from collections.abc import Callable
from typing import Any

from broker_config import serializer
from goondan_tasks.messages import JsonObject


class ChannelLogger:
    """A :class:`~goondan_tasks.tool_api.Logger` that hands ``[level, event, fields]`` on."""

    def __init__(self, log: Callable[[list[Any]], None]) -> None:
        self._log = log

    def debug(self, event: str, *args: Any, **fields: Any) -> None:
        """Log for the developer."""
        self._log(["debug", event % args if args else event, _loggable(fields)])

    def info(self, event: str, *args: Any, **fields: Any) -> None:
        """Log what happened."""
        self._log(["info", event % args if args else event, _loggable(fields)])

    def warning(self, event: str, *args: Any, **fields: Any) -> None:
        """Log what may be wrong."""
        self._log(["warning", event % args if args else event, _loggable(fields)])

    def error(self, event: str, *args: Any, **fields: Any) -> None:
        """Log what is wrong."""
        self._log(["error", event % args if args else event, _loggable(fields)])


def _loggable(fields: JsonObject) -> JsonObject:
    """Write the traceback out, which only this process has, and what has no JSON form as its ``repr``."""
    if exc_info := fields.pop("exc_info", None):
        error = exc_info if isinstance(exc_info, BaseException) else sys.exception()
        fields["exception"] = "".join(traceback.format_exception(error)).strip()
    try:
        serializer.encode(fields)
    except serializer.NotJsonError:
        return {name: repr(value) for name, value in fields.items()}
    return fields

"""What a tool's process may tell its worker: the kinds of its messages, and the bounds of their fields.

Code of tools shares these processes with ours (:mod:`workers.processes.isolated_child`,
``machine/node/host.mjs``) and may write messages itself. So nothing in a message is trusted: whatever
is not in the tables here is left out, cut or replaced, and no message raises an exception in the worker.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from broker_config import serializer
from goondan_tasks.authoring.tool_api import Logger, ReportProgress
from goondan_tasks.contract.errors import ToolError, ToolOutputError
from goondan_tasks.contract.failure import (
    DEFAULT_MESSAGE_LIMIT,
    LONGEST_HINT,
    LONGEST_NAME,
    LONGEST_TRACEBACK,
    fitted_message,
    has_page,
)
from goondan_tasks.contract.messages import CallLogFields, JsonObject, ToolCallError
from goondan_tasks.contract.output import Pending

#: bytes of a message, besides those for arguments and outputs: conversations, catalogs, outputs for files
ROOM_BYTES = 64 * 1_048_576
#: the largest JSON of a message, by its kind; those of other kinds have the limit of the connection
MOST_BYTES: Mapping[str, int] = {
    "log": 8_000_000,
    "record": 8_000_000,
    "progress": 100_000,
    "output": 8_000_000,
    "error": 4_000_000,
    "began": 1_000,
    "out-of-memory": 1_000,
    "pong": 1_000,
}
#: kinds of messages that end no call; beyond :data:`MOST_PER_SECOND` they are left out
CHATTER = frozenset({"log", "record", "progress", "output"})
MOST_PER_SECOND = 2_000

#: in characters: a line's text, one of its fields, and a name
LONGEST_LINE = 1_000_000
LONGEST_FIELD = 100_000
LONGEST_LABEL = 200
MOST_FIELDS = 50
#: loggers that tools may have in a worker; lines of further ones have the logger of tools
MOST_LOGGERS = 500

#: the text of an error that is looked at; results have less of it
_LONGEST_TEXT = 100_000
#: the methods of ``ctx.logger``
_LEVELS = frozenset({"debug", "info", "warning", "error"})
_NUMBERS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
#: fields of a line that say which call it belongs to, or that logging itself understands
_RESERVED = frozenset({
    *CallLogFields._fields,
    *("event", "exc_info", "extra", "level", "logger", "positional_args", "stack_info", "stacklevel"),
    *("self", "timestamp", "tool_call_id"),
})  # fmt: skip
_LOGGER_NAME = re.compile(rf"[A-Za-z_][\w.-]{{0,{LONGEST_LABEL - 1}}}", re.ASCII)
_OF_WORKER = re.compile(r"(?:broker_config|celery|goondan\w*|kombu|workers)(?:\.|$)")
_OF_TOOLS = "goondan.tool"
#: the names of tools' loggers in use
_loggers: set[str] = set()


@dataclass(slots=True)
class Pace:
    """Leaves out messages of one call that come too fast; their sender is not slowed down."""

    #: how many lines were left out since :meth:`taken`
    _lines: int = 0
    #: the last progress report, if it was left out
    _progress: bytes | None = field(default=None, repr=False)
    _second: int = 0
    _count: int = 0

    def admits(self, kind: str, data: bytes) -> bool:
        """Return whether a message is to be read."""
        if kind not in CHATTER:
            return True
        second = int(monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        is_admitted = self._count <= MOST_PER_SECOND
        if kind == "progress":
            self._progress = None if is_admitted else data
        elif not is_admitted:
            self._lines += 1
        return is_admitted

    def taken(self) -> tuple[int, bytes | None]:
        """Return how many lines were left out, and the last progress report if it was, once."""
        left_out = self._lines, self._progress
        self._lines, self._progress = 0, None
        return left_out


def log_dropped(logger: Logger, lines: int) -> None:
    """Log how many lines were left out."""
    logger.warning("%d lines came too fast, and were dropped", lines)


def is_too_large(kind: str, data: bytes) -> bool:
    """Return whether a message takes more than its kind allows."""
    return len(data) > MOST_BYTES.get(kind, len(data))


def log_line(logger: Logger, level: Any, event: Any, fields: Any = None) -> None:
    """Write a line that a call's code has logged with its ``ctx.logger``."""
    name = level if isinstance(level, str) and level in _LEVELS else "info"
    getattr(logger, name)(_text(event, LONGEST_LINE), **_fields(fields))


def log_record(name: Any, level: Any, event: Any, fields: Any = None) -> None:
    """Write a line that a call's code has logged with ``logging`` or structlog, under its logger's name."""
    import structlog  # children import this module, and must start quickly

    number = level if type(level) is int else logging.INFO
    standard = max((known for known in _NUMBERS if known <= number), default=logging.DEBUG)
    structlog.get_logger(_logger_name(name)).log(standard, _text(event, LONGEST_LINE), **_fields(fields))


def report_progress(progress: ReportProgress, done: Any, total: Any = None, message: Any = None) -> None:
    """Report a call's progress, unless a value is not valid."""
    try:
        progress(done, total, message)
    except ToolError:
        return


def pending_from(fields: Any) -> Pending:
    """Return the Pending of a message.

    Raises:
        ToolOutputError: the handle or the time is not valid.
    """
    given = fields if isinstance(fields, dict) else {}
    return Pending(given.get("handle", ""), given.get("output"), given.get("ttl_seconds"))


def error_from(error: Any, help_url: str, message_limit: int = DEFAULT_MESSAGE_LIMIT) -> ToolCallError:
    """Return an error that a handler raised as the error of its call; ``help_url`` is the base of pages."""
    given = error if isinstance(error, dict) else {}
    # cut before secrets are searched, which takes time; what may be half a secret is cut once more below
    text = {name: value[:_LONGEST_TEXT] for name, value in given.items() if isinstance(value, str) and value}
    code = text.get("code", ToolError.code)
    suggestion = text.get("suggestion") or (ToolError.suggestion if code == ToolError.code else None)
    page = text.get("helpUrl", "")
    if not page or len(page) > LONGEST_HINT:  # a URL must not be cut
        page = help_url + code if has_page(code) else ""
    told = ToolCallError(
        code=fitted_message(code, LONGEST_NAME),
        name=fitted_message(text.get("name", "Error"), LONGEST_NAME),
        message=fitted_message(text.get("message", ""), message_limit),
        suggestion=None if suggestion is None else fitted_message(suggestion, LONGEST_HINT),
        help_url=fitted_message(page, LONGEST_HINT) or None,
    )
    trace = text.get("traceback") or text.get("stack")
    return told if trace is None else told.with_traceback(fitted_message(trace, LONGEST_TRACEBACK))


def not_json(reason: object) -> ToolOutputError:
    """Return the error of a handler whose value cannot be read."""
    return ToolOutputError(f"What the handler returns is not JSON: {reason}.")


def too_large(kind: str, data: bytes) -> JsonObject:
    """Return the error of a handler whose error is too large."""
    return {
        "message": f"The handler's {kind} takes {len(data)} bytes; at most {MOST_BYTES[kind]} are allowed."
    }


def _logger_name(name: Any) -> str:
    if not isinstance(name, str) or not _LOGGER_NAME.fullmatch(name) or _OF_WORKER.match(name):
        return _OF_TOOLS
    if name not in _loggers:
        if len(_loggers) >= MOST_LOGGERS:  # Python keeps every logger for ever
            return _OF_TOOLS
        _loggers.add(name)
    return name


def _fields(fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        return {}
    chosen = list(fields.items())[:MOST_FIELDS]
    return {_field_name(str(name)): _field(value) for name, value in chosen}


def _field_name(name: str) -> str:
    name = name[:LONGEST_LABEL]
    return f"{name}_" if name in _RESERVED or name.startswith("_") else name


def _field(value: Any) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < 2**64:
        return value
    text = value if isinstance(value, str) else serializer.encode(value, repairs=True).decode()
    if len(text) > LONGEST_FIELD or isinstance(value, str):
        return _text(text, LONGEST_FIELD)
    return value


def _text(value: Any, longest: int) -> str:
    text = serializer.well_formed(value if isinstance(value, str) else str(value))
    return text if len(text) <= longest else f"{text[:longest]}... (truncated)"

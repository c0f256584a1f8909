"""Log events as lines: text for people, or JSON for machines.

The renderers of structlog and the way through the standard library's logging took as long as a short call.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from structlog import dev, processors
from structlog.typing import EventDict

from goondan_tasks.contract.redaction import KNOWN_SECRETS, hide_secrets, is_named_as_secret
from goondan_tasks.contract.wording import are_plain, are_words, on_one_line, printable, shown_field

Form = Literal["console", "dev", "json"]

#: takes the fields of a line, without secrets
KeepLine = Callable[[Mapping[str, Any]], None]

#: under ``goondan dev`` a person reads the lines, which have a prefix with the process
_NOT_IN_DEV = ("correlation_id", "logger", "tool_call_id", "trace_id", "worker")
_DEV_TIME = "%H:%M:%S"

_to_json = json.JSONEncoder(ensure_ascii=False, default=repr).encode

#: how many kinds of lines are remembered
MOST_TEMPLATES = 200

#: the fields that may have several lines
_TRACES = ("stack", "exception")

#: how the first fields of a line for people are written
_HEADS = {
    "timestamp": "%(timestamp)s",
    "level": "[%(level)-9s]",
    "event": "%(event)-30s",
    "logger": "[%(logger)s]",
}

#: the fields that no template has
_SPECIAL = frozenset({"exc_info", "stack"})

_COLORS = {
    "debug": dev.GREEN,
    "info": dev.GREEN,
    "warning": dev.YELLOW,
    "error": dev.RED,
    "critical": dev.RED,
}


class TimeStamp:
    """The time of log lines: local seconds under ``goondan dev``, else ISO 8601 in UTC with microseconds.

    All but the microseconds is made once a second.
    """

    def __init__(self, form: Form, clock: Callable[[], float] = time.time) -> None:
        self._is_dev = form == "dev"
        self._clock = clock
        #: a second since the epoch, and its text
        self._known = (-1, "")

    def __call__(self) -> str:
        """Return the time now."""
        now = self._clock()
        second, text = self._known
        if int(now) != second:
            text = (
                time.strftime(_DEV_TIME, time.localtime(now))
                if self._is_dev
                else time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
            )
            self._known = int(now), text
        return text if self._is_dev else f"{text}.{int(now % 1 * 1e6):06d}Z"

    def add(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        """Add the time to an event (a structlog processor)."""
        event["timestamp"] = self()
        return event


class LineRenderer:
    """Renders an event as its line, without secrets (a structlog processor)."""

    def __init__(self, form: Form, *, is_colored: bool = False, keep: KeepLine | None = None) -> None:
        """``keep`` is called with the fields of each line."""
        self._form = form
        self._is_colored = is_colored
        self._keep = keep
        #: by the names of a line's fields, in order
        self._templates: dict[tuple[str, ...], str] = {}

    def __call__(self, logger: Any, method: str, event: Mapping[str, Any]) -> str:
        """Return the line, without a line break at its end; a traceback follows it on lines of its own."""
        line = self._of_words(event)
        if line is not None:
            if self._keep is not None:
                self._keep(event)
            return line
        fields = dict(event)
        if fields.get("exc_info"):
            fields = dict(processors.format_exc_info(logger, method, fields))
        fields.pop("exc_info", None)
        hide_secrets(logger, method, fields)
        if self._keep is not None:
            self._keep(fields)
        if self._form == "dev":
            _shorten(fields)
        if self._form == "json":
            return _to_json(fields)
        trace = "".join(f"\n{printable(str(fields.pop(name)))}" for name in _TRACES if name in fields)
        return self._text(fields) + trace

    def _of_words(self, event: Mapping[str, Any]) -> str | None:
        """Return the line of an event by a template, as nothing in it needs quotes or hides a secret."""
        names, values = tuple(event), event.values()
        template = self._templates.get(names)
        if template is None:
            template = self._remember(names)
        if not template or not are_plain(values) or "" in values:
            return None
        text, trace = "".join(map(str, values)), str(event.get("exception", ""))
        is_usual = are_words(text.replace(trace, "", 1))
        if not is_usual or (KNOWN_SECRETS.are_known and KNOWN_SECRETS.are_in(text)):
            return None
        return f"{template % event}\n{printable(trace)}" if trace else template % event

    def _remember(self, names: tuple[str, ...]) -> str:
        """Return the template of lines with these fields; it is empty if they need more than that."""
        is_usual = all(
            name.isascii() and name.isidentifier() and not is_named_as_secret(name) for name in names
        )
        template = ""
        if is_usual and self._form == "console" and not self._is_colored and _SPECIAL.isdisjoint(names):
            heads = {name: text for name, text in _HEADS.items() if name in names}
            fields = [f"{name}=%({name})s" for name in sorted({*names} - heads.keys() - {"exception"})]
            template = " ".join([*heads.values(), *fields])
        if len(self._templates) >= MOST_TEMPLATES:
            self._templates.clear()
        self._templates[names] = template
        return template

    def _text(self, fields: EventDict) -> str:
        moment, level = fields.pop("timestamp", ""), fields.pop("level", "")
        event, name = str(fields.pop("event", "")), fields.pop("logger", "")
        is_padded = self._form == "console"
        parts = [
            moment,
            f"[{level:<9}]" if is_padded else f"[{level}]" if level else "",
            f"{event:<30}" if is_padded else event,
            f"[{name}]" if name else "",
            *[f"{key}={shown_field(fields[key])}" for key in sorted(fields)],
        ]
        line = " ".join([part for part in parts if part])
        if not line.isprintable():  # it would control a terminal, or forge another line
            parts = [on_one_line(part) for part in parts]
            line = " ".join([part for part in parts if part])
        return _colored(parts, level) if self._is_colored else line


def _colored(parts: Sequence[str], level: str) -> str:
    """Return a line of parts in colors: its time, level, event, logger, then fields."""
    styles = (dev.DIM, _COLORS.get(level, ""), dev.BRIGHT, dev.BLUE)
    head = [f"{style}{part}{dev.RESET_ALL}" for style, part in zip(styles, parts, strict=False) if part]
    fields = [
        f"{dev.CYAN}{key}{dev.RESET_ALL}={dev.MAGENTA}{value}{dev.RESET_ALL}"
        for key, _, value in (part.partition("=") for part in parts[len(styles) :])
    ]
    return " ".join([*head, *fields])


def _shorten(fields: EventDict) -> None:
    """Leave out what all lines of ``goondan dev`` repeat; shorten ids, since commands accept a prefix."""
    for name in _NOT_IN_DEV:
        fields.pop(name, None)
    if fields.get("level") == "info":
        del fields["level"]
    if fields.get("code", "") is None:
        del fields["code"]
    if call_id := fields.get("call_id"):
        fields["call_id"] = str(call_id)[:8]

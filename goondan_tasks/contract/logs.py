"""Logging to stderr: structured events, as text for people or JSON lines for machines."""

import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import structlog

from broker_config.settings import Settings
from goondan_tasks.contract.log_lines import Form, KeepLine, LineRenderer, TimeStamp
from goondan_tasks.contract.messages import CallLogFields, ToolCallResult
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.contract.wording import are_plain

logger = structlog.get_logger(__name__)

#: the line of a call that has ended as the renderers write it; takes :class:`CallLogFields`, duration, time,
#: status, code
_CALL_LINES = {
    "console": f"{{9}} [info     ] call.finished                  [{__name__}] agent={{0}} attempt={{1}} "
    "call_id={2} code={11} correlation_id={3} duration_ms={8} instance={4} status={10} tool={5} trace_id={6} "
    "worker={7}\n",
    "dev": "{9} call.finished agent={0} attempt={1} call_id={2:.8} {11}duration_ms={8} instance={4} "
    "status={10} tool={5}\n",
    "json": '{{"agent": "{0}", "attempt": {1}, "call_id": "{2}", "correlation_id": "{3}", "instance": "{4}", '
    '"tool": "{5}", "trace_id": "{6}", "worker": "{7}", "code": {11}, "duration_ms": {8}, "status": "{10}", '
    f'"event": "call.finished", "level": "info", "logger": "{__name__}", "timestamp": "{{9}}"}}}}\n',
}
#: how these show nothing, a call without a code, and one with it
_TEXTS: Mapping[str, tuple[str, str, str]] = {
    "console": ("None", "None", "{}"),
    "dev": ("None", "", "code={} "),
    "json": ("null", "null", '"{}"'),
}
#: loggers whose lines repeat ours (Celery logs each received message), or may have keys in URLs (HTTP
#: clients)
_CHATTY = ("celery.worker.strategy", "httpcore2", "httpx2", "mcp", "sse_starlette", "uvicorn")
_CHATTY_IN_DEV = ("celery.apps.worker", "celery.worker.consumer", "flower.command", "kombu.mixins")
#: whether the renderers would write each text of a call unquoted
_are_plain = re.compile(r"[\w.:@-]+(?:/[\w.:@-]+){6}", re.ASCII).fullmatch

_is_code = re.compile(r"[\w.-]+", re.ASCII).fullmatch

#: the fields that lines of the standard library's logging may have
_CALL_FIELDS = (*CallLogFields._fields, "code", "lost_by")

#: a line with all of these needs none of the current run
_ALL_OF_A_CALL = frozenset(CallLogFields._fields)

#: the methods of loggers whose lines may be written at once
_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")}

#: returns the log fields of the current run
RunningFields = Callable[[], Mapping[str, Any]]


def configure_logging(
    settings: Settings, running: RunningFields = dict, keep: KeepLine | None = None
) -> None:
    """Send all logging of this process, ours and that of libraries, to stderr.

    Each line gets the fields of ``running`` that it does not have, unless it is about another call. ``keep``
    is called with the fields of each line, without secrets.
    """

    form = _form(settings)
    moment = TimeStamp(form)
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        moment.add,
        structlog.stdlib.PositionalArgumentsFormatter(),
        partial(_add_running, running),
    ]
    render = _renderer(settings, keep)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:-1], structlog.stdlib.ExtraAdder(_CALL_FIELDS), shared[-1]],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    shortcut = _Shortcut(handler, render, moment, running)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, shortcut],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=_Logger,
        cache_logger_on_first_use=True,
    )
    for chatty in (*_CHATTY, *(_CHATTY_IN_DEV if form == "dev" else ())):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())


def _add_running(
    running: RunningFields, _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    if event.keys() >= _ALL_OF_A_CALL:
        return event
    fields = running()
    is_about_run = event.get("call_id") in (None, fields.get("call_id"))
    return {**fields, **event} if fields and is_about_run else event


@dataclass(frozen=True, slots=True)
class _Shortcut:
    """Writes the lines of structlog to the handler's stream, without making records of the standard library.

    Records are made if other handlers or filters want them, such as those of an extension, and for values
    of other types, since showing these may fail. It is the last processor, which then prepares the record.
    """

    handler: "logging.StreamHandler[TextIO]"
    render: LineRenderer
    moment: TimeStamp
    running: RunningFields

    def __call__(self, logger: logging.Logger, method: str, event: structlog.typing.EventDict) -> Any:
        if self._wrote(logger, method, event):
            raise structlog.DropEvent
        return structlog.stdlib.ProcessorFormatter.wrap_for_formatter(logger, method, event)

    def takes(self, logger: logging.Logger, method: str, event: structlog.typing.EventDict) -> bool:
        """Write a line without the processors before this one; return whether that was possible."""
        event["level"], event["logger"] = method, logger.name
        event["timestamp"] = self.moment()
        return self._wrote(logger, method, _add_running(self.running, logger, method, event))

    def _wrote(self, logger: logging.Logger, method: str, event: structlog.typing.EventDict) -> bool:
        if are_plain(event.values()) and self._is_alone(logger):
            with contextlib.suppress(ValueError):  # an integer too long to be shown; the handler reports it
                self._write(f"{self.render(logger, method, event)}\n")
                return True
        return False

    def _is_alone(self, logger: logging.Logger) -> bool:
        """Return whether no other handler and no filter would see the line."""
        handler, current = self.handler, logger
        while current.parent is not None:
            if current.handlers or current.filters or not current.propagate:
                return False
            current = current.parent
        return current.handlers == [handler] and not (current.filters or handler.filters)

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # an error while logging must not fail calls
            self.handler.stream.write(line)
            self.handler.stream.flush()


class _Logger(structlog.stdlib.BoundLogger):
    """structlog's logger, which gives plain lines to :class:`_Shortcut` at once.

    The chain of processors takes as long as a short call. It is gone through if a program, or
    ``capture_logs``, has put other processors in place.
    """

    def _proxy_to_logger(
        self, method_name: str, event: str | None = None, *event_args: str, **event_kw: Any
    ) -> Any:
        last: object = self._processors[-1]  # type: ignore[index]
        level = _LEVELS.get(method_name)
        if type(last) is _Shortcut and level is not None and event is not None and not event_args:
            if not self._logger.isEnabledFor(level):
                return None
            if last.takes(self._logger, method_name, {**self._context, **event_kw, "event": event}):
                return None
        return super()._proxy_to_logger(method_name, event, *event_args, **event_kw)


class CallLog:
    """Logs the ends of calls.

    The line of a call is written to ``stream``, if there is one, from a template. Structured logging would
    produce the same line, but takes as long as the call itself; it is used for names that need quotes.
    """

    def __init__(
        self, settings: Settings, stream: TextIO | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._stream = stream
        self._time = TimeStamp(_form(settings), clock)
        self._line_of = _CALL_LINES[_form(settings)].format
        self._nothing, self._no_code, self._code = _TEXTS[_form(settings)]
        self._is_wanted = logging.getLogger(__name__).isEnabledFor(logging.INFO)

    def __call__(self, result: ToolCallResult, is_stored: bool) -> None:
        """Log a result; ``is_stored`` says whether it became the call's result."""
        fields, duration_ms = CallLogFields.of_result(result), result.meta.duration_ms
        code = None if result.error is None else result.error.code
        if is_stored:
            self.write([(fields, duration_ms, result.status, code)])
            return
        facts = {"code": code, "duration_ms": duration_ms, "status": result.status}
        logger.info("call.superseded", **fields.known(), **facts)

    def write(self, calls: Iterable[tuple[CallLogFields, float | None, str, str | None]]) -> None:
        """Log calls that have ended, with their durations in ms, status and error code, in one write.

        Those whose handler has not begun have no duration.
        """
        if not self._is_wanted:
            return
        lines, moment = [], self._time()
        for fields, duration_ms, status, code in calls:
            agent, _, call_id, correlation_id, instance, tool, trace_id, worker = fields
            texts = f"{agent}/{call_id}/{correlation_id}/{instance}/{tool}/{trace_id}/{worker}"
            if self._stream is None or not _are_plain(texts) or (code and not _is_code(code)):
                facts = {"code": code, "duration_ms": duration_ms, "status": status}
                logger.info("call.finished", **fields.known(), **facts)
            else:
                shown = self._code.format(code) if code else self._no_code
                duration = self._nothing if duration_ms is None else duration_ms
                lines.append(self._line_of(*fields, duration, moment, status, shown))
        if lines and self._stream is not None:
            with contextlib.suppress(OSError, ValueError):  # an error while logging must not fail calls
                self._stream.write(KNOWN_SECRETS.hidden_in_log("".join(lines)))
                self._stream.flush()


def log_stream() -> TextIO | None:
    """Return the stream that :func:`configure_logging` has set up, unless it is a terminal."""
    handlers = logging.getLogger().handlers
    stream = handlers[0].stream if handlers and isinstance(handlers[0], logging.StreamHandler) else None
    return None if stream is None or stream.isatty() else stream


@contextmanager
def temporary_logging(settings: Settings) -> Iterator[None]:
    """Send structlog's lines to stderr during a ``with`` block, in the form of :func:`configure_logging`.

    A program's own configuration of structlog stays. With structlog's defaults, every traceback would be
    printed with the local variables of all frames.
    """
    if _is_configured_by_program():
        yield
        return
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            TimeStamp("console").add,
            _renderer(settings),
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


def _is_configured_by_program() -> bool:
    if not structlog.is_configured():
        return False
    # capture_logs leaves the defaults configured
    current = structlog.get_config()
    structlog.reset_defaults()
    is_own = current != structlog.get_config()
    if is_own:
        structlog.configure(**current)
    return is_own


def _form(settings: Settings) -> Form:
    return "dev" if settings.dev == "on" and settings.log_format == "console" else settings.log_format


def _renderer(settings: Settings, keep: KeepLine | None = None) -> LineRenderer:
    is_colored = settings.log_format == "console" and sys.stderr.isatty()
    return LineRenderer(_form(settings), is_colored=is_colored, keep=keep)

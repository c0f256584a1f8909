"""The loggers of runs, and which run a log line is kept with (:mod:`goondan_tasks.contract.run_lines`)."""

from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import structlog

from goondan_tasks.contract.run_lines import RunLines
from workers.extensions.events import running
from workers.job import Job, JobState

#: the loggers of our own modules, whose lines are about calls but not of their code
_OURS = ("workers.", "goondan_tasks.", "broker_config.")

#: by call and attempt, those with a logger: a handler may use it where no call is the current one, such as
#: on a thread of its own
_with_logger: WeakValueDictionary[tuple[Any, Any], RunLines] = WeakValueDictionary()


def logger_of(job: Job) -> structlog.stdlib.BoundLogger:
    """Return the logger of a call's context."""
    _with_logger[job.id, job.attempt] = job.lines
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(
        "goondan.tool", **job.log_fields.known(), tool_call_id=job.shown_id
    )
    return logger


def keep_line(event: Mapping[str, Any]) -> None:
    """Keep a line that code of the bundle has logged with the run that it is about, if any."""
    lines = None if str(event.get("logger")).startswith(_OURS) else _lines_of(event)
    if lines is not None:
        lines.add({**event})  # what follows changes the event


def _lines_of(event: Mapping[str, Any]) -> RunLines | None:
    call_id, attempt, job = event.get("call_id"), event.get("attempt"), running.get()
    if job is not None and (job.id, job.attempt) == (call_id, attempt):
        return None if job.state is JobState.ENDED else job.lines
    is_of_run = type(call_id) is str and type(attempt) is int
    return _with_logger.get((call_id, attempt)) if is_of_run else None

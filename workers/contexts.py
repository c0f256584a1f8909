"""The ToolContext of each call: what the handler is told, and what it may use."""

from datetime import UTC, datetime, timedelta

import structlog

from goondan_tasks.bundle import BoundTool
from goondan_tasks.errors import ToolTimeoutError
from goondan_tasks.messages import Message, ToolCall, assistant_message, iso_time
from goondan_tasks.run import Run
from goondan_tasks.tool_api import ReportProgress, ToolContext
from workers.cancellation import Cancellation
from workers.processes import ProcessRunner
from workers.workdir import Workdirs


class ContextFactory:
    """Makes contexts for the calls of one workspace."""

    def __init__(self, workdirs: Workdirs, *, call_timeout_seconds: float) -> None:
        self._workdirs = workdirs
        self._call_timeout_seconds = call_timeout_seconds

    def limit_seconds(self, run: Run, bound: BoundTool) -> float:
        """Return how long the handler may run: the smaller of those given, else the default.

        The caller's own limit counts from the first run of a call that is tried again.

        Raises:
            ToolTimeoutError: nothing is left of it.
        """
        given = [_left_of(run), bound.export.timeout_seconds]
        limit = min((limit for limit in given if limit is not None), default=self._call_timeout_seconds)
        if limit <= 0:
            raise ToolTimeoutError("The call's time limit was over before it could be tried again.")
        return limit

    def make(
        self, run: Run, limit_seconds: float, *, cancellation: Cancellation, progress: ReportProgress
    ) -> ToolContext:
        """Make the context of a run that begins now; the workdir is made on first use.

        Raises:
            ToolError, OSError: there is no way to a workdir.
        """
        call = run.call
        workdir = self._workdirs.open(call.instance_key)
        deadline = datetime.now(UTC) + timedelta(seconds=limit_seconds)
        return ToolContext(
            agent_name=call.agent_name,
            instance_key=call.instance_key,
            turn_id=call.turn_id,
            trace_id=call.trace_id,
            tool_call_id=call.tool_call_id,
            message=call.message or _message_of(run),
            workdir=workdir,
            logger=_logger_of(call),
            run_process=ProcessRunner(workdir, deadline, cancellation),
            progress=progress,
            deadline=deadline,
            _is_cancelled=cancellation.is_set,
        )


def _left_of(run: Run) -> float | None:
    limit = run.call.timeout_seconds
    if limit is None or run.begun_at is None:
        return limit
    return limit - (run.clock() - run.begun_at) / 1000


def _message_of(run: Run) -> Message:
    call = run.call
    return assistant_message(
        call.tool_call_id,
        call.tool_name,
        call.args,
        step_id=call.step_id or call.turn_id,
        now=iso_time(run.queued_at),
    )


def _logger_of(call: ToolCall) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(
        "goondan.tool",
        agent=call.agent_name,
        instance=call.instance_key,
        tool=call.tool_name,
        tool_call_id=call.tool_call_id,
        trace_id=call.trace_id,
    )
    return logger

"""The context that a dynamic tool is called with."""

from pathlib import Path

import structlog

from goondan_tasks.authoring.tool_api import EmitOutput, ToolContext
from goondan_tasks.contract.messages import assistant_message
from goondan_tasks.contract.output import emit_nowhere
from workers.processes.programs import ProcessRunner


class Progress:
    """Remembers what was told of a call's progress."""

    def __init__(self) -> None:
        self.told: list[tuple[float, float | None, str | None]] = []

    def __call__(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Take note."""
        self.told.append((done, total, message))


def context(progress: Progress, emit: EmitOutput = emit_nowhere) -> ToolContext:
    """Return a context whose progress is told to ``progress``."""
    return ToolContext(
        agent_name="clerk",
        instance_key="issue-42",
        turn_id="turn-1",
        trace_id="0" * 32,
        tool_call_id="call_1",
        message=assistant_message("call_1", "t__e", {}, "step-1", "2026-02-01T10:00:00.000Z"),
        workdir=Path(),
        logger=structlog.get_logger(),
        run_process=ProcessRunner(Path()),
        progress=progress,
        emit=emit,
    )

"""Programs that end with whoever asked for them: the ``run_process`` of a ToolContext.

Each program runs below a guard (:mod:`workers.processes.process_guard`), which ends the program's whole
tree. This side reads the output while it comes and keeps only its beginning.
"""

import os
import selectors
import subprocess
import time
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from goondan_tasks.errors import ToolError, ToolTimeoutError
from goondan_tasks.tool_api import ProcessOutcome
from workers.cancellation import Cancellation
from workers.processes.guards import GUARD_SECONDS, REPORT_BYTES, Guard, exit_code, signal_name

__all__ = ["ProcessRunner", "child_environment"]

CHUNK_BYTES = 65_536
#: the most a pipe holds: /proc/sys/fs/pipe-max-size
PIPE_BYTES = 1_048_576
#: selectors refuse to wait for ever, or for longer than fits in 32 bits of milliseconds
LONGEST_WAIT_SECONDS = 3_600.0


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for programs of tools: ``environ`` less every ``GOONDAN_*`` variable."""
    return {name: value for name, value in environ.items() if not name.startswith("GOONDAN_")}


def _own_environment() -> Mapping[str, str]:
    return os.environ  # noqa: TID251 - a program of a tool gets what its worker has


@dataclass(frozen=True, slots=True)
class ProcessRunner:
    """The :class:`~goondan_tasks.tool_api.RunProcess` of one call; it blocks, in any thread."""

    workdir: Path
    #: the moment (UTC) at which every program ends at the latest; ``None``: no limit
    deadline: datetime | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)
    #: the worker's environment; see :func:`child_environment`
    environ: Mapping[str, str] = field(default_factory=_own_environment)

    def __call__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        max_output_bytes: int = 1_000_000,
    ) -> ProcessOutcome:
        """Start a program, wait for it and return how it ended.

        ``max_output_bytes`` limits what is kept of each of the two outputs. Without ``timeout_seconds``,
        or with 0 or less, only the call's deadline limits the run. When the call is cancelled, the program
        is ended. What it left running when it ended is ended too: SIGTERM, a second later SIGKILL.

        Raises:
            OSError: the program cannot be started.
            ToolTimeoutError: the call's deadline has passed.
            ToolError: the call was cancelled; or the guard was killed, and the outcome is unknown.
        """
        started = time.monotonic()
        end = self._end(started, timeout_seconds)
        environment = {**child_environment(self.environ), **(env or {})}
        run = _Run(max_output_bytes)
        pipe = subprocess.PIPE
        with Guard(argv, stdout=pipe, stderr=pipe, cwd=cwd or self.workdir, env=environment) as guard:
            forget = self.cancellation.on_cancel(guard.break_lifeline)
            try:
                run.follow(guard, end)
            finally:
                forget()
        if self.cancellation.error is not None:
            raise self.cancellation.error
        code = exit_code(run.report.text(), argv[0])
        if code is None:
            raise ToolError("The program's guard was killed, or could not end it: its outcome is unknown.")
        if run.timed_out and self._seconds_left() <= 0:
            raise ToolTimeoutError
        return ProcessOutcome(
            stdout=run.stdout.text(),
            stderr=run.stderr.text(),
            exit_code=max(code, -1),
            signal=signal_name(-code) if code < 0 else None,
            timed_out=run.timed_out,
            truncated=run.stdout.is_cut or run.stderr.is_cut,
            duration_ms=round((time.monotonic() - started) * 1000),
        )

    def _end(self, started: float, timeout_seconds: float | None) -> float:
        timeout = timeout_seconds if timeout_seconds and timeout_seconds > 0 else float("inf")
        return started + min(timeout, self._seconds_left())

    def _seconds_left(self) -> float:
        return (self.deadline - datetime.now(UTC)).total_seconds() if self.deadline else float("inf")


@dataclass(slots=True)
class _Beginning:
    """The beginning of a stream; what comes after ``limit`` bytes is dropped."""

    limit: int
    kept: bytearray = field(default_factory=bytearray)
    is_cut: bool = False

    def feed(self, data: bytes) -> None:
        room = self.limit - len(self.kept)
        self.kept += data[:room]
        self.is_cut = self.is_cut or len(data) > room

    def text(self) -> str:
        """Decode; a character that the cut splits is left out, other undecodable bytes become U+FFFD."""
        return getincrementaldecoder("utf-8")("replace").decode(bytes(self.kept), final=not self.is_cut)


class _Run:
    """What is seen of a program while it runs."""

    def __init__(self, max_output_bytes: int) -> None:
        self.stdout = _Beginning(max(0, max_output_bytes))
        self.stderr = _Beginning(max(0, max_output_bytes))
        self.report = _Beginning(REPORT_BYTES)
        self.timed_out = False

    def follow(self, guard: Guard, end: float) -> None:
        """Read until the guard has ended, and have it end the tree at ``end``."""
        with selectors.DefaultSelector() as selector:
            for source, beginning in (
                (guard.process.stdout, self.stdout),
                (guard.process.stderr, self.stderr),
                (guard.report, self.report),
            ):
                selector.register(source, selectors.EVENT_READ, beginning)  # type: ignore[arg-type]
            while guard.report in selector.get_map():
                left = end - time.monotonic()
                if left > 0:
                    _read(selector, min(left, LONGEST_WAIT_SECONDS))
                elif self.timed_out:
                    guard.process.kill()
                    break
                else:
                    self.timed_out = True
                    end = time.monotonic() + GUARD_SECONDS
                    guard.break_lifeline()
            # a process that escaped may hold a pipe open: take what is there, and wait for no end of file
            _read(selector, 0, PIPE_BYTES)


def _read(selector: selectors.BaseSelector, seconds: float, size: int = CHUNK_BYTES) -> None:
    for key, _ in selector.select(seconds):
        data = os.read(key.fd, size)
        if data:
            key.data.feed(data)
        else:
            selector.unregister(key.fileobj)

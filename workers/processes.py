"""Programs that end with whoever asked for them: the ``run_process`` of a ToolContext.

Each program runs below a guard (:mod:`workers.process_guard`), which ends the program's whole tree. This
side reads the output while it comes and keeps only its beginning.
"""

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from goondan_tasks.errors import ToolError, ToolTimeoutError
from goondan_tasks.tool_api import ProcessOutcome
from workers import process_guard
from workers.cancellation import Cancellation

__all__ = ["ProcessRunner", "child_environment"]

#: what the guard may take to end a tree before it is given up itself
GUARD_SECONDS = process_guard.TERM_SECONDS + process_guard.KILL_SECONDS + 2
CHUNK_BYTES = 65_536
REPORT_BYTES = 4_096
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
        environment = {**child_environment(self.environ), **(env or {})}
        run = _Run(max_output_bytes)
        with _guarded(argv, cwd or self.workdir, environment) as (guard, report):
            forget = self.cancellation.on_cancel(lambda: _break_lifeline(guard))
            try:
                run.follow(guard, report, self._end(started, timeout_seconds))
            finally:
                forget()
        if self.cancellation.error is not None:
            raise self.cancellation.error
        exit_code = _exit_code(run.report.text(), argv[0])
        if run.timed_out and self._seconds_left() <= 0:
            raise ToolTimeoutError
        return ProcessOutcome(
            stdout=run.stdout.text(),
            stderr=run.stderr.text(),
            exit_code=max(exit_code, -1),
            signal=_signal_name(-exit_code) if exit_code < 0 else None,
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

    def follow(self, guard: "subprocess.Popen[bytes]", report: int, end: float) -> None:
        """Read until the guard has ended, and have it end the tree at ``end``."""
        with selectors.DefaultSelector() as selector:
            for source, beginning in (
                (guard.stdout, self.stdout),
                (guard.stderr, self.stderr),
                (report, self.report),
            ):
                selector.register(source, selectors.EVENT_READ, beginning)  # type: ignore[arg-type]
            while report in selector.get_map():
                left = end - time.monotonic()
                if left > 0:
                    _read(selector, min(left, LONGEST_WAIT_SECONDS))
                elif self.timed_out:
                    guard.kill()
                    break
                else:
                    self.timed_out = True
                    end = time.monotonic() + GUARD_SECONDS
                    _break_lifeline(guard)
            # a process that escaped may hold a pipe open: take what is there, and wait for no end of file
            _read(selector, 0, PIPE_BYTES)


def _read(selector: selectors.BaseSelector, seconds: float, size: int = CHUNK_BYTES) -> None:
    for key, _ in selector.select(seconds):
        data = os.read(key.fd, size)
        if data:
            key.data.feed(data)
        else:
            selector.unregister(key.fileobj)


def _break_lifeline(guard: "subprocess.Popen[bytes]") -> None:
    if guard.stdin:
        guard.stdin.close()
    guard.send_signal(signal.SIGCONT)  # the program may have stopped its guard


@contextlib.contextmanager
def _guarded(
    argv: Sequence[str], cwd: Path, environment: Mapping[str, str]
) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Start the guard; give it and the reading end of its report. At the end, and on any error, it ends."""
    program = argv[0]
    report, reported = os.pipe()
    try:
        try:
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", process_guard.__file__, str(reported), *argv],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env=environment,
                pass_fds=(reported,),
                start_new_session=True,
            )
        except ValueError as error:  # a NUL or a lone surrogate, or `=` in the name of a variable
            raise OSError(errno.EINVAL, str(error), program) from error
        except OSError as error:
            error.filename = program if error.filename == sys.executable else error.filename
            raise
        finally:
            os.close(reported)
        with guard:
            yield guard, report
    finally:
        os.close(report)


def _exit_code(report: str, program: str) -> int:
    """Read the guard's report: the program's exit status, negative if a signal ended it."""
    facts = {key: int(number) for key, number in map(str.split, report.splitlines())}
    if code := facts.get("error"):
        raise OSError(code, os.strerror(code), program)
    if "exit" in facts:
        return facts["exit"]
    if "pid" in facts:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(facts["pid"], signal.SIGKILL)
    raise ToolError("The program's guard was killed, or could not end it: its outcome is unknown.")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"

"""Programs of tools: each runs below a guard, which ends the program's whole process tree.

:class:`Guard` is the worker's side of a guard process (:mod:`workers.processes.process_guard`);
:class:`ProcessRunner` is the ``run_process`` of a ToolContext.
"""

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from goondan_tasks.authoring.tool_api import ProcessOutcome
from goondan_tasks.contract.errors import ToolError, ToolTimeoutError
from goondan_tasks.machine.process import child_environment
from goondan_tasks.machine.sandbox import Sandbox, encoded_variables
from workers.cancellation import Cancellation
from workers.processes import process_guard

#: how long the guard may take to end a tree before it is killed itself
GUARD_SECONDS = process_guard.TERM_SECONDS + process_guard.KILL_SECONDS + 2
#: how long a process whose channel is closed may take to end, with its whole tree
CRASH_SECONDS = 2.0
REPORT_BYTES = 4_096
NO_INPUT = process_guard.NO_INPUT

_STDERR = 2
_GUARD = (sys.executable, "-I", "-S", process_guard.__file__)


class Guard:
    """The guard of one program, whose whole tree ends with the lifeline or with the worker."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: int = NO_INPUT,
        stdout: int | None,
        stderr: int | None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        """Start ``argv`` below a guard; ``None`` inherits the output, directory or environment.

        ``stdin`` is a descriptor that the program reads from; it also gets the descriptors in ``inherited``.

        Raises:
            OSError: the guard cannot be started. A program that cannot be started shows only in the report.
        """
        self._program = argv[0]
        with contextlib.ExitStack() as undo:
            #: the reading end of the guard's report
            self.report, reported = os.pipe()
            undo.callback(os.close, self.report)
            try:
                self.process = subprocess.Popen(
                    [*_GUARD, str(reported), str(stdin), *argv],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=cwd,
                    env=env,
                    pass_fds=(reported, *inherited, *([] if stdin == NO_INPUT else [stdin])),
                    start_new_session=True,
                )
            except ValueError as error:  # a NUL or a lone surrogate, or `=` in the name of a variable
                raise OSError(errno.EINVAL, str(error), argv[0]) from error
            except OSError as error:
                error.filename = argv[0] if error.filename == sys.executable else error.filename
                raise
            finally:
                os.close(reported)
            undo.pop_all()

    def break_lifeline(self) -> None:
        """Make the guard end the tree: SIGTERM, and SIGKILL a second later."""
        if self.process.stdin:
            self.process.stdin.close()
        self.process.send_signal(signal.SIGCONT)  # the program may have stopped its guard

    def end(self, patience_seconds: float = 0.0) -> int | None:
        """End the tree, wait for its end, and return the program's exit code; see :func:`exit_code`.

        The program first gets ``patience_seconds`` to end by itself.
        """
        with self:
            if not self._ends_within(patience_seconds):
                self.break_lifeline()
            if not self._ends_within(GUARD_SECONDS):
                self.process.kill()
                self.process.wait()
            return exit_code(os.read(self.report, REPORT_BYTES).decode(), self._program)

    def _ends_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the end of the guard, and close its pipes."""
        try:
            self.process.__exit__(kind, error, traceback)
        finally:
            os.close(self.report)


@contextlib.contextmanager
def relayed_stderr() -> Iterator[int]:
    """Yield the writing end of a pipe, from which everything goes on to this process's standard error.

    It is for code in a sandbox: through ``/proc/self/fd`` a program can open its standard error again, and
    read, or empty, the log of the worker that it is.
    """
    reading, writing = os.pipe()
    thread = threading.Thread(target=_relay, args=[reading], name="goondan-stderr", daemon=True)
    thread.start()
    try:
        yield writing
    finally:
        os.close(writing)


def _relay(reading: int) -> None:
    """Copy until no process holds the other end of the pipe."""
    with open(reading, "rb", buffering=0) as source:
        while data := source.read(CHUNK_BYTES):
            while data:
                try:
                    data = data[os.write(_STDERR, data) :]
                except OSError:  # nobody reads the log any more
                    break


def exit_code(report: str, program: str) -> int | None:
    """Return the exit status in a guard's report; it is negative if a signal ended the program.

    ``None`` if the guard was killed, or could not end the program, which is then killed here.

    Raises:
        OSError: the program could not be started.
    """
    facts = {key: int(number) for key, number in map(str.split, report.splitlines())}
    if code := facts.get("error"):
        raise OSError(code, os.strerror(code), program)
    if "exit" not in facts and "pid" in facts:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(facts["pid"], signal.SIGKILL)
    return facts.get("exit")


def describe_end(exit_code: int | None) -> str:
    """Describe how a program ended, given the value of :func:`exit_code`."""
    if exit_code is None:
        return "was killed together with its guard"
    if exit_code < 0:
        return f"was ended by {signal_name(-exit_code)}"
    return f"ended with exit status {exit_code}"


def signal_name(number: int) -> str:
    """Return a signal's name, such as ``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"


CHUNK_BYTES = 65_536
#: the most a pipe holds: /proc/sys/fs/pipe-max-size
PIPE_BYTES = 1_048_576
#: the milliseconds of a selector's timeout must fit into 32 bits
LONGEST_WAIT_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class ProcessRunner:
    """The :class:`~goondan_tasks.authoring.tool_api.RunProcess` of one call; it blocks, in any thread."""

    workdir: Path
    #: when programs end at the latest (UTC); ``None`` for no limit
    deadline: datetime | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)
    #: makes the environment of each program
    environment: Callable[[], Mapping[str, str]] = child_environment
    sandbox: Sandbox | None = None

    def __call__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        max_output_bytes: int = 1_000_000,
    ) -> ProcessOutcome:
        """Run a program to its end and return the outcome.

        ``max_output_bytes`` limits what is kept of stdout and of stderr each. Without ``timeout_seconds``, or
        with 0 or less, only the call's deadline limits the run. A cancel of the call ends the program, too.
        Its descendants end with it: SIGTERM, and SIGKILL a second later.

        Raises:
            ConfigError: a variable that the tool names has no value, or its sandbox does not work here.
            OSError: the program cannot be started.
            ToolTimeoutError: the call's deadline has passed.
            ToolError: the call was cancelled, or the guard was killed and the outcome is unknown.
        """
        started = time.monotonic()
        end = self._end(started, timeout_seconds)
        run = _ProgramRun(max_output_bytes)
        with self._guarded(argv, cwd or self.workdir, env or {}) as guard:
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

    @contextlib.contextmanager
    def _guarded(self, argv: Sequence[str], place: Path, variables: Mapping[str, str]) -> Iterator[Guard]:
        """Start a program, and wait for its end; ``variables`` may come from a model."""
        environment, pipe = self.environment(), subprocess.PIPE
        if self.sandbox is None:
            with Guard(argv, stdout=pipe, stderr=pipe, cwd=place, env={**environment, **variables}) as guard:
                yield guard
            return
        with _file_of(variables, argv[0]) as file:
            inside = self.sandbox.command(argv, place, environment.get("HOME"), variables=file)
            # outside the sandbox, variables such as LD_PRELOAD would run files of the workdir
            with Guard(
                inside, stdout=pipe, stderr=pipe, cwd=place, env=environment, inherited=[file]
            ) as guard:
                yield guard

    def _end(self, started: float, timeout_seconds: float | None) -> float:
        timeout = timeout_seconds if timeout_seconds and timeout_seconds > 0 else float("inf")
        return started + min(timeout, self._seconds_left())

    def _seconds_left(self) -> float:
        return (self.deadline - datetime.now(UTC)).total_seconds() if self.deadline else float("inf")


@contextlib.contextmanager
def _file_of(variables: Mapping[str, str], program: str) -> Iterator[int]:
    """Return a descriptor with variables for a program in a sandbox; they have no name on any disk."""
    try:
        data = encoded_variables(variables)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), program) from error
    with open(os.memfd_create("goondan-variables"), "r+b") as file:  # noqa: PTH123 - it has no path
        file.write(data)
        file.seek(0)
        yield file.fileno()


@dataclass(slots=True)
class _Beginning:
    """The first ``limit`` bytes of a stream; the rest is dropped."""

    limit: int
    kept: bytearray = field(default_factory=bytearray)
    is_cut: bool = False

    def feed(self, data: bytes) -> None:
        room = self.limit - len(self.kept)
        self.kept += data[:room]
        self.is_cut = self.is_cut or len(data) > room

    def text(self) -> str:
        """Decode it without a character that the limit splits; other undecodable bytes become U+FFFD."""
        return getincrementaldecoder("utf-8")("replace").decode(bytes(self.kept), final=not self.is_cut)


class _ProgramRun:
    """The output of a running program and its guard's report."""

    def __init__(self, max_output_bytes: int) -> None:
        self.stdout = _Beginning(max(0, max_output_bytes))
        self.stderr = _Beginning(max(0, max_output_bytes))
        self.report = _Beginning(REPORT_BYTES)
        self.timed_out = False

    def follow(self, guard: Guard, end: float) -> None:
        """Read until the guard has ended; make it end the tree at ``end``."""
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
            # an escaped process may hold a pipe open, so do not wait for the end of file
            _read(selector, 0, PIPE_BYTES)


def _read(selector: selectors.BaseSelector, seconds: float, size: int = CHUNK_BYTES) -> None:
    for key, _ in selector.select(seconds):
        data = os.read(key.fd, size)
        if data:
            key.data.feed(data)
        else:
            selector.unregister(key.fileobj)

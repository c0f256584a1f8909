"""A program below its guard (:mod:`workers.processes.process_guard`), as its worker sees it."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from workers.processes import process_guard

#: what the guard may take to end a tree before it is given up itself
GUARD_SECONDS = process_guard.TERM_SECONDS + process_guard.KILL_SECONDS + 2
REPORT_BYTES = 4_096
NO_INPUT = process_guard.NO_INPUT

_GUARD = (sys.executable, "-I", "-S", process_guard.__file__)


class Guard:
    """The guard of one program: the program's whole tree ends with its lifeline, or with the worker."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: int = NO_INPUT,
        stdout: int | None,
        stderr: int | None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``argv`` below a guard; ``None`` takes the output, directory or environment from here.

        ``stdin`` is a descriptor that the program reads from.

        Raises:
            OSError: the guard cannot be started; that the program cannot, only its report says.
        """
        self._program = argv[0]
        with contextlib.ExitStack() as undo:
            #: the reading end of what the guard reports
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
                    pass_fds=(reported,) if stdin == NO_INPUT else (reported, stdin),
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
        """Have the guard end the tree: SIGTERM, a second later SIGKILL."""
        if self.process.stdin:
            self.process.stdin.close()
        self.process.send_signal(signal.SIGCONT)  # the program may have stopped its guard

    def end(self, patience_seconds: float = 0.0) -> int | None:
        """End the tree, wait for that, and return the program's exit code as :func:`exit_code` does.

        A program that is about to end gets ``patience_seconds`` to do so by itself.
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
        """Wait for the guard's end, which must be near, and close what belongs to it."""
        try:
            self.process.__exit__(kind, error, traceback)
        finally:
            os.close(self.report)


def exit_code(report: str, program: str) -> int | None:
    """Read a guard's report: the program's exit status, negative if a signal ended it.

    ``None`` if the guard was killed, or could not end the program, which is then killed from here.

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
    """Say in words how a program ended, by what :func:`exit_code` returned."""
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

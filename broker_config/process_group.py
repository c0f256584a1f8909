"""Child processes that end with this one, however it ends: return, exception, ``kill -9``.

A guard, a small shell, reads a pipe that only this process holds open. When the pipe closes, the guard kills
the group of all children and then removes their directories. Unlike ``PR_SET_PDEATHSIG``, this works outside
Linux, does not depend on the thread that started the child, and cleans up. A child with a session of its own
(``setsid``) leaves the group.
"""

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

# The kernel sends SIGHUP to a group that loses its parent while one of its processes is stopped.
# The second `rm` is for files that a child made in its last moment.
_GUARD = """\
trap '' HUP INT TERM
read -r _
kill -s KILL -- "-$1"
shift
rm -rf -- "$@" || rm -rf -- "$@"
"""

# keeps the group and its number in use while there are no children
_ANCHOR = """\
trap '' HUP INT TERM
read -r _
"""


class ProcessGroup:
    """A group of child processes, and directories that are removed when the group ends.

    Ctrl-C in a terminal does not reach the children.
    """

    def __init__(self, *disposable: Path) -> None:
        self._anchor = _shell(_ANCHOR, "goondan-anchor")
        self._guard = _shell(_GUARD, "goondan-guard", str(self._anchor.pid), *map(str, disposable))

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | int = subprocess.DEVNULL,
        input: int = subprocess.DEVNULL,
        inherited: Sequence[int] = (),
    ) -> "subprocess.Popen[bytes]":
        """Start a program in the group; ``output`` gets its stdout and stderr.

        ``inherited`` are further descriptors that it gets.

        Raises:
            OSError: the program cannot be started, or the group has ended.
        """
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=env,
            stdin=input,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=self._anchor.pid,
            pass_fds=inherited,
        )

    def close(self) -> None:
        """Kill the rest of the group and remove its directories; a second call does nothing."""
        if self._guard.poll() is None:
            self._guard.communicate(b"\n")
            self._anchor.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shell(script: str, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a shell that reads a pipe, in a group of its own."""
    return subprocess.Popen(
        ["/bin/sh", "-c", script, name, *arguments],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


def end_processes(processes: Sequence["subprocess.Popen[bytes]"], grace_seconds: float) -> None:
    """End processes with SIGTERM, and after ``grace_seconds`` with SIGKILL."""
    deadline = time.monotonic() + grace_seconds
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a stopped process handles SIGTERM only when it continues
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

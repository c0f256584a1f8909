"""Guard one program: ``python -I -S process_guard.py REPORT_FD INPUT_FD PROGRAM [ARGUMENT ...]``.

:mod:`workers.processes.programs` starts this file between a worker and each program. It ends the
program's whole tree when the program or the worker ends:

- As a child subreaper (prctl(2)) it becomes the parent of every orphan of the tree, ``setsid`` grandchildren
  and daemons included. So it has children exactly as long as a process of the tree lives.
- Its standard input is a pipe that the worker never writes to and that no other process holds. End of file
  means that the worker has died, even by ``kill -9``, or that it wants the tree to end.

``INPUT_FD`` becomes the program's standard input; -1 stands for none. ``REPORT_FD`` gets lines: ``pid N``,
then ``error ERRNO`` (the program cannot be started) or ``exit N`` (negative: ended by that signal). The guard
ends after the tree.

Without prctl(2) and ``/proc`` (macOS) it reaches only the program's own process group: a process that leaves
the group with ``setsid`` lives on.
"""
# this is started for each program, and importing contextlib and pathlib would double the time
# ruff: noqa: PTH123, PTH208, SIM105

import ctypes
import os
import select
import signal
import sys
import time

TERM_SECONDS = 1.0
#: then the guard gives up: what is left belongs to another user, or is stuck in the kernel
KILL_SECONDS = 5.0
#: how often it checks that the worker is still the parent, since a fork of it may hold the lifeline open
PARENT_CHECK_SECONDS = 1.0

LIFELINE = 0
NO_INPUT = -1
IS_LINUX = sys.platform.startswith("linux")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main(report: int, given: int, argv: list[str]) -> None:
    """Run a program to its end or the worker's, and leave nothing of its tree behind."""
    worker = os.getppid()
    os.set_inheritable(report, False)
    source = os.open(os.devnull, os.O_RDONLY) if given == NO_INPUT else given
    os.set_inheritable(source, False)
    wakeup = catch_signals()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    tree = Tree(start(argv, report, source), wakeup)
    tell(report, f"pid {tree.program}")
    os.close(source)
    let_go_of_output()
    while tree.collect() and tree.status is None and os.getppid() == worker:
        if LIFELINE in tree.wait(PARENT_CHECK_SECONDS, LIFELINE):
            break
    tree.end()
    if tree.status is not None:
        tell(report, f"exit {os.waitstatus_to_exitcode(tree.status)}")


class Tree:
    """The program and everything it started."""

    def __init__(self, program: int, wakeup: int) -> None:
        self.program = program
        #: the program's wait status, once it has ended
        self.status: int | None = None
        self._wakeup = wakeup

    def collect(self) -> bool:
        """Reap the children that have ended; return whether any are left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.program:
                    self.status = status
        except ChildProcessError:
            return False

    def wait(self, seconds: float, *descriptors: int) -> list[int]:
        """Wait up to ``seconds`` for a child's end or input; return the descriptors that have input."""
        readable = select.select([self._wakeup, *descriptors], [], [], max(0.0, seconds))[0]
        if self._wakeup in readable:
            os.read(self._wakeup, 512)
        return readable

    def end(self) -> None:
        """Ask every process to end, then kill those that are left."""
        kill_at = time.monotonic() + TERM_SECONDS
        if self.collect():
            self.signal(signal.SIGTERM)
        while self.collect() and time.monotonic() < kill_at:
            self.wait(kill_at - time.monotonic())
        give_up_at = time.monotonic() + KILL_SECONDS
        while self.collect() and time.monotonic() < give_up_at:
            self.signal(signal.SIGKILL)
            self.wait(0.01)  # a fork that the last look at /proc missed is killed after the next
        if not IS_LINUX:
            send(signal.SIGKILL, self.program)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the tree, by groups, so that none can escape by forking."""
        for group in groups() if IS_LINUX else {self.program}:
            send(number, group)


def start(argv: list[str], report: int, source: int) -> int:
    """Start the program in a session of its own, with ``source`` as its input; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # sent when the parent's thread ends, of which there is one
        os.dup2(source, LIFELINE)
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    except OSError as error:
        tell(report, f"error {error.errno}")
    finally:
        os._exit(127)


def catch_signals() -> int:
    """Survive signals that a program may send to its parent; return a pipe that any of them writes to."""
    wakeup, written_by_signals = os.pipe()
    os.set_blocking(written_by_signals, False)
    signal.set_wakeup_fd(written_by_signals, warn_on_full_buffer=False)
    # a handler, unlike SIG_IGN, ends with exec: the program starts with the defaults
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCHLD"):
        signal.signal(signal.Signals[name], lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the worker's thread may have blocked some
    return wakeup


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, if the system has it."""
    if IS_LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def let_go_of_output() -> None:
    """Leave the output to the program alone, so that it closes with the program."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def tell(report: int, line: str) -> None:
    """Report a line to the worker, if it is still alive."""
    try:
        os.write(report, f"{line}\n".encode())
    except BrokenPipeError:
        pass


def send(number: signal.Signals, group: int) -> None:
    """Send a signal to a process group, unless it has ended or belongs to another user."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def groups() -> set[int]:
    """Return the process groups below this process, from ``/proc``.

    They contain no other processes, since they were made in the sessions of the tree.
    """
    children: dict[int, list[int]] = {}
    group_of: dict[int, int] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                stat = file.read()
        except OSError:  # it has just ended
            continue
        fields = stat.rpartition(b")")[2].split()  # the name in brackets may contain anything
        children.setdefault(int(fields[1]), []).append(pid)
        group_of[pid] = int(fields[2])
    tree = children.get(os.getpid(), [])
    for pid in tree:
        tree += children.get(pid, [])
    # a child before its setsid is in the guard's group; to killpg, 0 and 1 mean more than one group
    return {group_of[pid] for pid in tree} - {0, 1, os.getpgrp()}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

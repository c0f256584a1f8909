"""Workers and commands forked from a process that has imported everything: a start takes a fifth of the time.

The fork runs the command line it was given, in its own directory, environment, process group and streams, and
is a child of the process that asked for it. Two things differ from a program that was started: its modules
are imported already, and ``/proc`` shows the command line and the environment of the process that forks.
Tests that are about either use the fixture ``fresh_programs``. Outside Linux nothing is forked.
"""

import ctypes
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar
from unittest import mock

from broker_config.process_group import ProcessGroup

_PR_SET_CHILD_SUBREAPER = 36
#: variables that Python or its C library reads as it starts, or while it imports
_READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "TZ")
#: what a worker that is ready has imported
_IMPORTED = (
    "billiard.pool",
    "broker_config.transport",
    "celery.app.log",
    "celery.apps.worker",
    "celery.worker.components",
    "celery.worker.consumer",
    "goondan_tasks.celery",
    "goondan_tasks.cli.program",
    "goondan_tasks.cli.servers",
    "kombu.transport.redis",
    "workers.tasks",
)
#: the bytes of a length, or of a process id
_NUMBER = 8


@contextmanager
def forked_programs(*imported: str) -> Iterator[None]:
    """Fork workers of stacks, and commands, during a ``with`` block; ``imported`` are more modules."""
    with closing(Nursery(*imported)) as nursery, mock.patch.object(Nursery, "current", nursery):
        yield


def start(argv: Sequence[str], *, env: Mapping[str, str], **options: Any) -> "subprocess.Popen[Any]":
    """Do what ``subprocess.Popen`` does, with a fork if the program is one of ours."""
    if Nursery.current is not None and Nursery.current.may_fork(argv, env):
        return _Forked(Nursery.current, argv, env=env, **options)
    return subprocess.Popen(argv, env=env, **options)


def start_in_group(
    group: ProcessGroup,
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: IO[bytes] | int = subprocess.DEVNULL,
) -> "subprocess.Popen[bytes]":
    """Do what ``ProcessGroup.start`` does, with a fork if the program is one of ours."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    variables = os.environ if env is None else env
    return start(argv, env=variables, cwd=cwd, process_group=group._anchor.pid, **streams)


class Nursery:
    """The process that forks; it is started when it is first needed."""

    #: the one that is used now, if any is
    current: ClassVar["Nursery | None"] = None

    def __init__(self, *imported: str) -> None:
        self._imported = imported
        self._environment = dict(os.environ)
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def may_fork(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Return whether this is a command line of ours, for an interpreter that starts as this one did."""
        program = [word for word in argv[:4] if word != "-P"][:3]
        is_ours = program == [sys.executable, "-m", "goondan_tasks"]
        return sys.platform == "linux" and is_ours and _at_start(env) == _at_start(self._environment)

    def fork(self, order: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Return the process id of a new child of this process.

        A child whose parent ends goes to the next subreaper above, here for so long as that takes.
        """
        text = json.dumps(order).encode()
        with self._lock:
            orders = self._orders = self._orders or self._launch()
            _be_subreaper(True)
            try:
                socket.send_fds(orders, [len(text).to_bytes(_NUMBER, "big")], list(streams))
                orders.sendall(text)
                pid = int.from_bytes(orders.recv(_NUMBER), "big")
            finally:
                _be_subreaper(False)
        assert pid, self._last_words()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if it is not a child of ours
        return pid

    def close(self) -> None:
        """End the process that forks; what it has forked stays."""
        if self._orders is not None:
            self._orders.close()
            self._last_words()

    def _last_words(self) -> bytes:
        assert self._process is not None
        self._process.kill()
        return self._process.communicate()[0]

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, *_IMPORTED, *self._imported],
                cwd="/",
                env=self._environment,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,  # no file, as stdin is none: Python asks once, for all forks
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for the tests
            )
        return ours


class _Forked(subprocess.Popen[Any]):
    """A child that ``Popen`` has not started, and that is like any other from there on."""

    _close_pipe_fds: Any

    def __init__(self, nursery: Nursery, argv: Sequence[str], **options: Any) -> None:
        self._nursery = nursery
        self._order = {
            "argv": list(argv),
            "cwd": str(options.get("cwd") or Path.cwd()),
            "env": dict(options["env"]),
            "group": options.get("process_group"),
        }
        super().__init__(argv, **options)

    def _execute_child(self, *given: Any) -> None:
        pipes = given[10:16]  # the pairs of stdin, stdout and stderr
        theirs = (pipes[0], pipes[3], pipes[5])
        self.pid = self._nursery.fork(
            self._order, [number if one == -1 else one for number, one in enumerate(theirs)]
        )
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}


def _be_subreaper(wanted: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, wanted, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _serve() -> None:
    """Fork a program for each order on stdin, and answer with its process id."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    orders = socket.socket(fileno=0)
    while True:
        length, streams, *_ = socket.recv_fds(orders, _NUMBER, 3)
        if not length:
            return
        order = json.loads(orders.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL))
        told, tell = os.pipe()
        parent = os.fork()
        if parent == 0:
            if os.fork() == 0:
                os.close(told)
                _become(order, streams, tell)
            os._exit(0)
        for number in (tell, *streams):
            os.close(number)
        os.waitpid(parent, 0)
        with os.fdopen(told, "rb") as answer:
            orders.sendall(answer.read() or bytes(_NUMBER))


def _become(order: Mapping[str, Any], streams: Sequence[int], tell: int) -> None:
    """Run a command line as ``python -m goondan_tasks`` does."""
    if order["group"] is not None:
        os.setpgid(0, order["group"])
    os.chdir(order["cwd"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.write(tell, os.getpid().to_bytes(_NUMBER, "big"))
    os.close(tell)
    os.environ.clear()
    os.environ.update(order["env"])
    argv = order["argv"]
    sys.orig_argv[:] = argv
    sys.argv[1:] = argv[argv.index("goondan_tasks") + 1 :]
    if "-P" not in argv[:2]:
        sys.path += [order["cwd"]] * 2  # as goondan_start.put_current_directory_last leaves it
    importlib.import_module("goondan_start").main()


if __name__ == "__main__":
    _serve()

"""Our programs forked from a process that has imported everything: a start takes a fifth of the time.

Whoever starts ``python -m goondan_tasks`` in the tests gets a fork. It runs the command line that was given,
in its own directory, environment, process group and streams, and is a child of the process that asked for it.
What starts workers itself (``goondan dev``, the orchestrator, pytest) gets a process to fork from too.
The child processes that check entry files are forked from another one, which has imported what they import;
so are those of connectors in Python.
What a few commands import besides, that process imports before the first of them.

Three things differ from a program that was started: its modules are imported already, ``/proc`` shows the
command line and the environment of the process that forks (:mod:`tests.processes` knows), and an orderly end
leaves its memory to the system. Tests that are about one of them use the fixture ``fresh_programs``. On a
terminal, and outside Linux, nothing is forked.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from pydantic import BaseModel

_PR_SET_CHILD_SUBREAPER = 36
#: variables that Python or its C library reads as it starts, or while it imports
_READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "TZ")
#: the one of them that a fork heeds
_UNBUFFERED = "PYTHONUNBUFFERED"
#: the module of the child process that imports entry files for a check
_ENTRY = "goondan_tasks.authoring.entry"
#: the module of a connector's process, and what it has imported when the connector begins
_CONNECTOR = "goondan_tasks.connectors.child"
_OF_CONNECTORS = ("goondan_tasks.connectors.child_requests", "goondan_tasks.connectors.triggers")
#: what may be run as ``python -m``, but for that
_OURS = {
    "celery",
    "goondan_tasks",
    "goondan_tasks.programs.flower_program",
    "pytest",
    "tests.integration.oauth.asker",
}
#: those that start some of ours themselves: modules, or commands of ``goondan``
_STARTERS = {"pytest", "demo", "dev", "orchestrator"}
#: what a worker that is ready has imported, one whose agents think too
_WORKER = (
    "billiard.pool",
    "celery.__main__",
    "broker_config.broker_connection",
    "broker_config.transport",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.backends.base",
    "celery.events.receiver",
    "celery.apps.worker",
    "celery.bin.worker",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.strategy",
    "encodings.idna",
    "goondan_tasks.celery",
    "goondan_tasks.cli.program",
    "goondan_tasks.cli.servers",
    "kombu.transport.redis",
    "pydantic_ai.direct",
    "pydantic_ai.models.openai",
    "workers.lifecycle",
    "workers.mcp",
    "workers.tasks",
)
#: what commands import besides, the process that forks them before the first one
_COMMANDS = {
    "dev": (
        "dotenv.main",
        "goondan_tasks.cli.dev",
        "goondan_tasks.cli.folder",
        "goondan_tasks.migration",
        "packaging.requirements",
        "watchfiles",
    ),
    "callbacks": (
        "goondan_tasks.cli.doors",
        "goondan_web.doors.callbacks",
        "goondan_web.program",
        "goondan_web.server",
    ),
    "mcp-server": (
        "goondan_tasks.cli.doors",
        "goondan_web.doors.mcp",
        "goondan_web.program",
        "goondan_web.server",
    ),
}
#: how the command lines begin that may be forked: an interpreter's options, up to the module
_BEGINNINGS = (["-m"], ["-P", "-m"], ["-P", "-X", "utf8", "-m"])
#: signals that may be ignored from the start, and what Python makes of them otherwise
_SIGNALS: dict[int, Any] = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
#: the bytes of a length, or of a process id
_NUMBER = 8
#: the most descriptors that are sent, and a number above those that programs are given
_DESCRIPTORS, _ABOVE = 8, 200
#: the descriptor of a file in memory that holds a fork's environment, in the form that ``/proc`` has
ENVIRONMENT = 199


@contextmanager
def forked_programs() -> Iterator[None]:
    """Fork our programs during a ``with`` block."""
    with (
        closing(Nursery(_OURS, _WORKER, os.environ)) as programs,
        closing(Nursery({_ENTRY}, [_ENTRY])) as entries,
        closing(Nursery({_CONNECTOR}, [_ENTRY, *_OF_CONNECTORS])) as connectors,
        mock.patch.object(Nursery, "current", (programs, entries, connectors)),
        mock.patch.object(subprocess.Popen, "_execute_child", _execute_child),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Order:
    """A program to fork: its first three descriptors are its streams, the others keep their numbers."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    descriptors: list[int]
    group: int
    is_session: bool
    #: the signals that the program is to ignore, as whoever starts it does
    ignored: list[int]

    @property
    def module(self) -> str:
        """What ``python -m`` runs; empty if the command line is another."""
        begin = next((words for words in _BEGINNINGS if self.argv[1 : len(words) + 1] == words), None)
        return self.argv[len(begin) + 1] if begin and self.argv[0] == sys.executable else ""

    @property
    def words(self) -> list[str]:
        """The arguments of the module."""
        return self.argv[self.argv.index(self.module) + 1 :]


class Nursery:
    """A process that forks ``modules`` and has imported others; it is started when it is first needed.

    Without an ``environment`` it has that of the first program that it may fork.
    """

    #: those that are used now
    current: ClassVar[tuple["Nursery", ...]] = ()

    def __init__(
        self, modules: Iterable[str], imported: Iterable[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._modules = frozenset(modules)
        self._imported = imported
        self._environment = dict(environment or {})
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def within(cls, environment: Mapping[str, str]) -> "Nursery":
        """Fork a nursery of its own from a program that has not begun."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            os.setpgid(0, 0)  # what is told the program's group is not for it
            with Path(os.devnull).open("r+b") as nowhere:
                for number, source in enumerate((theirs.fileno(), nowhere.fileno(), nowhere.fileno())):
                    os.dup2(source, number)
            theirs.close()
            _serve(environment)
            os._exit(0)
        theirs.close()
        nursery = cls(_OURS, (), environment)
        nursery._orders = ours
        atexit.register(os.waitpid, pid, 0)  # the program leaves nothing, as it does where nothing is forked
        atexit.register(ours.close)
        return nursery

    def may_fork(self, order: Order) -> bool:
        """Return whether this is a command line of ours, for an interpreter that starts as this one did."""
        if sys.platform != "linux" or order.module not in self._modules:
            return False
        self._environment = self._environment or order.env
        return _at_start(order.env) == _at_start(self._environment) and not any(
            map(os.isatty, order.descriptors)
        )

    def fork(self, order: Order) -> int:
        """Return the process id of a new child of this process.

        A child whose parent ends goes to the next subreaper above, here for so long as that takes.
        """
        fields = {name: getattr(order, name) for name in Order.__slots__}
        text = json.dumps(fields).encode()
        with self._lock:
            orders = self._orders = self._orders or self._launch()
            _be_subreaper(True)
            try:
                socket.send_fds(orders, [len(text).to_bytes(_NUMBER, "big")], order.descriptors)
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
        if self._process is None:
            return b""
        self._process.kill()
        return self._process.communicate()[0]

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, *self._imported],
                cwd="/",
                env=self._environment,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,  # no file, as stdin is none: Python asks once, for all forks
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for the tests
            )
        return ours


_start_afresh: Any = getattr(subprocess.Popen, "_execute_child")  # noqa: B009 - typeshed does not know it


def _execute_child(popen: Any, args: Any, *given: Any) -> None:
    """Do what ``Popen._execute_child`` does, in Python 3.11 to 3.14; fork if the program is one of ours."""
    executable, before, _, passed, cwd, env, _, _, shell, *pipes = given[:15]
    _, gid, gids, uid, umask, is_session, group = given[15:]
    is_plain = (executable, before, shell, gid, gids, uid, umask) == (None, None, False, None, None, None, -1)
    if Nursery.current and is_plain and isinstance(args, list | tuple):
        streams = [number if pipe == -1 else pipe for number, pipe in enumerate(pipes[n] for n in (0, 3, 5))]
        order = Order(
            list(map(os.fsdecode, args)),
            os.fsdecode(cwd or Path.cwd()),
            dict(os.environ if env is None else env),
            [*streams, *passed],
            group,
            is_session,
            [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN],
        )
        nursery = next((one for one in Nursery.current if one.may_fork(order)), None)
        if nursery is not None:
            popen.pid = nursery.fork(order)
            popen._child_created = True
            popen._close_pipe_fds(*pipes)
            return
    _start_afresh(popen, args, *given)


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in env.items() if name.startswith(_READ_AT_START) and name != _UNBUFFERED
    }


def _be_subreaper(wanted: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, wanted, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _serve(environment: Mapping[str, str]) -> None:
    """Fork a program for each order on stdin; ``environment`` is what this process was started with."""
    orders = socket.socket(fileno=0)
    while True:
        length, descriptors, *_ = socket.recv_fds(orders, _NUMBER, _DESCRIPTORS)
        if not length:
            return
        order = Order(**json.loads(orders.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)))
        if order.module == "goondan_tasks":
            _import(_COMMANDS.get("".join(order.words[:1]), ()))
        told, tell = os.pipe()
        parent = os.fork()
        if parent == 0:
            between = os.getpid()
            if os.fork() == 0:
                while os.getppid() == between:  # a program that watches its parent is to see the last one
                    os.sched_yield()
                os.close(told)
                try:
                    _become(order, descriptors, tell, environment)
                except SystemExit as end:
                    if not isinstance(end.code, str):
                        _end(end.code or 0)
                    raise
            os._exit(0)
        for number in (tell, *descriptors):
            os.close(number)
        os.waitpid(parent, 0)
        with os.fdopen(told, "rb") as answer:
            orders.sendall(answer.read() or bytes(_NUMBER))


def _become(order: Order, descriptors: Sequence[int], tell: int, environment: Mapping[str, str]) -> None:
    """Run a command line as ``python -m`` does."""
    if order.is_session:
        os.setsid()
    elif order.group >= 0:
        os.setpgid(0, order.group)
    os.chdir(order.cwd)
    os.write(tell, os.getpid().to_bytes(_NUMBER, "big"))
    os.close(tell)
    _take(descriptors, [0, 1, 2, *order.descriptors[3:]])
    for number, handler in _SIGNALS.items():
        signal.signal(number, signal.SIG_IGN if number in order.ignored else handler)
    os.environ.clear()
    os.environ.update(order.env)
    is_unbuffered = bool(order.env.get(_UNBUFFERED))
    sys.stdout = io.TextIOWrapper(
        open(1, "wb", 0 if is_unbuffered else -1, closefd=False),  # noqa: SIM115 - a number, kept
        encoding=sys.__stdout__.encoding if sys.__stdout__ else "utf-8",
        errors=sys.__stdout__.errors if sys.__stdout__ else None,
        write_through=is_unbuffered,
    )
    with open(os.memfd_create("environment"), "wb") as file:  # noqa: PTH123 - a number
        file.write(b"".join(os.fsencode(f"{name}={value}\0") for name, value in order.env.items()))
        file.flush()
        os.dup2(file.fileno(), ENVIRONMENT, inheritable=False)
    if _STARTERS & {order.module, *order.words[:1]}:
        Nursery.current = (Nursery.within(environment),)
        setattr(subprocess.Popen, "_execute_child", _execute_child)  # noqa: B010 - as above
    sys.orig_argv[:] = order.argv
    sys.argv[1:] = order.words
    is_safe = "-P" in order.argv[:2]
    if order.module == "goondan_tasks":
        sys.path += (
            [] if is_safe else [order.cwd] * 2
        )  # as goondan_start.put_current_directory_last leaves it
        importlib.import_module("goondan_start").main()
    elif order.module == _ENTRY:
        importlib.import_module(_ENTRY).main(order.words)
    else:
        sys.path[:0] = [] if is_safe else [order.cwd]
        if order.module == "celery":
            importlib.import_module("celery.__main__").main()
        else:
            runpy.run_module(order.module, run_name="__main__", alter_sys=True)
    sys.exit()


def _end(code: int) -> None:
    """End in the order of an interpreter, but take no module apart: that takes most of a command's time."""
    getattr(threading, "_shutdown")()  # noqa: B009 - typeshed knows neither
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    with suppress(OSError, ValueError):  # the interpreter has a code for closed streams
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _take(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give each descriptor its number, where it is inherited as it was by the program that asked."""
    aside = [fcntl.fcntl(one, fcntl.F_DUPFD, _ABOVE) for one in descriptors]
    for one in descriptors:
        os.close(one)
    for one, number in zip(aside, numbers, strict=True):
        os.dup2(one, number)
        os.close(one)


def _complete_models(parent: type[BaseModel]) -> None:
    """Build what models put off until they are first used."""
    for model in parent.__subclasses__():
        model.model_rebuild(raise_errors=False)
        _complete_models(model)


def _import(modules: Iterable[str]) -> None:
    """Import what is not imported yet; no fork looks for garbage among what they share."""
    if new := [name for name in modules if name not in sys.modules]:
        gc.disable()
        for name in new:
            importlib.import_module(name)
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    _import(sys.argv[1:])
    _complete_models(BaseModel)
    gc.freeze()
    _serve(dict(os.environ))

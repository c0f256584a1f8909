"""The worker's side of the process that keeps its leases while the interpreter is held.

:mod:`workers.processes.lease_guard` is the process itself.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import structlog
from redis import Redis
from redis.connection import SSLConnection
from redis.sentinel import SentinelConnectionPool

from broker_config.scripts import ScriptCall
from broker_config.vital_thread import vital_thread
from goondan_tasks.machine.process import child_environment
from workers.processes import lease_guard

logger = structlog.get_logger(__name__)

#: how long a new guard may take until it is ready
START_SECONDS = 20.0
_GUARD = (sys.executable, "-I", "-S", lease_guard.__file__)
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class GuardTerms:
    """What a guard does, and when; times are in seconds."""

    #: makes the script call for a time that the worker was held; the guard replaces that, the last argument
    keep_leases: Callable[[float], ScriptCall[Any]]
    lease_seconds: float
    timeout_seconds: float
    #: from the request to stop until a held worker is killed
    end_seconds: float


class LeaseGuardProcess:
    """Starts the guard of this process, shows it that the interpreter is free, and replaces it if it dies."""

    def __init__(self, redis: Redis, terms: GuardTerms) -> None:
        self._redis = redis
        self._terms = terms
        self._interval = terms.lease_seconds / 6
        self._guard: subprocess.Popen[bytes] | None = None
        self._pause = threading.Event()
        self._received, self._sent = os.pipe()
        os.set_blocking(self._sent, False)

    def start(self) -> None:
        """Start the guard and wait until it is ready; then start the thread that shows the interpreter free.

        Raises:
            OSError: the guard cannot be started.
        """
        if sys.platform != "linux":  # whether a process is stopped is known from /proc
            return
        self._guard = self._started()
        vital_thread("goondan-beats", self._beat, is_over=self._pause.is_set).start()

    def report_signals(self) -> None:
        """Let Python report signals to the guard at once; on the main thread.

        A forked child reports none: its signals are not the worker's.
        """
        if self._guard is not None:
            signal.set_wakeup_fd(self._sent, warn_on_full_buffer=False)

    def stop(self) -> None:
        """End the guard."""
        self._pause.set()
        if self._guard is not None:
            _end(self._guard)

    def _beat(self) -> None:
        """Show the guard every sixth of a lease that this process can do its work."""
        while True:
            begun = monotonic()
            self._show()
            if self._pause.wait(self._interval):
                return
            held = monotonic() - begun - self._interval
            if held > self._interval:
                logger.warning("worker.was_held", seconds=round(held, 1), what_to_do=_ADVICE)
            self._look_after_guard()

    def _show(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the guard has not read the beats before
            os.write(self._sent, lease_guard.BEAT)

    def _look_after_guard(self) -> None:
        guard = self._guard
        if guard is not None and guard.poll() is None:
            for line in _said_by(guard):
                logger.warning("leases.not_kept", reason=line)
            return
        logger.error("leases.guard_died", status=None if guard is None else guard.returncode)
        if guard is not None:
            _end(guard)
        try:
            self._guard = self._started()
        except OSError as error:  # tried again with the next beat
            self._guard = None
            logger.error("leases.guard_not_started", reason=str(error))

    def _started(self) -> "subprocess.Popen[bytes]":
        guard = subprocess.Popen(
            _GUARD,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=child_environment(),
            pass_fds=(self._received,),
            start_new_session=True,
        )
        assert guard.stdin is not None  # noqa: S101 - a pipe
        try:
            self._show()
            guard.stdin.write(json.dumps(self._orders()).encode() + b"\n")
            guard.stdin.close()
            _wait_until_ready(guard)
        except OSError:
            _end(guard)
            raise
        return guard

    def _orders(self) -> dict[str, Any]:
        terms = self._terms
        *command, _ = terms.keep_leases(0.0).full_command
        return {
            "worker": os.getpid(),
            "beats": self._received,
            "redis": _address(self._redis),
            "command": command,
            "lateSeconds": 1.5 * self._interval,
            "renewSeconds": terms.lease_seconds / 3,
            "timeoutSeconds": terms.timeout_seconds,
            "endSeconds": terms.end_seconds,
        }


_ADVICE = (
    "A handler held the Python interpreter, or the process was stopped. Meanwhile the other calls of this "
    "worker stood still. Give such a tool `isolation: process`."
)


def _address(redis: Redis) -> dict[str, Any]:
    """Return what a client knows about the way to its Redis, as JSON can have it."""
    pool = redis.connection_pool
    wanted = {"host", "port", "path", "db", "username", "password"}
    known = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if (name in wanted or name.startswith("ssl_")) and isinstance(value, str | int | float)
    }
    address = {**known, "tls": issubclass(pool.connection_class, SSLConnection)}
    if not isinstance(pool, SentinelConnectionPool):
        return address
    sentinels = [_address(sentinel) for sentinel in pool.sentinel_manager.sentinels]
    return {**address, "service": pool.service_name, "sentinels": sentinels}


def _end(guard: "subprocess.Popen[bytes]") -> None:
    guard.kill()
    guard.wait()
    for pipe in (guard.stdin, guard.stdout):
        if pipe is not None:
            pipe.close()


def _wait_until_ready(guard: "subprocess.Popen[bytes]") -> None:
    assert guard.stdout is not None  # noqa: S101 - a pipe
    end, said = monotonic() + START_SECONDS, b""
    while lease_guard.READY not in said.decode(errors="replace").splitlines():
        ready, _, _ = select.select([guard.stdout], [], [], max(0.0, end - monotonic()))
        more = os.read(guard.stdout.fileno(), _READ_BYTES) if ready else b""
        if not more:
            raise OSError(
                f"the process that keeps the leases has not started: {said.decode(errors='replace')}"
            )
        said += more
    for line in said.decode(errors="replace").splitlines():
        if line != lease_guard.READY:
            logger.warning("leases.not_kept", reason=line)
    os.set_blocking(guard.stdout.fileno(), False)


def _said_by(guard: "subprocess.Popen[bytes]") -> list[str]:
    assert guard.stdout is not None  # noqa: S101 - a pipe
    try:
        return os.read(guard.stdout.fileno(), _READ_BYTES).decode(errors="replace").splitlines()
    except BlockingIOError:
        return []

"""Keep a worker's leases while its interpreter is held: ``python -I -S lease_guard.py``.

A handler that does not release the interpreter, such as a long regular expression, stops all threads of the
worker, those that renew leases and handle signals included. This process needs nothing of them. The worker
sends it a byte every few moments; if none comes although the worker is running, its leases are renewed from
here. A stopped worker (SIGSTOP) sends no bytes either, and loses its leases.

Python's own signal handler, which needs no interpreter, also writes the number of each signal into the pipe
(``signal.set_wakeup_fd``). A worker that was asked to stop and is held beyond its grace period is killed.

It imports little, since every worker has one; :mod:`workers.processes.lease_guard_process` starts it. Its
standard input holds one line of JSON, the orders. Its standard output gets ``READY``, then a line for each
failure. It ends with the worker.
"""
# importing pathlib and redis would take four times the memory
# ruff: noqa: PTH123

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from time import monotonic
from typing import Any

#: what the worker sends while its threads run; all other bytes are the numbers of signals
BEAT = b"\0"
READY = "ready"

#: the pause before another attempt, and between two looks at a process that is stopped
AGAIN_SECONDS = 1.0
#: how long a process that was asked twice to stop may be held
ASKED_TWICE_SECONDS = 2.0

_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
#: the states of proc(5) in which a process is running, or waits for something
_RUNNING = frozenset("RSDI")
_STATE, _STARTED_AT = 0, 19


Address = dict[str, Any]


class RedisCommandError(Exception):
    """Redis has refused a command, or cannot be reached."""


class Connection:
    """A connection to Redis, for commands whose answers are single lines."""

    def __init__(self, address: Address, timeout: float) -> None:
        with _faults_of_redis():
            self._socket = _connected(address, timeout)
        self._answers = self._socket.makefile("rb")
        try:
            if address.get("password"):
                self.run("AUTH", *filter(None, (address.get("username"), address["password"])))
            if address.get("db"):
                self.run("SELECT", address["db"])
        except RedisCommandError:
            self.close()
            raise

    def run(self, *words: object) -> str:
        """Run a command and return its answer as text; raise RedisCommandError if it fails."""
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        command = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        with _faults_of_redis():
            self._socket.sendall(command)
            answer = self._answers.readline().decode(errors="replace").rstrip()
        if not answer:
            raise RedisCommandError("it has closed the connection")
        if answer.startswith("-"):
            raise RedisCommandError(answer[1:])
        return answer[1:]

    def run_for_list(self, *words: object) -> list[str]:
        """Run a command and return its answer, a list of texts in single lines, or none at all."""
        count = int(self.run(*words))
        with _faults_of_redis():
            lines = [self._answers.readline().decode(errors="replace").rstrip() for _ in range(2 * count)]
        return lines[1::2]

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()


@contextlib.contextmanager
def _faults_of_redis() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise RedisCommandError(str(error)) from error


def _at_master(address: Address, timeout: float) -> Address:
    """Return the address with the place of the master that the Sentinels name, if there are any."""
    reasons = ["there is no Sentinel"]
    for place in address.get("sentinels", ()):
        try:
            sentinel = Connection(place, timeout)
            try:
                found = sentinel.run_for_list("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address["service"])
            finally:
                sentinel.close()
        except RedisCommandError as error:
            reasons.append(f"the Sentinel at {place['host']}:{place['port']}: {error}")
            continue
        if found:
            return {**address, "host": found[0], "port": int(found[1])}
        reasons.append(f"the Sentinel at {place['host']}:{place['port']} knows no such service")
    raise RedisCommandError("; ".join(reasons[1:] or reasons))


def _connected(address: Address, timeout: float) -> socket.socket:
    if "service" in address:
        address = _at_master(address, timeout)
    if "path" not in address:
        connection = socket.create_connection((address["host"], address["port"]), timeout)
        return _encrypted(connection, address) if address.get("tls") else connection
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        connection.connect(address["path"])
    except OSError:
        connection.close()
        raise
    return connection


def _encrypted(connection: socket.socket, address: Address) -> socket.socket:
    """Set TLS up as redis-py does (redis/connection.py, ``SSLConnection``)."""
    import ssl

    context = ssl.create_default_context()
    wanted = address.get("ssl_cert_reqs", "required")
    context.check_hostname = bool(address.get("ssl_check_hostname", True)) and wanted != "none"
    modes = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    context.verify_mode = modes[wanted]
    if address.get("ssl_certfile"):
        context.load_cert_chain(
            address["ssl_certfile"], address.get("ssl_keyfile"), address.get("ssl_password")
        )
    authorities = [address.get(name) for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")]
    if any(authorities):
        context.load_verify_locations(*authorities)
    if address.get("ssl_min_version"):
        context.minimum_version = ssl.TLSVersion(address["ssl_min_version"])
    if address.get("ssl_ciphers"):
        context.set_ciphers(address["ssl_ciphers"])
    return context.wrap_socket(connection, server_hostname=address["host"])


class LeaseGuard:
    """Watches one worker. Times are in seconds; the orders are described where they are given."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        self._worker: int = orders["worker"]
        self._beats: int = orders["beats"]
        self._late_seconds: float = orders["lateSeconds"]
        self._beaten_at = monotonic()
        self._started_at = _stat_of(self._worker)[_STARTED_AT]
        #: when the leases are renewed next, if no beat comes
        self._due = 0.0
        #: when the worker has to have ended
        self._ends_at: float | None = None
        self._pidfd = _pidfd_of(self._worker)

    def check(self) -> None:
        """Connect to Redis once; raise RedisCommandError if that fails."""
        self._run("PING")

    def serve(self) -> None:
        """Watch until the worker has ended."""
        poller = select.poll()
        poller.register(self._beats, select.POLLIN)
        if self._pidfd is not None:
            poller.register(self._pidfd, select.POLLIN)
        while os.getppid() == self._worker:
            ready = {number for number, _ in poller.poll(self._pause_seconds() * 1000)}
            if self._pidfd in ready:
                return
            if self._beats in ready:
                self._note(os.read(self._beats, 65_536))
            self._look()

    def _pause_seconds(self) -> float:
        now, late_at = monotonic(), self._beaten_at + self._late_seconds
        times = [max(self._due, late_at)]
        if self._ends_at is not None:
            times.append(max(self._ends_at, late_at))
        if self._pidfd is None:
            times.append(now + AGAIN_SECONDS)
        return max(0.001, min(times) - now)

    def _note(self, sent: bytes) -> None:
        now = monotonic()
        for byte in sent:
            if byte == BEAT[0]:
                self._beaten_at, self._due = now, 0.0
            elif byte in _STOPS and self._ends_at is None:
                self._ends_at = now + self._orders["endSeconds"]
            elif byte in _STOPS and byte != signal.SIGHUP:  # a closing terminal may send that one twice
                self._ends_at = min(self._ends_at or now, now + ASKED_TWICE_SECONDS)

    def _look(self) -> None:
        now = monotonic()
        held = now - self._beaten_at
        if held < self._late_seconds:
            return
        if self._ends_at is not None and now >= self._ends_at:
            os.kill(self._worker, signal.SIGKILL)
            self._ends_at = now + AGAIN_SECONDS
        if now < self._due:
            return
        self._due = now + AGAIN_SECONDS
        if self._is_running():
            try:
                self._run(*self._orders["command"], round(held * 1000))
            except RedisCommandError as error:
                _say(f"{error}".replace("\n", " "))
            else:
                self._due = now + self._orders["renewSeconds"]

    def _is_running(self) -> bool:
        stat = _stat_of(self._worker)
        return stat[_STATE] in _RUNNING and stat[_STARTED_AT] == self._started_at

    def _run(self, *command: object) -> None:
        connection = Connection(self._orders["redis"], self._orders["timeoutSeconds"])
        try:
            connection.run(*command)
        finally:
            connection.close()


def _pidfd_of(pid: int) -> int | None:
    """Return a descriptor that is readable when the process has ended, unless the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def _stat_of(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the state on; those of no process if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["X"] + [""] * _STARTED_AT


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, or not now
        sys.stdout.buffer.write(text.encode(errors="replace") + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Watch the process that has started this one."""
    for number in (*_STOPS, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # they are for the worker, which drains
    orders = json.loads(sys.stdin.readline())
    if os.getppid() != orders["worker"]:  # it has ended meanwhile
        return
    guard = LeaseGuard(orders)
    try:
        guard.check()
    except RedisCommandError as error:
        _say(str(error))
    os.set_blocking(sys.stdout.fileno(), False)
    _say(READY)
    guard.serve()


if __name__ == "__main__":
    main()

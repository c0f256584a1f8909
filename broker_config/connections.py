"""Redis clients with bounded waits and retries over outages, and explanations of Redis errors."""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import contextlib
import logging
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from redis import Redis
from redis import __version__ as driver_version
from redis.backoff import ExponentialBackoff
from redis.connection import AbstractConnection
from redis.driver_info import DriverInfo
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from broker_config.in_flight import IN_FLIGHT_INDEX
from broker_config.settings import Settings, SettingsError, hidden_password

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 3.0
SOCKET_TIMEOUT_SECONDS = 3.5

#: the first pause between two attempts, which doubles, and the longest
SHORTEST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.8
#: after more failures than this, pauses do not grow; redis-py overflows beyond a thousand
_COUNTED = 10


@dataclass(slots=True)
class RetryPeriod:
    """How long commands are repeated while Redis cannot be reached."""

    #: ``time.monotonic()`` after which no attempt begins
    until: float
    #: whether the answer is no longer needed
    is_needless: Callable[[], bool] = lambda: False
    #: an outage is not logged before this time, because the waiting caller may report it
    quiet_until: float = 0.0
    is_left: bool = False

    @property
    def is_over(self) -> bool:
        """Whether no further attempt is made."""
        return self.is_left or monotonic() >= self.until or self.is_needless()


_period: ContextVar[RetryPeriod | None] = ContextVar("retry_period", default=None)


@contextlib.contextmanager
def retrying(
    until: float, *, is_needless: Callable[[], bool] = lambda: False, quiet_until: float = 0.0
) -> Iterator[RetryPeriod]:
    """While Redis cannot be reached, repeat commands within the block until ``until`` (``time.monotonic()``).

    The commands must be safe to run twice. A nested block has no effect. Threads that run in the block's
    context stop repeating when the block ends.
    """
    outer = _period.get()
    if outer is not None:
        yield outer
        return
    period = RetryPeriod(until, is_needless, quiet_until)
    token = _period.set(period)
    try:
        yield period
    finally:
        period.is_left = True
        _period.reset(token)


def reporting_outages() -> contextlib.AbstractContextManager[RetryPeriod]:
    """Do not repeat commands within the block: the caller tries again or reports the outage itself."""
    return retrying(0.0)


class PatientRetry(Retry):
    """Repeats a command once in any case, because its connection may be stale, and then for a limited time.

    The limit is that of :func:`retrying`, or ``seconds``. The beginning and the end of an outage are logged.
    All connections of a client share one instance.
    """

    def __init__(self, place: str, seconds: float) -> None:
        super().__init__(ExponentialBackoff(cap=LONGEST_PAUSE_SECONDS, base=SHORTEST_PAUSE_SECONDS / 2), 1)
        self._place = place
        self._seconds = seconds
        #: when the current outage was logged
        self._logged_at: float | None = None
        self._lock = threading.Lock()

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    def call_with_retry(
        self,
        do: Callable[[], T],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> T:
        """Return the result of ``do``; ``fail`` gets each failure (redis/retry.py ``call_with_retry``).

        Raises:
            redis.exceptions.RedisError: the last failure, with a note that says how long the retries lasted.
        """
        began = monotonic()
        try:
            return do()
        except self._supported_errors as error:
            if is_retryable is not None and not is_retryable(error):
                raise
            failed = error
        with retrying(began + self._seconds) as period:
            failures = 1
            while True:
                fail(failed, failures) if with_failure_count else fail(failed)
                self._raise_if_over(failed, failures, began, period)
                sleep(self._backoff.compute(min(failures, _COUNTED)))
                try:
                    return do()
                except self._supported_errors as error:
                    failed, failures = error, failures + 1

    def _raise_if_over(self, error: Exception, failures: int, began: float, period: RetryPeriod) -> None:
        """Raise the error unless there is another attempt."""
        if hasattr(error, "__notes__"):  # connecting, within this command, has used up the time
            raise error
        if failures <= self._retries:
            return
        if isinstance(error, AuthenticationError) or period.is_over:
            error.add_note(f"tried for {monotonic() - began:.1f} s")
            raise error
        with self._lock:
            if self._logged_at is None and monotonic() >= period.quiet_until:
                self._logged_at = monotonic()
                rest = period.until - self._logged_at
                length = "until it is back" if rest == math.inf else f"for {rest:.0f} s more"
                logger.warning("Redis cannot be reached, trying %s: %s, %s", length, self._place, error)

    def greet(self, connection: AbstractConnection) -> None:
        """Set up a connection without a health check, which would double the wait for a silent server.

        An outage is over when the server carries out a command; one that still loads its data only connects.
        """
        connection.on_connect_check_health(check_health=False)
        if self._logged_at is None:
            return
        connection.send_command("PING", check_health=False)
        connection.read_response()
        with self._lock:
            logged_at, self._logged_at = self._logged_at, None
        if logged_at is not None:
            logger.warning("Redis is back after %.1f s: %s", monotonic() - logged_at, self._place)


def connect(
    url: str,
    *,
    name: str = "goondan",
    timeout_seconds: float = SOCKET_TIMEOUT_SECONDS,
    retry_seconds: float = 0.0,
) -> Redis:
    """Make a client for ``url`` (``redis://``, ``rediss://``, ``unix://``) without connecting.

    After a lost connection, a command is tried again after 50 ms, and then for ``retry_seconds`` or as long
    as :func:`retrying` says. A server that does not answer within ``timeout_seconds`` counts as away. With
    the defaults, that is reported within 10 s in all.

    Raises:
        SettingsError: the URL has an unknown option, or an option with an invalid value.
    """
    retry = PatientRetry(hidden_password(url), retry_seconds)
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    try:
        client = Redis.from_url(
            url,
            client_name=name,
            # each connection would look its version up among the installed packages, which takes over 1 ms
            driver_info=DriverInfo(lib_version=driver_version),
            socket_timeout=timeout_seconds,
            socket_connect_timeout=min(timeout_seconds, CONNECT_TIMEOUT_SECONDS),
            **keepalive,
            health_check_interval=10,
            redis_connect_func=retry.greet,
            retry=retry,
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # raises the error now, not at the first command
    except (TypeError, ValueError, RedisError) as error:
        raise SettingsError(f"GOONDAN_REDIS_URL: {hidden_password(url)} cannot be used: {error}") from error
    return client


def redis_time(redis: Redis) -> float:
    """Return the time of a Redis in milliseconds since the epoch."""
    return milliseconds_of(redis.time())


def milliseconds_of(answer: tuple[int, int]) -> float:
    """Convert the answer to ``TIME`` into milliseconds since the epoch."""
    seconds, micros = answer
    return float(seconds * 1000 + micros / 1000)


#: the supported servers
SERVERS = "Valkey, or Redis 6.2 or newer"


def is_supported(redis_version: str) -> bool:
    """Return whether this ``redis_version`` is supported; that of the first Valkey versions is 7.2.4."""
    return tuple(map(int, re.findall(r"\d+", redis_version)[:2])) >= (6, 2)


def require_writable(redis: Redis) -> None:
    """Check that Redis accepts writes that need memory; nothing is changed.

    Raises:
        redis.exceptions.RedisError: it is a replica, full, busy, ..., or cannot be reached.
    """
    redis.zadd(IN_FLIGHT_INDEX, {"": 0}, xx=True)


#: what an old Redis puts before the error of a command in a script
_IN_A_SCRIPT = re.compile(r"Error running script \(.*?\): (?:@user_script: ?\d+: )*-?")

#: matches errors of a script's own code, or of a key that has another type
_FAULT = re.compile(r"user_script|^WRONGTYPE")

#: what to do, by pattern of the error; redis-py removes the codes of some errors
_CREDENTIALS = "Correct user and password in GOONDAN_REDIS_URL: redis://user:password@host:6379/0."
_REMEDIES = (
    ("READONLY|read only replica", "Use the URL of the master: after a failover that is another server."),
    ("MASTERDOWN|Link with MASTER is down", "Use the URL of the master, or wait for the replica."),
    ("NOREPLICAS|good replicas", "Bring its replicas back, or lower min-replicas-to-write."),
    ("MISCONF|RDB snapshots", "Look at the server's log and the space on its disk: it cannot save its data."),
    ("BUSY", "A script runs there without end: `redis-cli SCRIPT KILL` ends it."),
    ("OOM|maxmemory", "Raise maxmemory, or lower GOONDAN_RESULT_TTL_SECONDS: the server is full."),
    ("LOADING|loading the dataset", "Wait until it has read its data from disk."),
    ("CLUSTERDOWN|Hash slot", "Use a server that is not part of a Redis Cluster."),
    ("NOAUTH|WRONGPASS|Authentication|authenticated|password", _CREDENTIALS),
    ("NOPERM|has no permissions", "Let the user of GOONDAN_REDIS_URL do all: `ACL SETUSER`."),
    ("max number of clients", "Raise maxclients, or end clients: `redis-cli CLIENT LIST` shows them."),
)


def refusal_text(error: RedisError) -> str:
    """Return the text of an error, without the place in the script where it occurred."""
    return _IN_A_SCRIPT.sub("", str(error))


_NAMED = "Start the Redis that GOONDAN_REDIS_URL or --redis-url names, or correct the URL."
#: the URL that `goondan dev` prints is pasted into terminals, where it outlives its Redis
_OF_DEV = (
    " If the URL is that of a `goondan dev` which has ended: unset GOONDAN_REDIS_URL, start dev again, and "
    "paste the line that it prints."
)


def remedy_of(error: RedisError, url: str = "") -> str | None:
    """Return what to do about an error, ``None`` if that is not known.

    With the server's ``url``, also say what to do if it cannot be reached, unless that is the default URL.
    """
    known = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, str(error))), None)
    is_named = url not in {"", Settings.model_fields["redis_url"].default}
    is_away = isinstance(error, RedisConnectionError | RedisTimeoutError) and known in {None, _CREDENTIALS}
    if not is_named or not is_away:
        return known
    is_local = urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
    return (known or _NAMED) + (_OF_DEV if is_local else "")


def is_script_fault(error: RedisError) -> bool:
    """Return whether a script failed because of its keys or arguments, so that it would fail again."""
    return isinstance(error, ResponseError) and remedy_of(error) is None and bool(_FAULT.search(str(error)))


def reason_unreachable(url: str, error: RedisError) -> str:
    """Return in one line why the server at ``url`` cannot be used; its password is hidden."""
    place, said = hidden_password(url), "; ".join([refusal_text(error), *getattr(error, "__notes__", ())])
    if isinstance(error, AuthenticationError):
        return f"Redis at {place} refuses the credentials: {said}"
    if isinstance(error, ResponseError):
        return f"Redis at {place} answers with an error: {said}"
    return f"Redis at {place} cannot be reached: {said}"

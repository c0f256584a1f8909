"""Redis clients with bounded waits, and retries over outages and refusals that pass."""

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
from functools import partial
from time import monotonic, sleep
from typing import Any, Self, TypeVar

from redis import Redis
from redis import __version__ as driver_version
from redis.backoff import ExponentialBackoff
from redis.client import Pipeline
from redis.connection import AbstractConnection, ConnectionPool
from redis.driver_info import DriverInfo
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.retry import Retry

from broker_config.queues import IN_FLIGHT_INDEX
from broker_config.refusals import (
    MasterUnknownError,
    RefusalParser,
    RefusedError,
    is_demotion,
    is_script_fault,
    refusal_text,
)
from broker_config.sentinel_url import SentinelUrl
from broker_config.settings import SettingsError, hidden_password

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 3.0
SOCKET_TIMEOUT_SECONDS = 3.5

#: the first pause between two attempts, which doubles, and the longest
SHORTEST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.8
#: after more failures than this, pauses do not grow; redis-py overflows beyond a thousand
_COUNTED = 10
#: refusals are logged again after this time, in seconds
_REFUSED_SECONDS = 60.0


@dataclass(slots=True)
class RetryPeriod:
    """How long commands are repeated while Redis cannot be reached, or refuses them for now."""

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
    """While Redis is away, repeat commands within the block until ``until`` (``time.monotonic()``).

    A server that refuses a command for now (:class:`~broker_config.refusals.RefusedError`) counts as away.
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
    All connections of a client share one instance. ``on_demotion`` is called when a server turns out to be no
    master.
    """

    def __init__(self, place: str, seconds: float) -> None:
        super().__init__(ExponentialBackoff(cap=LONGEST_PAUSE_SECONDS, base=SHORTEST_PAUSE_SECONDS / 2), 1)
        self._place = place
        self._seconds = seconds
        self.on_demotion: Callable[[], object] = lambda: None
        #: when the current outage was logged
        self._logged_at: float | None = None
        #: when a refusal was logged; a server that refuses some commands may carry out others meanwhile
        self._refused_at: float | None = None
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
                if isinstance(failed, RefusedError) and is_demotion(failed):
                    self.on_demotion()
                self._raise_if_over(failed, failures, began, period)
                sleep(self._backoff.compute(min(failures, _COUNTED)))
                try:
                    answer = do()
                except self._supported_errors as error:
                    failed, failures = error, failures + 1
                else:
                    self._note_accepted(failed)
                    return answer

    def _raise_if_over(self, error: Exception, failures: int, began: float, period: RetryPeriod) -> None:
        """Raise the error unless there is another attempt."""
        if hasattr(error, "__notes__"):  # connecting, within this command, has used up the time
            raise error
        if failures <= self._retries:
            return
        if isinstance(error, AuthenticationError | MasterUnknownError) or period.is_over:
            error.add_note(f"tried for {monotonic() - began:.1f} s")
            raise error
        if monotonic() >= period.quiet_until:
            self._log_beginning(error, period.until)

    def _log_beginning(self, error: Exception, until: float) -> None:
        now = monotonic()
        rest = until - now
        length = "until it is back" if rest == math.inf else f"for {rest:.0f} s more"
        with self._lock:
            if self._logged_at is not None:  # a server that has begun to load its data is not back yet
                return
            if not isinstance(error, RefusedError):
                self._logged_at = now
                logger.warning("Redis cannot be reached, trying %s: %s, %s", length, self._place, error)
            elif self._refused_at is None or now - self._refused_at >= _REFUSED_SECONDS:
                self._refused_at = now
                logger.warning("Redis accepts no commands, trying %s: %s, %s", length, self._place, error)

    def _note_accepted(self, last: Exception) -> None:
        """Log the end of a refusal: a command was carried out after its ``last`` attempt was refused."""
        if not isinstance(last, RefusedError):
            return
        with self._lock:
            refused_at, self._refused_at = self._refused_at, None
        if refused_at is not None:
            logger.warning("Redis accepts commands again: %s", self._place)

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
    """Make a client for ``url`` (any that ``Settings.redis_url`` takes) without connecting.

    After a lost connection, or a refusal that passes, a command is tried again after 50 ms, and then for
    ``retry_seconds`` or as long as :func:`retrying` says. Each attempt is made over a new connection: after a
    failover, the host's name may stand for another server, and Sentinels are asked for the master. A server
    that does not answer within ``timeout_seconds`` counts as away. With the defaults, that is reported within
    10 s in all.

    Raises:
        SettingsError: the URL has an unknown option, or an option with an invalid value.
    """
    retry = PatientRetry(hidden_password(url), retry_seconds)
    options = {
        "client_name": name,
        # each connection would look its version up among the installed packages, which takes over 1 ms
        "driver_info": DriverInfo(lib_version=driver_version),
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": min(timeout_seconds, CONNECT_TIMEOUT_SECONDS),
        "health_check_interval": 10,
        "redis_connect_func": partial(_greet_by_name, retry.greet),
        "retry": retry,
        "parser_class": RefusalParser,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        if SentinelUrl.is_one(url):
            from broker_config.sentinel import sentinel_client  # few need it

            client = sentinel_client(SentinelUrl.parse(url), options)
        else:
            client = Redis.from_url(url, **options)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # raises the error now, not at the first command
    except (TypeError, ValueError, RedisError) as error:
        raise SettingsError(f"GOONDAN_REDIS_URL: {hidden_password(url)} cannot be used: {error}") from error
    retry.on_demotion = partial(_leave_server, pool)
    return client


def _greet_by_name(greet: Callable[[AbstractConnection], object], connection: AbstractConnection) -> None:
    """Set up a connection, and name it if the user may: the name only stands in the list of clients."""
    name, connection.client_name = connection.client_name, None
    try:
        greet(connection)
    finally:
        connection.client_name = name
    if name:
        connection.send_command("CLIENT", "SETNAME", name, check_health=False)
        with contextlib.suppress(NoPermissionError):
            connection.read_response()


def _leave_server(pool: ConnectionPool) -> None:
    """Let no connection of a pool stay at a server that is no longer the master: its data grow old."""
    pool.disconnect(inuse_connections=False)
    pool.update_active_connections_for_reconnect()


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


def answers_of(pipe: Pipeline) -> list[Any]:
    """Run a pipeline of reads that concern different records; return their answers.

    A damaged record does not keep the others from being read: its answer is the error of Redis.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached, or refuses to work.
    """
    answers = pipe.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, RedisError) and not is_script_fault(answer):
            raise answer
    return answers


def rows_of(pipe: Pipeline) -> list[Any]:
    """Run a pipeline as :func:`answers_of` does; a damaged record is logged, and its answer is ``None``."""
    commands = list(pipe.command_stack)
    rows = answers_of(pipe)
    for number, row in enumerate(rows):
        if isinstance(row, RedisError):
            rows[number] = None
            logger.error("the Redis key %r is damaged: %s", commands[number][0][1], refusal_text(row))
    return rows

"""Redis clients: bounded in every wait, retried over outages; and what to say of a Redis that fails."""

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
from redis.backoff import ExponentialBackoff
from redis.connection import AbstractConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from broker_config.in_flight import IN_FLIGHT_INDEX
from broker_config.settings import Settings, SettingsError, hidden_password

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: what says "Redis cannot be reached", as opposed to "Redis refuses this command"
UNREACHABLE = (RedisConnectionError, RedisTimeoutError)

CONNECT_TIMEOUT_SECONDS = 3.0
SOCKET_TIMEOUT_SECONDS = 3.5

#: the pauses between two attempts: the first, which doubles, and the longest
SHORTEST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.8
#: the pauses are not longer after more failures; redis-py cannot count beyond a thousand
_COUNTED = 10


@dataclass(slots=True)
class RetryPeriod:
    """How long commands are repeated while Redis cannot be reached."""

    #: ``time.monotonic()``; an attempt that has begun before it is waited for
    until: float
    #: whether the answer is no longer needed
    is_needless: Callable[[], bool] = lambda: False
    #: until then an outage is not logged: a caller that waits can say for how long
    quiet_until: float = 0.0
    is_left: bool = False

    @property
    def is_over(self) -> bool:
        """Whether no further attempt is made."""
        return self.is_left or monotonic() >= self.until or self.is_needless()


_patience: ContextVar[RetryPeriod | None] = ContextVar("patience", default=None)


@contextlib.contextmanager
def retrying(
    until: float, *, is_needless: Callable[[], bool] = lambda: False, quiet_until: float = 0.0
) -> Iterator[RetryPeriod]:
    """Repeat the commands within the block until then (``time.monotonic()``) if Redis cannot be reached.

    They must do no harm when they are carried out twice. A block within a block changes nothing. Threads that
    were given the block's context stop with its end.
    """
    outer = _patience.get()
    if outer is not None:
        yield outer
        return
    patience = RetryPeriod(until, is_needless, quiet_until)
    token = _patience.set(patience)
    try:
        yield patience
    finally:
        patience.is_left = True
        _patience.reset(token)


def reporting_outages() -> contextlib.AbstractContextManager[RetryPeriod]:
    """Raise at once within the block if Redis cannot be reached: the caller tries again itself, or tells."""
    return retrying(0.0)


class PatientRetry(Retry):
    """Repeats a command once in any case, since its connection may be a stale one; then by the clock.

    That is as long as :func:`retrying` says, or for ``seconds``. An outage is logged once, and its end. All
    connections of a client share one.
    """

    def __init__(self, place: str, seconds: float) -> None:
        super().__init__(ExponentialBackoff(cap=LONGEST_PAUSE_SECONDS, base=SHORTEST_PAUSE_SECONDS / 2), 1)
        self._place = place
        self._seconds = seconds
        #: when the outage was told that is not over
        self._told_at: float | None = None
        self._telling = threading.Lock()

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    def call_with_retry(
        self,
        do: Callable[[], T],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> T:
        """Return what ``do`` does; ``fail`` is told of each failure (redis/retry.py ``call_with_retry``).

        Raises:
            redis.exceptions.RedisError: the last failure, with a note that says for how long it was tried.
        """
        began = monotonic()
        try:
            return do()
        except self._supported_errors as error:
            if is_retryable is not None and not is_retryable(error):
                raise
            failed = error
        with retrying(began + self._seconds) as patience:
            failures = 1
            while True:
                fail(failed, failures) if with_failure_count else fail(failed)
                self._require_patience(failed, failures, began, patience)
                sleep(self._backoff.compute(min(failures, _COUNTED)))
                try:
                    return do()
                except self._supported_errors as error:
                    failed, failures = error, failures + 1

    def _require_patience(self, error: Exception, failures: int, began: float, patience: RetryPeriod) -> None:
        """Go on if there is to be another attempt; raise the error if not."""
        if hasattr(error, "__notes__"):  # within this command its connection was tried for as long
            raise error
        if failures <= self._retries:
            return
        if isinstance(error, AuthenticationError) or patience.is_over:
            error.add_note(f"tried for {monotonic() - began:.1f} s")
            raise error
        with self._telling:
            if self._told_at is None and monotonic() >= patience.quiet_until:
                self._told_at = monotonic()
                rest = patience.until - self._told_at
                length = "until it is back" if rest == math.inf else f"for {rest:.0f} s more"
                logger.warning("Redis cannot be reached, trying %s: %s, %s", length, self._place, error)

    def greet(self, connection: AbstractConnection) -> None:
        """Greet a new server without a health check first, which would double the wait for a silent one.

        The outage is over when it also carries out a command: one that still loads its data greets, too.
        """
        connection.on_connect_check_health(check_health=False)
        if self._told_at is None:
            return
        connection.send_command("PING", check_health=False)
        connection.read_response()
        with self._telling:
            told_at, self._told_at = self._told_at, None
        if told_at is not None:
            logger.warning("Redis is back after %.1f s: %s", monotonic() - told_at, self._place)


def connect(
    url: str,
    *,
    name: str = "goondan",
    timeout_seconds: float = SOCKET_TIMEOUT_SECONDS,
    retry_seconds: float = 0.0,
) -> Redis:
    """Make a client of ``url`` (``redis://``, ``rediss://``, ``unix://``); nothing is sent yet.

    A lost connection is tried once more after 50 ms, and then for ``retry_seconds``, or as long as
    :func:`retrying` says. A server that does not answer within ``timeout_seconds`` is away; with the defaults
    that is reported within 10 s in all.

    Raises:
        SettingsError: the URL has an option that there is not, or a value that it cannot have.
    """
    retry = PatientRetry(hidden_password(url), retry_seconds)
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    try:
        client = Redis.from_url(
            url,
            client_name=name,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=min(timeout_seconds, CONNECT_TIMEOUT_SECONDS),
            **keepalive,
            health_check_interval=10,
            redis_connect_func=retry.greet,
            retry=retry,
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # else the first command would notice
    except (TypeError, ValueError, RedisError) as error:
        raise SettingsError(f"GOONDAN_REDIS_URL: {hidden_password(url)} cannot be used: {error}") from error
    return client


def redis_time(redis: Redis) -> float:
    """Return the time of a Redis in milliseconds since the epoch."""
    return milliseconds_of(redis.time())


def milliseconds_of(answer: tuple[int, int]) -> float:
    """Return the milliseconds since the epoch that the answer to ``TIME`` says."""
    seconds, micros = answer
    return float(seconds * 1000 + micros / 1000)


#: the servers that calls can be carried over
SERVERS = "Valkey, or Redis 6.2 or newer"


def is_supported(redis_version: str) -> bool:
    """Return whether a server of this version is one of :data:`SERVERS`; Valkey's first ones say 7.2.4."""
    return tuple(map(int, re.findall(r"\d+", redis_version)[:2])) >= (6, 2)


def require_writable(redis: Redis) -> None:
    """Go on if Redis takes writes, also those that need memory; nothing is changed.

    Raises:
        redis.exceptions.RedisError: it takes none: it is a replica, full, busy, ..., or cannot be reached.
    """
    redis.zadd(IN_FLIGHT_INDEX, {"": 0}, xx=True)


#: where an old Redis puts the error that a script has met with
_IN_A_SCRIPT = re.compile(r"Error running script \(.*?\): (?:@user_script: ?\d+: )*-?")

#: what an error says that comes from a script's own lines, or from a key that is of another type
_FAULT = re.compile(r"user_script|^WRONGTYPE")

#: what to do, by what the error says; redis-py takes the code off some
_CREDENTIALS = "Correct user and password in GOONDAN_REDIS_URL: redis://user:password@host:6379/0."
_REMEDIES = (
    ("READONLY|read only replica", "Use the URL of the master: after a failover that is another server."),
    (
        "MASTERDOWN|Link with MASTER is down",
        "Use the URL of the master, or wait for the replica.",
    ),
    ("NOREPLICAS|good replicas", "Bring its replicas back, or lower min-replicas-to-write."),
    ("MISCONF|RDB snapshots", "Look at the server's log and the space on its disk: it cannot save its data."),
    ("BUSY", "A script runs there without end: `redis-cli SCRIPT KILL` ends it."),
    ("OOM|maxmemory", "Raise maxmemory, or lower GOONDAN_RESULT_TTL_SECONDS: the server is full."),
    ("LOADING|loading the dataset", "Wait until it has read its data from disk."),
    (
        "CLUSTERDOWN|Hash slot",
        "Use a server that is not part of a Redis Cluster.",
    ),
    ("NOAUTH|WRONGPASS|Authentication|authenticated|password", _CREDENTIALS),
    (
        "NOPERM|has no permissions",
        "Let the user of GOONDAN_REDIS_URL do all: `ACL SETUSER`.",
    ),
    ("max number of clients", "Raise maxclients, or end clients: `redis-cli CLIENT LIST` shows them."),
)


def refusal_text(error: RedisError) -> str:
    """Return what Redis says, without the place in the script that has met with it."""
    return _IN_A_SCRIPT.sub("", str(error))


_NAMED = "Start the Redis that GOONDAN_REDIS_URL or --redis-url names, or correct the URL."
#: such a URL is pasted into terminals, and outlives its Redis there
_OF_DEV = (
    " If the URL is that of a `goondan dev` which has ended: unset GOONDAN_REDIS_URL, start dev again, and "
    "paste the line that it prints."
)


def remedy_of(error: RedisError, url: str = "") -> str | None:
    """Say what to do about an error that Redis answers with; none if that is not known.

    With the server's ``url``, unless it is the default, also what to do if it cannot be reached there.
    """
    said = str(error)
    known = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, said)), None)
    is_named = url not in {"", Settings.model_fields["redis_url"].default}
    is_away = isinstance(error, RedisConnectionError | RedisTimeoutError) and known in {None, _CREDENTIALS}
    if not is_named or not is_away:
        return known
    is_local = urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
    return (known or _NAMED) + (_OF_DEV if is_local else "")


def is_script_fault(error: RedisError) -> bool:
    """Say whether a script has met with keys or arguments that it cannot use: it would do so again."""
    return isinstance(error, ResponseError) and remedy_of(error) is None and bool(_FAULT.search(str(error)))


def reason_unreachable(url: str, error: RedisError) -> str:
    """Say in one line why the server at ``url`` (its password hidden) cannot be used."""
    place, said = hidden_password(url), "; ".join([refusal_text(error), *getattr(error, "__notes__", ())])
    if isinstance(error, AuthenticationError):
        return f"Redis at {place} refuses the credentials: {said}"
    if isinstance(error, ResponseError):
        return f"Redis at {place} answers with an error: {said}"
    return f"Redis at {place} cannot be reached: {said}"

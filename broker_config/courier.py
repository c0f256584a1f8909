"""Scripts are sent without waiting, and one thread collects their answers.

A worker's threads and its event loop hand over what they have to tell Redis and go on; many scripts
share a packet, and nobody wakes anybody for each. While Redis is away what was handed over waits, and
after a lost connection everything unanswered is sent again: the scripts sent this way must do no harm
when they are run twice.
"""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from redis import Redis
from redis.connection import Connection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from broker_config.scripts import Errand

logger = logging.getLogger(__name__)

#: how long to wait before Redis is tried again, when it is away or full
PAUSE_SECONDS = 0.5

Receiver = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Parcel:
    """An errand under way, and who wants its answer."""

    errand: Errand
    receiver: Receiver
    is_full: bool = False

    @property
    def command(self) -> tuple[Any, ...]:
        """What is sent."""
        return self.errand.full_command if self.is_full else self.errand.command


class Courier:
    """One connection, used by any number of threads, with one thread that reads.

    Receivers are called on that thread, in order; they must be quick and must not raise.
    """

    def __init__(self, redis: Redis) -> None:
        self._connection: Connection = redis.connection_pool.get_connection()
        self._lock = threading.Lock()
        self._unanswered: deque[Parcel] = deque()
        self._answers_due = threading.Semaphore(0)
        self._is_connected = True
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the reading thread."""
        threading.Thread(target=self._read, name="goondan-courier", daemon=True).start()

    def stop(self) -> None:
        """Give up what is still unanswered."""
        self._stopped.set()

    def send(self, errand: Errand, receiver: Receiver) -> None:
        """Send one script; ``receiver`` gets its answer, sooner or later."""
        self._send(Parcel(errand, receiver))

    def _send(self, parcel: Parcel) -> None:
        with self._lock:
            self._unanswered.append(parcel)
            if self._is_connected:
                self._write([parcel])
        self._answers_due.release()

    def _write(self, parcels: list[Parcel]) -> None:
        packed = self._connection.pack_commands([parcel.command for parcel in parcels])
        try:
            self._connection.send_packed_command(packed, check_health=False)
        except RedisError:
            self._is_connected = False  # the reading thread sees to it

    def _read(self) -> None:
        while not self._stopped.is_set():
            self._answers_due.acquire()
            try:
                answer = self._connection.read_response()
            except ResponseError as error:
                answer = error
            except RedisError as error:
                self._answers_due.release()
                self._reconnect(error)
                continue
            with self._lock:
                parcel = self._unanswered.popleft()
            self._deliver(parcel, answer)

    def _deliver(self, parcel: Parcel, answer: Any) -> None:
        if isinstance(answer, NoScriptError):
            self._send(replace(parcel, is_full=True))
        elif isinstance(answer, ResponseError):
            logger.warning("Redis refuses a script, trying again: %s", answer)
            retry = threading.Timer(PAUSE_SECONDS, self._send, [parcel])
            retry.daemon = True
            retry.start()
        else:
            parcel.receiver(answer)

    def _reconnect(self, error: RedisError) -> None:
        logger.warning("lost the connection to Redis, trying again: %s", error)
        with self._lock:
            self._is_connected = False
        while not self._stopped.is_set():
            try:
                self._connection.disconnect()
                self._connection.connect()
                break
            except RedisError:
                self._stopped.wait(PAUSE_SECONDS)
        with self._lock:
            self._is_connected = True
            if self._unanswered:
                self._write(list(self._unanswered))

"""Scripts are sent without waiting, and one thread collects their answers.

A worker's threads and its event loop hand over what they have to tell Redis and go on; many scripts
share a packet, and nobody wakes anybody for each. While Redis is away what was handed over waits, and
after a lost connection everything unanswered is sent again: the scripts sent this way must do no harm
when they are run twice.
"""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import logging
import os
import signal
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

    Receivers are called on that thread, in order; they must be quick and must not raise. A courier
    that has died must not look alive: its process is told to stop.
    """

    def __init__(self, redis: Redis) -> None:
        self._connection: Connection = redis.connection_pool.get_connection()
        self._lock = threading.Lock()
        self._unanswered: deque[Parcel] = deque()
        self._answers_due = threading.Semaphore(0)
        self._postponed: list[Parcel] = []
        self._is_connected = True
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the reading thread."""
        threading.Thread(target=self._live, name="goondan-courier", daemon=True).start()

    def stop(self) -> None:
        """Give up what is still unanswered."""
        self._stopped.set()

    def send(self, errand: Errand, receiver: Receiver) -> bool:
        """Send one script; ``receiver`` gets its answer, sooner or later.

        Returns:
            Whether it is on its way: what a live connection has taken arrives even if this process
            dies now. Otherwise it waits here until Redis is back.
        """
        return self._send(Parcel(errand, receiver))

    def _send(self, parcel: Parcel) -> bool:
        packed = self._connection.pack_commands([parcel.command])
        with self._lock:
            self._unanswered.append(parcel)
            is_on_its_way = self._is_connected and self._write(packed)
        self._answers_due.release()
        return is_on_its_way

    def _write(self, packed: list[bytes]) -> bool:
        try:
            self._connection.send_packed_command(packed, check_health=False)
        except RedisError:
            self._is_connected = False  # the reading thread sees to it
        return self._is_connected

    def _live(self) -> None:
        try:
            self._read()
        finally:
            if not self._stopped.is_set():
                logger.critical("the courier has died; this process can do nothing without it")
                os.kill(os.getpid(), signal.SIGTERM)

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
            self._postpone(parcel)
        else:
            parcel.receiver(answer)

    def _postpone(self, parcel: Parcel) -> None:
        with self._lock:
            self._postponed.append(parcel)
            if len(self._postponed) > 1:
                return  # the timer of the first one takes this one along
        timer = threading.Timer(PAUSE_SECONDS, self._send_postponed)
        timer.daemon = True
        timer.start()

    def _send_postponed(self) -> None:
        with self._lock:
            parcels, self._postponed = self._postponed, []
        for parcel in parcels:
            self._send(parcel)

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
                commands = [parcel.command for parcel in self._unanswered]
                self._write(self._connection.pack_commands(commands))

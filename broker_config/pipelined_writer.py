"""Scripts are sent without waiting, and one thread collects their answers.

A worker's threads and its event loop hand over what they have to tell Redis and go on; many scripts
share a packet, and no thread is woken for each. While Redis is away what was handed over waits, and
after a lost connection everything unanswered is sent again: the scripts sent this way must do no harm
when they are run twice. One that cannot be run, since a key holds what it cannot use, is not sent again.
"""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from redis import Redis
from redis.connection import Connection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from broker_config.connections import is_script_fault, refusal_text
from broker_config.scripts import Script, ScriptCall, packet
from broker_config.vital_thread import vital_thread

logger = logging.getLogger(__name__)

#: how long to wait before Redis is tried again, when it is away or full
PAUSE_SECONDS = 0.5

#: how long an answer that is not urgent stays unread: a connection that is gone shows only then
UNREAD_SECONDS = 0.1

#: so many answers are read at once, though none is urgent: to wake the thread costs more than to read one
MANY = 64

T = TypeVar("T")

Receiver = Callable[[Any], object]

#: gets the error of a script that cannot be run
Refused = Callable[[ResponseError], object]


def _log_refusal(error: ResponseError) -> None:
    logger.error("Redis cannot run a script, which is not sent again: %s", refusal_text(error))


def _as_it_came(answer: Any) -> Any:
    return answer


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A script call under way, and who wants its answer."""

    script_call: ScriptCall[Any]
    receiver: Receiver
    is_urgent: bool
    refused: Refused = _log_refusal
    is_full: bool = False

    @property
    def command(self) -> tuple[Any, ...]:
        """What is sent."""
        return self.script_call.full_command if self.is_full else self.script_call.command


class PipelinedWriter:
    """One connection, used by any number of threads, with one thread that reads.

    Receivers are called on that thread, in order; they must be quick and must not raise. The thread is
    woken for answers that are urgent, or many; it takes the others along. A writer that has died must
    not look alive: its process is told to stop.

    ``taught`` are scripts that a connection teaches Redis before anything is sent over it. Any other is
    refused the first time and sent again, whole: then what is on its way would not arrive without us.
    """

    def __init__(self, redis: Redis, taught: Sequence[Script] = ()) -> None:
        self._taught = taught
        self._connection: Connection = redis.connection_pool.get_connection()
        self._lock = threading.Lock()
        self._put_off: deque[PendingCommand] = deque()
        self._unanswered: deque[PendingCommand] = deque()
        #: how many answers the reading thread is to read now
        self._wanted = 0
        #: taken while the reading thread sleeps
        self._bed = threading.Lock()
        self._is_asleep = False
        self._postponed: list[PendingCommand] = []
        self._is_connected = True
        self._is_refused = False
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the reading thread.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        self._teach()
        vital_thread("goondan-writer", self._read, is_over=self._stopped.is_set).start()

    def stop(self) -> None:
        """Give up what is still unanswered."""
        self._stopped.set()
        with self._lock:
            self._wake()

    def send(
        self,
        script_call: ScriptCall[T],
        receiver: Callable[[T], object],
        *,
        is_urgent: bool = True,
        refused: Refused = _log_refusal,
    ) -> bool:
        """Send one script, and what was put off; ``receiver`` gets its answer, sooner or later.

        If Redis cannot run the script, ``refused`` gets the error instead.

        Returns:
            Whether it is on its way: what a live connection has taken arrives even if this process
            dies now. Otherwise it waits here until Redis is back.
        """
        self.put_off(script_call, receiver, is_urgent=is_urgent, refused=refused)
        with self._lock:
            self._send_all()
            return self._is_connected

    def ask(self, script_call: ScriptCall[T]) -> T:
        """Send one script, and what was put off; return its answer, however long Redis is away.

        Raises:
            redis.exceptions.ResponseError: Redis cannot run it.
        """
        answer: Future[Any] = Future()
        asked = replace(script_call, parse=_as_it_came)
        self.send(asked, answer.set_result, refused=answer.set_exception)
        return script_call.parse(answer.result())  # a parser that raises must not end the thread that reads

    def put_off(
        self,
        script_call: ScriptCall[T],
        receiver: Callable[[T], object],
        *,
        is_urgent: bool = False,
        refused: Refused = _log_refusal,
    ) -> None:
        """Let one script wait for the next packet; the caller ensures that one is sent."""
        self._put_off.append(PendingCommand(script_call, receiver, is_urgent, refused))

    def flush(self) -> None:
        """Send what was put off, in one packet."""
        with self._lock:
            self._send_all()

    def _send_all(self) -> None:
        pending_commands = [self._put_off.popleft() for _ in range(len(self._put_off))]
        if pending_commands:
            if not self._unanswered:
                self._notice_end()
            self._unanswered.extend(pending_commands)
            if self._is_connected:
                self._write(pending_commands)
        is_urgent = any(pending.is_urgent for pending in pending_commands)
        if is_urgent or not self._is_connected or len(self._unanswered) >= self._wanted + MANY:
            self._wake()

    def _notice_end(self) -> None:
        """See whether Redis has closed the silent connection: it would still take a packet, and lose it."""
        if self._is_connected:
            try:
                self._connection.can_read()
            except RedisError:
                self._is_connected = False

    def _wake(self) -> None:
        """Let the thread read the answers to all that was sent until now."""
        self._wanted = len(self._unanswered)
        if self._is_asleep:
            self._is_asleep = False
            self._bed.release()

    def _write(self, pending_commands: Iterable[PendingCommand]) -> None:
        data = packet([pending.command for pending in pending_commands])
        try:
            self._connection.send_packed_command([data], check_health=False)
        except RedisError:
            self._is_connected = False  # the reading thread reconnects

    def _read(self) -> None:
        while not self._stopped.is_set():
            if not self._wanted:
                self._sleep()
                continue
            try:
                answer = self._connection.read_response()
            except ResponseError as error:
                answer = error
            except RedisError as error:
                self._reconnect(error)
                continue
            with self._lock:
                self._wanted -= 1
                pending = self._unanswered.popleft()
            self._deliver(pending, answer)

    def _sleep(self) -> None:
        self._bed.acquire(blocking=False)
        with self._lock:
            self._is_asleep = not self._wanted
        if self._is_asleep and not self._bed.acquire(timeout=UNREAD_SECONDS):
            with self._lock:
                self._wake()

    def _deliver(self, pending: PendingCommand, answer: Any) -> None:
        if isinstance(answer, NoScriptError):
            self._send_again([replace(pending, is_full=True)])
        elif isinstance(answer, ResponseError) and is_script_fault(answer):
            pending.refused(answer)
        elif isinstance(answer, ResponseError):
            if not self._is_refused:  # once, not twice a second while Redis is full
                logger.warning("Redis refuses a script, trying again: %s", refusal_text(answer))
            self._is_refused = True
            self._postpone(pending)
        else:
            self._is_refused = False
            pending.receiver(pending.script_call.parse(answer))

    def _postpone(self, pending: PendingCommand) -> None:
        with self._lock:
            self._postponed.append(pending)
            if len(self._postponed) > 1:
                return  # the timer of the first one takes this one along
        timer = threading.Timer(PAUSE_SECONDS, self._send_postponed)
        timer.daemon = True
        timer.start()

    def _send_postponed(self) -> None:
        with self._lock:
            pending_commands, self._postponed = self._postponed, []
        self._send_again(pending_commands)

    def _send_again(self, pending_commands: list[PendingCommand]) -> None:
        self._put_off += pending_commands
        self.flush()

    def _teach(self) -> None:
        for script in self._taught:
            self._connection.send_command("SCRIPT LOAD", script.text)
            with contextlib.suppress(ResponseError):  # a user who may not load scripts sends them whole
                self._connection.read_response()

    def _reconnect(self, error: RedisError) -> None:
        logger.warning("lost the connection to Redis, trying again: %s", error)
        with self._lock:
            self._is_connected = False
        while not self._stopped.is_set():
            try:
                self._connection.disconnect()
                self._connection.connect()
                self._teach()
                break
            except RedisError:
                self._stopped.wait(PAUSE_SECONDS)
        with self._lock:
            self._is_connected = True
            self._wanted = len(self._unanswered)
            if self._unanswered:
                self._write(self._unanswered)

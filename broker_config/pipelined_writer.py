"""Sends scripts without waiting; one thread collects their answers.

A worker's threads and its event loop hand over script calls and go on. Many calls share a packet, and no
thread is woken for each. While Redis is away, they wait here. After a lost connection, all unanswered calls
are sent again, so they must be safe to run twice. The same happens over a new connection when the server has
become a replica. A script that cannot run because of the contents of its keys is not sent again.
"""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from redis import Redis
from redis.connection import Connection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from broker_config.confirmation import Barrier, Confirmation, Unanswered
from broker_config.refusals import is_demotion, is_script_fault, refusal_text
from broker_config.scripts import Script, ScriptCall, answer_of, packet, send_all, unparsed
from broker_config.vital_thread import vital_thread

logger = logging.getLogger(__name__)

#: the pause before Redis is tried again when it is away or full
PAUSE_SECONDS = 0.5

#: how long answers that are not urgent may stay unread; a lost connection is noticed only when they are read
UNREAD_SECONDS = 0.1

#: how many answers wake the reading thread although none is urgent: waking it costs more than reading one
MANY = 64

T = TypeVar("T")

Receiver = Callable[[Any], object]

#: gets the error of a script that cannot be run
Refused = Callable[[ResponseError], object]


def _log_refusal(error: ResponseError) -> None:
    logger.error("Redis cannot run a script, which is not sent again: %s", refusal_text(error))


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A script call that was handed over, and the receiver of its answer."""

    script_call: ScriptCall[Any] | Barrier
    receiver: Receiver
    is_urgent: bool
    refused: Refused = _log_refusal
    is_full: bool = False

    @property
    def command(self) -> tuple[Any, ...]:
        """The command to send."""
        return self.script_call.full_command if self.is_full else self.script_call.command


class PipelinedWriter:
    """One connection, which any number of threads write to and one thread reads.

    Receivers are called on the reading thread, in order; they must be quick and must not raise. The thread is
    woken only for urgent answers, or for many. If it dies, the process is told to stop.

    ``preloaded`` scripts are loaded into Redis by each new connection. Redis refuses other scripts the first
    time, and they are sent again as a whole; if the process died in between, they would be lost.
    """

    def __init__(self, redis: Redis, preloaded: Sequence[Script] = ()) -> None:
        self._preloaded = preloaded
        self._connection: Connection = redis.connection_pool.get_connection()
        self._lock = threading.Lock()
        self._unsent: deque[PendingCommand] = deque()
        self._unanswered: Unanswered[PendingCommand] = Unanswered()
        #: set if scripts were sent that no barrier follows yet
        self._unconfirmed: Confirmation | None = None
        #: how many answers the reading thread must read now
        self._wanted = 0
        #: held while the reading thread sleeps; releasing it wakes the thread
        self._wakeup = threading.Lock()
        self._is_asleep = False
        self._postponed: list[PendingCommand] = []
        self._is_connected = True
        self._is_refused = False
        self._stopped = threading.Event()
        in_child = weakref.WeakMethod(self._leave_to_parent)
        os.register_at_fork(after_in_child=lambda: (leave := in_child()) and leave())

    def start(self) -> None:
        """Start the reading thread.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        self._load_scripts()
        vital_thread("goondan-writer", self._read, is_over=self._stopped.is_set).start()

    def stop(self) -> None:
        """Stop reading. Unanswered calls are given up."""
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
        """Send a script call and all that were put off; ``receiver`` gets its answer later.

        If Redis cannot run the script, ``refused`` gets the error instead.

        Returns:
            Whether the call was sent: then it arrives even if this process dies. Otherwise it waits here
            until Redis is back.
        """
        self.put_off(script_call, receiver, is_urgent=is_urgent, refused=refused)
        with self._lock:
            self._send_all()
            return self._is_connected

    def ask(self, script_call: ScriptCall[T]) -> T:
        """Send a script call and all that were put off; wait for its answer, however long Redis is away.

        Raises:
            redis.exceptions.ResponseError: Redis cannot run it.
        """
        answer: Future[Any] = Future()
        asked = replace(script_call, parse=unparsed)
        self.send(asked, answer.set_result, refused=answer.set_exception)
        # parsed here, because an exception would end the reading thread
        return script_call.parse(answer.result())

    def put_off(
        self,
        script_call: ScriptCall[T],
        receiver: Callable[[T], object],
        *,
        is_urgent: bool = False,
        refused: Refused = _log_refusal,
        is_full: bool = False,
    ) -> None:
        """Add a script call to the next packet; the caller makes sure that one is sent.

        With ``is_full`` the script's text is sent. So it runs before what follows it in the packet, which a
        script that Redis has forgotten does not: that is sent again later.
        """
        self._unsent.append(PendingCommand(script_call, receiver, is_urgent, refused, is_full))

    def flush(self) -> None:
        """Send all calls that were put off, in one packet."""
        with self._lock:
            self._send_all()

    def _leave_to_parent(self) -> None:
        """In a forked child, send nothing over the parent's connection."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._is_connected = False
        self._connection.disconnect()

    def _send_all(self) -> None:
        pending_commands = [self._unsent.popleft() for _ in range(len(self._unsent))]
        barrier = self._barrier(pending_commands)
        if pending_commands or barrier:
            if not self._unanswered.due:
                self._check_connection()
            self._unanswered.add(pending_commands)
            if barrier:
                self._unanswered.add_barrier(barrier)
                pending_commands += barrier
            if self._is_connected:
                self._write(pending_commands)
        is_urgent = any(pending.is_urgent for pending in pending_commands)
        if is_urgent or not self._is_connected or self._unanswered.due >= self._wanted + MANY:
            self._wake()

    def _barrier(self, pending_commands: Sequence[PendingCommand]) -> list[PendingCommand]:
        """Return the barrier behind all scripts without one.

        Redis runs nothing of this connection while it waits for replicas, so only one barrier is outstanding:
        with slow replicas, results would wait behind many.
        """
        is_late = self._unconfirmed is not None
        for pending in pending_commands:
            self._unconfirmed = pending.script_call.confirmation or self._unconfirmed
        if self._unconfirmed is None or self._unanswered.barriers:
            return []
        barrier, self._unconfirmed = self._unconfirmed.barrier, None
        return [PendingCommand(one, unparsed, is_urgent=is_late) for one in barrier]

    def _check_connection(self) -> None:
        """Notice if Redis has closed the idle connection: it would accept a packet, which would be lost."""
        if self._is_connected:
            try:
                self._connection.can_read()
            except RedisError:
                self._is_connected = False

    def _wake(self) -> None:
        """Make the thread read all answers that are outstanding now."""
        self._wanted = self._unanswered.due
        if self._is_asleep:
            self._is_asleep = False
            self._wakeup.release()

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
                answer = answer_of(self._connection)
            except RedisError as error:
                self._reconnect(error)
                continue
            if isinstance(answer, RedisError) and is_demotion(answer):
                self._note_refused(answer)
                self._stopped.wait(PAUSE_SECONDS)
                self._reconnect(answer)
                continue
            with self._lock:
                self._wanted -= 1
                answered = self._unanswered.take(answer)
                if self._unconfirmed is not None and not self._unanswered.barriers:
                    self._send_all()
            for pending, counted in answered:
                self._deliver(pending, counted)

    def _sleep(self) -> None:
        self._wakeup.acquire(blocking=False)
        with self._lock:
            self._is_asleep = not self._wanted
        if self._is_asleep and not self._wakeup.acquire(timeout=UNREAD_SECONDS):
            with self._lock:
                self._wake()

    def _deliver(self, pending: PendingCommand, answer: Any) -> None:
        if isinstance(answer, NoScriptError):
            self._send_again([replace(pending, is_full=True)])
        elif isinstance(answer, ResponseError) and is_script_fault(answer):
            pending.refused(answer)
        elif isinstance(answer, RedisError):
            self._note_refused(answer)
            self._postpone(pending)
        else:
            self._is_refused = False
            pending.receiver(pending.script_call.parse(answer))

    def _note_refused(self, error: RedisError) -> None:
        if not self._is_refused:  # log once, not twice a second while Redis is full
            logger.warning("Redis refuses a script, trying again: %s", refusal_text(error))
        self._is_refused = True

    def _postpone(self, pending: PendingCommand) -> None:
        with self._lock:
            self._postponed.append(pending)
            if len(self._postponed) > 1:
                return  # the timer of the first one sends this one, too
        timer = threading.Timer(PAUSE_SECONDS, self._send_postponed)
        timer.daemon = True
        timer.start()

    def _send_postponed(self) -> None:
        with self._lock:
            pending_commands, self._postponed = self._postponed, []
        self._send_again(pending_commands)

    def _send_again(self, pending_commands: list[PendingCommand]) -> None:
        self._unsent += pending_commands
        self.flush()

    def _load_scripts(self) -> None:
        # if the user may not load scripts, their texts are sent later
        send_all(self._connection, [("SCRIPT", "LOAD", script.text) for script in self._preloaded])

    def _reconnect(self, error: RedisError) -> None:
        if not self._is_refused:
            logger.warning("lost the connection to Redis, trying again: %s", error)
        with self._lock:
            self._is_connected = False
        while not self._stopped.is_set():
            try:
                self._connection.disconnect()
                self._connection.connect()
                self._load_scripts()
                break
            except RedisError:
                self._stopped.wait(PAUSE_SECONDS)
        with self._lock:
            self._is_connected = True
            self._unanswered.read_again()
            self._wanted = self._unanswered.due
            if self._wanted:
                self._write(self._unanswered.sent)

"""Results come to the producer: one subscription, on one thread, for the whole process."""

import contextlib
import logging
import math
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator

from redis import Redis
from redis.exceptions import RedisError

from broker_config.connections import reporting_outages, retrying
from broker_config.keys import Keys
from broker_config.subscription import Subscription
from goondan_tasks.messages import ToolCallResult

logger = logging.getLogger(__name__)

#: how long to wait before the subscription is tried again
PAUSE_SECONDS = 0.5

#: how long an outage lasts before the listener says so: threads that wait look meanwhile, and know how long
#: they do
QUIET_SECONDS = 3.0

#: how long results may stay unread while no thread waits for one
NAP_SECONDS = 0.05

#: how long a waiting thread reads the socket; then the listener's thread does, which checks the server
OWN_SECONDS = 0.5

#: how long to wait for the listener's thread at the end: without Redis nothing wakes it
FAREWELL_SECONDS = 1.0

#: what an interim result contains, and few others
_PENDING = b'"pending"'


class Expected:
    """The next result of a call: nothing yet, its JSON as it came, the result, or an error.

    All threads that wait for one call share it. The JSON is parsed once, when the result is first asked for.
    """

    __slots__ = ("__weakref__", "_came", "_wakers", "following")

    def __init__(self) -> None:
        self._came: bytes | ToolCallResult | Exception | None = None
        self._wakers: list[Callable[[], object]] = []
        #: what comes after an interim result
        self.following: Expected | None = None

    @property
    def is_there(self) -> bool:
        """Whether the result, or an error, has come."""
        return self._came is not None

    def result(self) -> ToolCallResult | None:
        """Return the result; ``None`` while there is none.

        Raises:
            ValueError: what came cannot be read, or is of a newer version.
            Exception: the error that came in place of a result.
        """
        came = self._came
        if isinstance(came, bytes):
            came = self._came = ToolCallResult.from_json(came)
        elif isinstance(came, Exception):
            raise came
        return came

    def settle(self, came: bytes | ToolCallResult | Exception) -> None:
        """Keep the answer, and wake all waiting threads."""
        self._came = came
        for wake in tuple(self._wakers):
            wake()

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call ``wake`` when the result comes, or at once if it is there; on any thread, perhaps twice."""
        self._wakers.append(wake)
        try:
            if self.is_there:
                wake()
            yield
        finally:
            self._wakers.remove(wake)


class ResultListener:
    """Hands each result to the threads and tasks that wait for its call.

    A notification is lines of ``<id> <result as JSON>``, or ``<id>`` for a result too large to be sent along.
    It can be missed (a lost connection, a call submitted elsewhere), so nothing relies on it alone: waiting
    threads also look for themselves periodically, and all results are looked for after a gap.

    To wake a thread costs more than to read a result. So the first thread that waits reads what comes, its
    own result and others, and the listener's own thread does so for all the rest. While none waits, that one
    naps after each look, and results gather.
    """

    def __init__(self, redis: Redis, keys: Keys, read: Callable[[str], ToolCallResult | None]) -> None:
        self._redis = redis
        self._keys = keys
        self._read = read
        self._become_a_producer()
        self._expected: weakref.WeakValueDictionary[str, Expected] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def _become_a_producer(self) -> None:
        self._process = os.getpid()
        self.producer = uuid.uuid4().hex[:16]
        self._subscription: Subscription | None = None
        self._thread: threading.Thread | None = None
        #: taken by the thread that reads
        self._reading = threading.Lock()
        #: what threads wait for that do not read themselves, and how many tasks wait
        self._blocked: set[Expected] = set()
        self._tasks = 0
        self._nap_is_over = threading.Event()

    def start(self) -> None:
        """Subscribe, once; when this returns, no later notification is missed.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached, or does not answer in time.
        """
        with self._lock:
            if self._process != os.getpid():  # after a fork, which took no thread along
                self._become_a_producer()
            if self._subscription is None:
                self._subscription = self._subscribed()
                self._thread = threading.Thread(
                    target=self._listen, args=(self._subscription,), name="goondan-results", daemon=True
                )
                self._thread.start()

    def _subscribed(self) -> Subscription:
        subscription = Subscription(self._redis, self._keys.results(self.producer))
        try:
            subscription.subscribe()
        except RedisError:
            subscription.close()
            raise
        return subscription

    def expect(self, call_ids: Iterable[str]) -> list[Expected]:
        with self._lock:
            return [self._expected.get(call_id) or self._new(call_id) for call_id in call_ids]

    def _new(self, call_id: str) -> Expected:
        expected = self._expected[call_id] = Expected()
        return expected

    def expected_ids(self) -> list[str]:
        with self._lock:
            return list(self._expected)

    def resolve(self, call_id: str, came: bytes | ToolCallResult) -> None:
        """Hand over a result, or its JSON, from wherever it was learnt."""
        came = _read_interim(came) if isinstance(came, bytes) else came
        is_interim = isinstance(came, ToolCallResult) and came.status == "pending"
        with self._lock:
            expected = self._expected.pop(call_id, None)
            if expected is not None and is_interim:
                # expected before a caller asks for it: the final result may come first
                expected.following = self._new(call_id)
        self._settle(expected, came)

    def fail(self, call_id: str, error: Exception) -> None:
        """Tell all threads that wait for a call that there will be no result."""
        with self._lock:
            expected = self._expected.pop(call_id, None)
        self._settle(expected, error)

    def _settle(self, expected: Expected | None, came: bytes | ToolCallResult | Exception) -> None:
        if expected is not None:
            self._blocked.discard(expected)
            expected.settle(came)

    def wait(self, expected: Expected, seconds: float) -> None:
        if expected.is_there:
            return
        end = time.monotonic() + seconds
        self._blocked.add(expected)
        try:
            self._read_until(expected, min(end, time.monotonic() + OWN_SECONDS))
            if not expected.is_there:
                self._nap_is_over.set()
                came = threading.Event()
                with expected.waking(came.set):
                    came.wait(max(0.0, end - time.monotonic()))
        finally:
            self._blocked.discard(expected)

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Have results read at once: a task, which cannot read the socket itself, waits for one."""
        with self._lock:
            self._tasks += 1
        self._nap_is_over.set()
        try:
            yield
        finally:
            with self._lock:
                self._tasks -= 1

    @property
    def _is_needed(self) -> bool:
        """Whether a thread or a task waits for the listener's thread to read."""
        return bool(self._blocked or self._tasks)

    def _read_until(self, expected: Expected, end: float) -> None:
        """Read what comes, unless another thread does; the connection of a parent process is not ours."""
        is_reader = False
        try:  # from the very beginning: a signal's handler may raise anywhere
            is_reader = self._process == os.getpid() and self._reading.acquire(blocking=False)
            if is_reader:
                self._blocked.discard(expected)
                self._read_for(expected, end)
                self._blocked.add(expected)
        finally:
            if is_reader:
                self._reading.release()
        if is_reader and len(self._blocked) + self._tasks > 1:
            self._nap_is_over.set()

    def _read_for(self, expected: Expected, end: float) -> None:
        while self._subscription is not None and not (expected.is_there or self._closed.is_set()):
            left = end - time.monotonic()
            try:
                data = self._subscription.read(left) if left > 0 else None
                if data is None:
                    return
                self._on_notification(data)
            except RedisError:
                return  # the listener's thread gets the same error and reconnects; else a poll finds it

    def close(self) -> None:
        """End the subscription and its thread: no other may close a connection that the thread reads."""
        self._closed.set()
        if self._process != os.getpid():  # the subscription is of the process that has forked
            return
        if self._subscription is not None and self._thread is not None:
            with contextlib.suppress(RedisError), reporting_outages():
                self._subscription.cancel()
            self._nap_is_over.set()
            self._thread.join(FAREWELL_SECONDS)

    def _listen(self, subscription: Subscription) -> None:
        while not self._closed.is_set():
            if self._reading.acquire(blocking=False):
                self._hear(subscription)
            self._nap_is_over.clear()
            # looked at after that: a thread that comes to need this one says so first, and ends its nap then
            if self._reading.locked() or not self._is_needed:
                self._nap_is_over.wait(NAP_SECONDS)
        with self._reading:
            subscription.close()

    def _hear(self, subscription: Subscription) -> None:
        """Read one notification, and those that have come meanwhile."""
        try:
            data = subscription.read()
            while data is not None:
                self._on_notification(data)
                data = subscription.read(0)
        except RedisError as error:
            logger.info("lost the subscription to results, reconnecting: %s", error)
            self._reconnect(subscription)
        finally:
            self._reading.release()

    def _reconnect(self, subscription: Subscription) -> None:
        is_told = False
        quiet_until = time.monotonic() + QUIET_SECONDS
        with retrying(math.inf, is_needless=self._closed.is_set, quiet_until=quiet_until):
            while not self._closed.wait(PAUSE_SECONDS):
                try:
                    subscription.subscribe()
                    self._look_for_all()
                    return
                except RedisError as error:  # it is there, and refuses
                    if not is_told:
                        logger.warning("the subscription to results is refused: %s", error)
                    is_told = True

    def _on_notification(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            call_id, _, wire = line.partition(b" ")
            try:
                if wire:
                    self.resolve(call_id.decode(), wire)
                else:
                    self._look_for(call_id.decode())
            except ValueError as error:  # a waiting thread reads the record itself and gets the error
                logger.warning("a notification cannot be read: %.200r: %s", line, error)

    def _look_for_all(self) -> None:
        for call_id in self.expected_ids():
            try:
                self._look_for(call_id)
            except ValueError as error:
                logger.warning("the result of call %r cannot be read: %s", call_id, error)

    def _look_for(self, call_id: str) -> None:
        result = self._read(call_id)
        if result is not None:
            self.resolve(call_id, result)


def _read_interim(wire: bytes) -> bytes | ToolCallResult:
    """Read a result's JSON if it may be an interim one; what is final, or damaged, stays as it came."""
    if _PENDING not in wire:
        return wire
    try:
        return ToolCallResult.from_json(wire)
    except ValueError:
        return wire

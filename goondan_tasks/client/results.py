"""Receipt of results by a producer: one subscription, on one thread, for the whole process."""

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
from goondan_tasks.contract.messages import ToolCallResult

logger = logging.getLogger(__name__)

#: how long to wait before the subscription is tried again
PAUSE_SECONDS = 0.5

#: how long an outage lasts before the listener reports it; waiting threads retry meanwhile, and report it
QUIET_SECONDS = 3.0

#: how long results may stay unread while no thread waits for one
NAP_SECONDS = 0.05

#: how long a waiting thread reads the socket; then the listener's thread does, which checks the server
OWN_SECONDS = 0.5

#: how long a thread waits for the result of a call before it is sure that the call is accepted
GLANCE_SECONDS = 0.005

#: how long to wait for the listener's thread when closing: without Redis nothing wakes it
JOIN_SECONDS = 1.0

#: every interim result contains this, and few other results do
_PENDING = b'"pending"'


class Expected:
    """The next result of a call: nothing yet, its unparsed JSON, the result, or an error.

    All threads that wait for one call share it. The JSON is parsed once, when the result is first asked for.
    """

    __slots__ = ("__weakref__", "_came", "_wakers", "after", "following")

    def __init__(self, after: ToolCallResult | None = None) -> None:
        self._came: bytes | ToolCallResult | Exception | None = None
        self._wakers: list[Callable[[], object]] = []
        #: the interim result before this one
        self.after = after
        #: the result after an interim one
        self.following: Expected | None = None

    @property
    def is_there(self) -> bool:
        """Whether the result, or an error, has come."""
        return self._came is not None

    def result(self) -> ToolCallResult | None:
        """Return the result; ``None`` while there is none.

        Raises:
            ValueError: the JSON cannot be read, or is of a newer version.
            Exception: the error that was received in place of a result.
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
        """Call ``wake`` when the result arrives, or at once if it is there; on any thread, perhaps twice."""
        self._wakers.append(wake)
        try:
            if self.is_there:
                wake()
            yield
        finally:
            self._wakers.remove(wake)


class ResultListener:
    """Hands each result to the threads and tasks that wait for its call.

    A notification is lines of ``<id> <result as JSON>``, or ``<id>`` for a result too large to be included.
    Notifications can be missed (a lost connection, a call submitted elsewhere), so waiting threads also poll
    periodically, and after a gap the listener looks for all results.

    Waking a thread costs more than reading a result. So the first waiting thread reads the socket itself, for
    its own result and others; the listener's thread reads for all other waits. While no thread waits, the
    listener's thread sleeps after each read, so that results accumulate.
    """

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        read: Callable[[str], ToolCallResult | None],
        *,
        is_wanted: Callable[[], object] = lambda: True,
    ) -> None:
        """Once ``is_wanted`` is false, the thread ends by itself, within the timeout of its connection."""
        self._is_wanted = is_wanted
        self._redis = redis
        self._keys = keys
        self._read = read
        self._reset()
        self._expected: weakref.WeakValueDictionary[str, Expected] = weakref.WeakValueDictionary()
        self._closed = threading.Event()
        _listeners.add(self)

    def _reset(self) -> None:
        """Become a producer without a subscription: at first, and in a forked process, which has no threads.

        There the locks are new as well: the listener's thread may hold them at the moment of the fork.
        """
        self.producer = uuid.uuid4().hex[:16]
        self._subscription: Subscription | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        #: held by the thread that reads the socket
        self._reading = threading.Lock()
        #: the results for which threads wait without reading, and the number of waiting tasks
        self._blocked: set[Expected] = set()
        self._tasks = 0
        #: wakes the listener's thread
        self._wakeup = threading.Event()

    def start(self) -> None:
        """Subscribe, once; when this returns, no later notification is missed.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached, or does not answer in time.
        """
        with self._lock:
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

    def _new(self, call_id: str, after: ToolCallResult | None = None) -> Expected:
        expected = self._expected[call_id] = Expected(after)
        return expected

    def expected_ids(self) -> list[str]:
        with self._lock:
            return list(self._expected)

    def resolve(self, call_id: str, came: bytes | ToolCallResult, *, is_asked: bool = False) -> None:
        """Hand over a result, or its JSON, whatever its source.

        An interim result that was handed over before counts again only if it ``is_asked`` for.
        """
        came = _read_interim(came) if isinstance(came, bytes) else came
        interim = came if isinstance(came, ToolCallResult) and came.status == "pending" else None
        with self._lock:
            expected = self._expected.get(call_id)
            if expected is None or (interim is not None and expected.after == interim and not is_asked):
                return
            del self._expected[call_id]
            if interim is not None:
                # expected even before a caller asks for it: the final result may arrive first
                expected.following = self._new(call_id, interim)
        self._settle(expected, came)

    def fail(self, call_id: str, error: Exception) -> None:
        """Raise ``error`` in all threads that wait for a call: there will be no result."""
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
                self._wakeup.set()
                came = threading.Event()
                with expected.waking(came.set):
                    came.wait(max(0.0, end - time.monotonic()))
        finally:
            self._blocked.discard(expected)

    def glance(self, expected: Expected) -> None:
        """Wait GLANCE_SECONDS for a result that may come before anything else, unless others wait as well.

        A thread that has submitted a call is then woken once, by the result, and reads the answer to its
        submission afterwards, in place of being woken by each.
        """
        if not self._is_needed:
            try:
                self._read_until(expected, time.monotonic() + GLANCE_SECONDS)
            finally:
                self._blocked.discard(expected)

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Have results read at once in the block: a task waits, which cannot read the socket itself."""
        with self._lock:
            self._tasks += 1
        self._wakeup.set()
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
        """Read the socket unless another thread does."""
        is_reader = False
        try:  # includes the acquisition: a signal's handler may raise anywhere
            is_reader = self._reading.acquire(blocking=False)
            if is_reader:
                self._blocked.discard(expected)
                self._read_for(expected, end)
                self._blocked.add(expected)
        finally:
            if is_reader:
                self._reading.release()
        if is_reader and len(self._blocked) + self._tasks > 1:
            self._wakeup.set()

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
        """End the subscription and its thread; only that thread may close the connection that it reads."""
        self._closed.set()
        if self._subscription is not None and self._thread is not None:
            with contextlib.suppress(RedisError), reporting_outages():
                self._subscription.cancel()
            self._wakeup.set()
            self._thread.join(JOIN_SECONDS)

    def _listen(self, subscription: Subscription) -> None:
        while not self._closed.is_set() and self._is_wanted():
            if self._reading.acquire(blocking=False):
                self._read_waiting(subscription)
            self._wakeup.clear()
            # checked after clearing: a thread that needs this one registers first, and then sets the event
            if self._reading.locked() or not self._is_needed:
                self._wakeup.wait(NAP_SECONDS)
        with self._reading:
            subscription.close()

    def _read_waiting(self, subscription: Subscription) -> None:
        """Read one notification, and those that have arrived meanwhile."""
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
        is_reported = False
        quiet_until = time.monotonic() + QUIET_SECONDS
        with retrying(math.inf, is_needless=self._closed.is_set, quiet_until=quiet_until):
            while not self._closed.wait(PAUSE_SECONDS):
                try:
                    subscription.subscribe()
                    self._look_for_all()
                    return
                except RedisError as error:  # the server is up, and refuses
                    if not is_reported:
                        logger.warning("the subscription to results is refused: %s", error)
                    is_reported = True

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
    """Parse a result's JSON if it may be an interim one; final and damaged results stay unparsed."""
    if _PENDING not in wire:
        return wire
    try:
        return ToolCallResult.from_json(wire)
    except ValueError:
        return wire


_listeners: weakref.WeakSet[ResultListener] = weakref.WeakSet()


def _reset_all() -> None:
    for listener in _listeners:
        listener._reset()


os.register_at_fork(after_in_child=_reset_all)

"""Results come to the producer: one subscription, on one thread, for the whole process."""

import contextlib
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from redis import Redis
from redis.exceptions import RedisError

from broker_config.keys import Keys
from broker_config.subscription import Subscription
from goondan_tasks.messages import ToolCallResult

logger = logging.getLogger(__name__)

#: how long to wait before the subscription is tried again
PAUSE_SECONDS = 0.5

#: how long results may stay unread while nobody waits for one
NAP_SECONDS = 0.05

#: how long who waits reads for himself; the thread, which sees whether the server lives, does the rest
OWN_SECONDS = 0.5

#: how long to wait for the thread when all is over: without Redis nothing wakes it
FAREWELL_SECONDS = 1.0


class ResultFuture(Future[ToolCallResult]):
    """The next result of a call; one that has an interim result knows the future of what comes after it."""

    following: "ResultFuture | None" = None


class ResultListener:
    """Hands each result to whoever waits for its call.

    A notification can be missed (a lost connection, a call submitted elsewhere), so nobody relies
    on it alone: waiters also look for themselves now and then, and all of them after a gap.

    To wake a thread costs more than to read a result. So the first thread that waits reads what comes, its
    own result and others, and the listener's own thread does so for all the rest. While nobody waits that one
    naps after each look, and results gather.
    """

    def __init__(self, redis: Redis, keys: Keys, read: Callable[[str], ToolCallResult | None]) -> None:
        self._redis = redis
        self._keys = keys
        self._read = read
        self._become_a_producer()
        self._waiting: weakref.WeakValueDictionary[str, ResultFuture] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def _become_a_producer(self) -> None:
        self._process = os.getpid()
        self.producer = uuid.uuid4().hex[:16]
        self._subscription: Subscription | None = None
        self._thread: threading.Thread | None = None
        #: taken by whoever reads
        self._reading = threading.Lock()
        #: who waits for the thread to read: the futures of threads, and how many tasks
        self._blocked: set[ResultFuture] = set()
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

    def future(self, call_id: str) -> ResultFuture:
        """Return the future of a call's result; all who wait for one call share it."""
        with self._lock:
            future = self._waiting.get(call_id)
            if future is None:
                future = self._waiting[call_id] = ResultFuture()
            return future

    def resolve(self, call_id: str, result: ToolCallResult) -> None:
        """Hand over a result, from wherever it was learnt."""
        with self._lock:
            future = self._waiting.pop(call_id, None)
            if future is not None and result.status == "pending":
                # it stands before anybody asks: the final result may be quicker
                future.following = self._waiting[call_id] = ResultFuture()
        if future is not None and not future.done():
            self._blocked.discard(future)
            future.set_result(result)

    def fail(self, call_id: str, error: Exception) -> None:
        """Tell whoever waits for a call that there will be no result."""
        with self._lock:
            future = self._waiting.pop(call_id, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def wait(self, future: ResultFuture, seconds: float) -> None:
        """Wait until ``future`` has ended, at most ``seconds``."""
        if future.done():
            return
        end = time.monotonic() + seconds
        self._blocked.add(future)
        try:
            self._read_until(future, min(end, time.monotonic() + OWN_SECONDS))
            if not future.done():
                self._nap_is_over.set()
                with contextlib.suppress(FutureTimeoutError):
                    future.exception(max(0.0, end - time.monotonic()))
        finally:
            self._blocked.discard(future)

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """See to it that results are read at once: a task waits for one, which cannot read itself."""
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
        """Whether anybody waits for the thread to read."""
        return bool(self._blocked or self._tasks)

    def _read_until(self, future: ResultFuture, end: float) -> None:
        """Read what comes, unless somebody does; the connection of a process that has forked is not ours."""
        is_reader = False
        try:  # from the very beginning: a signal's handler may raise anywhere
            is_reader = self._process == os.getpid() and self._reading.acquire(blocking=False)
            if is_reader:
                self._blocked.discard(future)
                self._read_for(future, end)
                self._blocked.add(future)
        finally:
            if is_reader:
                self._reading.release()
        if is_reader and len(self._blocked) + self._tasks > 1:
            self._nap_is_over.set()

    def _read_for(self, future: ResultFuture, end: float) -> None:
        while self._subscription is not None and not (future.done() or self._closed.is_set()):
            left = end - time.monotonic()
            try:
                data = self._subscription.read(left) if left > 0 else None
                if data is None:
                    return
                self._on_notification(data)
            except RedisError:  # the thread meets with the same, and sees to it; if not, the net does
                return

    def close(self) -> None:
        """End the subscription and its thread: nobody may close a connection that the thread reads."""
        self._closed.set()
        if self._process != os.getpid():  # the subscription is of the process that has forked
            return
        if self._subscription is not None and self._thread is not None:
            with contextlib.suppress(RedisError):
                self._subscription.cancel()
            self._nap_is_over.set()
            self._thread.join(FAREWELL_SECONDS)

    def _listen(self, subscription: Subscription) -> None:
        while not self._closed.is_set():
            if self._reading.acquire(blocking=False):
                self._hear(subscription)
            self._nap_is_over.clear()
            # looked at after that: whoever comes to need the thread says so first, and ends its nap then
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
            logger.warning("lost the subscription to results, reconnecting: %s", error)
            self._reconnect(subscription)
        finally:
            self._reading.release()

    def _reconnect(self, subscription: Subscription) -> None:
        while not self._closed.wait(PAUSE_SECONDS):
            try:
                subscription.subscribe()
                self._look_for_all()
                return
            except RedisError:
                continue  # still away

    def _on_notification(self, data: bytes) -> None:
        call_id, _, wire = data.partition(b" ")
        try:
            if wire:
                self.resolve(call_id.decode(), ToolCallResult.from_json(wire))
            else:
                self._look_for(call_id.decode())
        except ValueError as error:  # whoever waits for the call looks for itself and is told
            logger.warning("a notification cannot be read: %.200r: %s", data, error)

    def waiting(self) -> list[str]:
        """Return the ids of the calls whose results somebody waits for."""
        with self._lock:
            return list(self._waiting)

    def _look_for_all(self) -> None:
        for call_id in self.waiting():
            try:
                self._look_for(call_id)
            except ValueError as error:
                logger.warning("the result of call %r cannot be read: %s", call_id, error)

    def _look_for(self, call_id: str) -> None:
        result = self._read(call_id)
        if result is not None:
            self.resolve(call_id, result)

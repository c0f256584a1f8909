"""Reads the streams that the coroutines of a client follow, all on one thread and one connection."""

import asyncio
import math
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from broker_config.connections import answers_of, retrying
from broker_config.keys import Keys
from broker_config.refusals import is_script_fault, refusal_text
from goondan_tasks.client.pending_call import LOOK_BATCH, not_found, unreadable
from goondan_tasks.client.reading import FollowedEvent, Position, StreamReading, rows_of_streams
from goondan_tasks.client.threads import ClientThreads
from goondan_tasks.client.turn_events import TurnEnded, TurnProgress
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.output import Progress

#: how long one read waits for entries; a stream that joins meanwhile waits as long
TICK_SECONDS = 0.2

#: between two reads, for each stream and at most: one read takes what all streams have got meanwhile
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.0002, 0.05

#: how often results and progress are looked for, and for how many calls in a second
LOOK_SECONDS = 0.5
LOOKS_PER_SECOND = 500

#: how many entries of a stream one read takes
READ_AT_ONCE = 100

#: a follower for whom so many bytes wait is slow: it gets no more before it has taken them
MOST_WAITING_BYTES = 1_000_000
#: the size of an entry without its events
_ROW_BYTES = 500

_CLOSED = "The client is closed, and follows no Turn any more."

_Row = tuple[bytes, dict[bytes, bytes]]


class HubFollower:
    """What one coroutine gets of one Turn or call: entries, progress, and its result or an error."""

    def __init__(self, call_id: str, key: str) -> None:
        self.call_id = call_id
        self.key = key
        #: the last entry that was taken
        self.last = Position()
        #: whether the last entry that was taken ends the stream
        self.has_ended = False
        #: whether another program has overwritten the stream
        self.is_streamless = False
        #: whether the coroutine wants no more
        self.is_left = False
        #: whether nothing follows
        self.is_over = False
        self.progress: bytes | None = None
        self._items: deque[list[_Row] | bytes | ToolCallResult | Exception] = deque()
        self._waiting = 0
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()

    @property
    def is_slow(self) -> bool:
        """Whether so much waits for the coroutine that no more is read."""
        return self._waiting >= MOST_WAITING_BYTES

    def take(self, rows: Sequence[_Row]) -> None:
        """Pass on the entries that are new; on the thread of the hub, as the other methods that pass on."""
        new = [row for row in rows if Position.of_entry(row[0].decode()) > self.last]
        if new:
            self.last = Position.of_entry(new[-1][0].decode())
            self.has_ended = new[-1][1].get(b"entries", b"").startswith(b'[{"type":"end"')
            self._waiting += _bytes_of(new)
            self._pass(new)

    def report(self, progress: bytes) -> None:
        """Pass on the progress, unless it was before."""
        if progress != self.progress:
            self.progress = progress
            self._pass(progress)

    def end(self, result: ToolCallResult | Exception) -> None:
        """Pass on the last item."""
        if not self.is_over:
            self.is_over = True
            self._pass(result)

    def _pass(self, item: list[_Row] | bytes | ToolCallResult | Exception) -> None:
        self._items.append(item)
        with suppress(RuntimeError):  # the program has closed its event loop
            self._loop.call_soon_threadsafe(self._came.set)

    async def events(self, after: Position) -> AsyncIterator[FollowedEvent]:
        """Yield the events after a place, the end last."""
        reading = StreamReading(self.call_id, after)
        while True:
            self._came.clear()
            while self._items:
                item = self._items.popleft()
                if isinstance(item, list):
                    for event in reading.taken(item):
                        yield event
                    self._waiting -= _bytes_of(item)
                elif isinstance(item, bytes):
                    with suppress(ValueError):  # damaged
                        yield FollowedEvent(TurnProgress(progress=Progress.from_redis(item)), reading.cursor)
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield FollowedEvent(TurnEnded.of(item), reading.cursor)
                    return
            await self._came.wait()


class StreamHub:
    """Reads the streams of all followers together, as long as there are any. Threads may share it."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        sweep: Callable[[], object],
        broker_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Make a hub; ``sweep`` is called now and then, so that no Turn is followed for ever."""
        self._redis = redis
        self._keys = keys
        self._sweep = sweep
        self._broker_errors = broker_errors
        #: where followers join, which takes as long as an outage; short trips must not wait for them
        self.threads = ClientThreads("goondan-join")
        self._is_closed = False
        self._reset()

    def _reset(self) -> None:
        """Begin without followers and thread: at first, and in a forked process."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._followers: set[HubFollower] = set()
        self._thread: threading.Thread | None = None

    def follower(self, call_id: str) -> HubFollower:
        """Return a follower for the running event loop, which gets nothing before it joins."""
        return HubFollower(call_id, self._keys.turn_stream(call_id))

    def join(self, follower: HubFollower) -> None:
        """Pass on what is there already, and from then on what comes. Outages are waited for.

        Raises:
            BrokerUnreachableError: the client is closed, or Redis refuses to work.
        """
        if self._process != os.getpid():
            self._reset()
        self._require_open()
        with (
            self._broker_errors(),
            retrying(math.inf, is_needless=lambda: self._is_closed or follower.is_left),
        ):
            self._drain(follower)
            self._look([follower])
        with self._lock:
            self._require_open()
            if follower.is_over or follower.is_left:
                return
            self._followers.add(follower)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="goondan-follow", daemon=True)
                self._thread.start()

    def leave(self, follower: HubFollower) -> None:
        """Pass on nothing more; it may still be about to join."""
        with self._lock:
            follower.is_left = True
            self._followers.discard(follower)

    def _require_open(self) -> None:
        if self._is_closed:
            raise BrokerUnreachableError(_CLOSED)

    def close(self) -> None:
        """End the threads; who still follows gets an error, and so does who joins later."""
        self.threads.close()
        with self._lock:
            self._is_closed = True
            left, self._followers = self._followers, set()
            thread = self._thread
        for follower in left:
            follower.end(BrokerUnreachableError(_CLOSED))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        looked_at = 0.0
        while followers := self._current():
            try:
                with self._broker_errors(), retrying(math.inf, is_needless=lambda: not self._followers):
                    self._read(followers)
                    looked_at = self._looked(followers, looked_at)
            except Exception as error:  # noqa: BLE001 - it is raised where the Turns are followed
                for follower in followers:
                    follower.end(error)
            with self._lock:
                self._followers -= {one for one in followers if one.is_over}

    def _current(self) -> list[HubFollower]:
        """Return the followers; without any, the thread ends."""
        with self._lock:
            if not self._followers:
                self._thread = None
            return list(self._followers)

    def _looked(self, followers: Sequence[HubFollower], looked_at: float) -> float:
        """Look for the results of Turns whose streams have ended, and now and then for all."""
        now = time.monotonic()
        if now < looked_at + max(LOOK_SECONDS, len(followers) / LOOKS_PER_SECOND):
            self._look([one for one in followers if one.has_ended])
            return looked_at
        self._sweep()
        self._look(followers)
        return now

    def _read(self, followers: Iterable[HubFollower]) -> None:
        """Wait for up to TICK_SECONDS, and pass on the entries that have come."""
        groups, tick = defaultdict[str, list[HubFollower]](list), TICK_SECONDS
        for one in followers:
            if one.is_slow:
                tick = LONGEST_PAUSE_SECONDS
            elif not one.is_streamless:
                groups[one.key].append(one)
        if not groups:
            time.sleep(tick)
            return
        places: dict[Any, Any] = {key: _id(min(one.last for one in group)) for key, group in groups.items()}
        try:
            found = self._redis.xread(places, count=READ_AT_ONCE, block=round(1000 * tick))
        except ResponseError as error:
            if not is_script_fault(error):
                raise
            self._leave_out(groups)
            return
        for key, rows in rows_of_streams(found):
            for one in groups[key.decode()]:
                one.take(list(rows))
        if found:
            time.sleep(min(len(groups) * PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))

    def _leave_out(self, groups: dict[str, list[HubFollower]]) -> None:
        """Read no more the keys that are not streams; the results come all the same."""
        with self._redis.pipeline(transaction=False) as pipe:
            for key in groups:
                pipe.type(key)
            for group, kind in zip(groups.values(), pipe.execute(), strict=True):
                for one in group if kind not in (b"stream", b"none") else ():
                    one.is_streamless = True

    def _drain(self, follower: HubFollower) -> bool:
        """Pass on the entries that are there, and return whether these are all: a slow one gets no more."""
        while not follower.is_streamless:
            if follower.is_slow:
                return False
            try:
                found = self._redis.xread({follower.key: _id(follower.last)}, count=READ_AT_ONCE)
            except ResponseError as error:
                if not is_script_fault(error):
                    raise
                follower.is_streamless = True
                break
            if not found:
                break
            for _, rows in rows_of_streams(found):
                follower.take(list(rows))
        return True

    def _look(self, followers: Sequence[HubFollower]) -> None:
        """Pass on the results that are stored, and the progress of the others."""
        for begin in range(0, len(followers), LOOK_BATCH):
            batch = followers[begin : begin + LOOK_BATCH]
            with self._redis.pipeline(transaction=False) as pipe:
                for one in batch:
                    pipe.hmget(self._keys.call(one.call_id), "status", "result", "progress")
                answers = answers_of(pipe)
            for one, answer in zip(batch, answers, strict=True):
                if isinstance(answer, RedisError):
                    one.end(unreadable(one.call_id, refusal_text(answer)))
                else:
                    self._seen(one, *answer)

    def _seen(
        self, follower: HubFollower, status: bytes | None, result: bytes | None, progress: bytes | None
    ) -> None:
        if status is None:
            follower.end(not_found(follower.call_id))
        elif status in (b"done", b"dead") and result is not None:
            if not self._drain(follower):  # the end was written before the result could be seen
                return
            try:
                follower.end(ToolCallResult.from_json(result))
            except ValueError as error:
                follower.end(unreadable(follower.call_id, error))
        elif progress is not None:
            follower.report(progress)


def _bytes_of(rows: Iterable[_Row]) -> int:
    return sum(_ROW_BYTES + sum(map(len, fields.values())) for _, fields in rows)


def _id(place: Position) -> str:
    return f"{place.ms}-{place.number}"

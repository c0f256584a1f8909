"""Following one Turn or call, by its stream (:mod:`goondan_tasks.client.turn_events`) and its record.

The stream has what comes on the way, the record has the progress and the result. Any number of followers may
read a stream; reading changes nothing.
"""

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis
from redis.exceptions import ResponseError

from broker_config.connections import retrying
from broker_config.keys import Keys
from broker_config.refusals import is_script_fault
from goondan_tasks.authoring.handoff import request_result
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.client.reading import FollowedEvent, Position, StreamReading, rows_of_streams
from goondan_tasks.client.turn_events import TurnAccepted, TurnEnded, TurnEvent, TurnProgress
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    CallClosedError,
    CallNotFoundError,
    HandoffError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.output import Progress

#: how long a read waits for entries before the client looks for the result and the progress
TICK_SECONDS = 0.5

#: how many entries one read takes
READ_AT_ONCE = 500

#: how long the stream of a request is kept after its end, if its client follows it and says nothing else
FOLLOWED_SECONDS = 60

#: how long the stream of a Turn is kept that was asked for in a chat or over HTTP
CHAT_SECONDS = 3600

#: how long a stream is kept that was created before its event was accepted
_OPENED_SECONDS = 7 * 86_400


@dataclass(frozen=True, slots=True)
class FollowTerms:
    """How a Turn is followed. Past ``timeout`` seconds it is called off, and ``late`` is raised."""

    timeout: float = math.inf
    late: HandoffError | None = None
    #: whether the Turn is cancelled if its follower leaves before its end
    cancel_on_close: bool = True
    #: whether the follower has asked for the Turn: then it gets the acceptance, and a failure is raised
    is_asker: bool = True
    #: whether to create the stream, because the event is accepted later, without one
    opens: bool = False
    #: what the follower has received before
    after: Position | None = None


class TurnFollower:
    """Follows one Turn or call. One thread iterates, any may close.

    ``begin`` returns the request; it submits it if the follower asks for the Turn.
    """

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        event_id: str,
        begin: Callable[[], PendingCall],
        terms: FollowTerms,
        *,
        broker_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.event_id = event_id
        self._redis = redis
        self._key = keys.turn_stream(event_id)
        self._begin = begin
        self._broker_errors = broker_errors
        self._terms = terms
        self._reading = StreamReading(event_id, terms.after)
        self._progress: Progress | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._pending: PendingCall | None = None
        self._has_ended = False
        self._has_read = False
        #: how the Turn has ended
        self.result: ToolCallResult | None = None
        #: whether it was told to stop
        self.is_called_off = False

    def events(self, *, ticks: bool = False) -> Generator[TurnEvent | None]:
        """Yield the events of :meth:`followed` without their cursors."""
        followed = self.followed(ticks=ticks)
        try:
            for one in followed:
                yield None if one is None else one.event
        finally:
            followed.close()

    def followed(self, *, ticks: bool = False) -> Generator[FollowedEvent | None]:
        """Begin, and yield the events; with ``ticks``, yield ``None`` while there are none.

        Closing the generator before the end cancels the Turn if that is wanted.

        Raises:
            HandoffError: the agent has failed, and the follower has asked for the Turn.
            HandoffTimeoutError: it has not answered in time, and was told to stop.
            BrokerUnreachableError: Redis could not be reached until then.
            GoondanError: what ``begin`` raises.
        """
        until = time.monotonic() + self._terms.timeout
        try:
            if self._terms.opens:
                self._open(until)
            if self._take(self._begin()) and self._terms.is_asker:
                yield FollowedEvent(TurnAccepted(id=self.event_id), self._reading.cursor)
            while not self._is_closed:
                has_news = False
                for event in self._read(until):
                    has_news = True
                    yield event
                    if isinstance(event.event, TurnEnded):
                        return
                if ticks and not has_news:
                    yield None
        except BrokerUnreachableError:
            self._has_ended = True  # as far as can be known
            if not self._is_closed:
                raise
        finally:
            self.close()

    def close(self) -> None:
        """Stop following, and cancel a Turn that has not ended if that is wanted.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            pending = self._pending
        if not was_closed:
            self._leave(pending)

    def _take(self, pending: PendingCall) -> bool:
        """Keep the request; if the follower was closed meanwhile, call it off."""
        with self._lock:
            self._pending = pending
            is_closed = self._is_closed
        if is_closed:
            self._leave(pending)
        return not is_closed

    def _leave(self, pending: PendingCall | None) -> None:
        if pending is not None and self._terms.cancel_on_close and not self._has_ended:
            self._call_off(pending)

    def _call_off(self, pending: PendingCall) -> None:
        self._has_ended = True
        with suppress(CallClosedError, CallNotFoundError):
            pending.cancel()
            self.is_called_off = True

    def _open(self, until: float) -> None:
        with self._broker_errors(), retrying(until), self._redis.pipeline() as pipe:
            pipe.xadd(self._key, {"entries": b"[]"})
            pipe.expire(self._key, _OPENED_SECONDS)
            pipe.execute()

    def _read(self, until: float) -> Iterator[FollowedEvent]:
        """Wait for up to TICK_SECONDS, and yield the events that have arrived."""
        # what has ended already has perhaps no stream: it is looked at at once
        longest = TICK_SECONDS if self._has_read or self._terms.is_asker else 0.0
        wait = max(1, round(1000 * min(longest, until - time.monotonic())))
        self._has_read = True
        with self._broker_errors(), retrying(until, is_needless=lambda: self._is_closed):
            found = self._entries(wait)
        is_due = not found or time.monotonic() >= until
        for _, rows in rows_of_streams(found):
            yield from self._reading.taken(rows)
        if (is_due or self._reading.has_ended) and not self._is_closed:
            yield from self._look(cast(PendingCall, self._pending), until)

    def _entries(self, wait: int) -> Any:
        """Wait for entries for so many ms; there are none if another program has overwritten the stream."""
        try:
            return self._redis.xread({self._key: self._reading.last_id}, count=READ_AT_ONCE, block=wait)
        except ResponseError as error:
            if not is_script_fault(error):
                raise
            time.sleep(wait / 1000)
            return None

    def _look(self, pending: PendingCall, until: float) -> Iterator[FollowedEvent]:
        """Yield the end if it is there, else the progress if there is any."""
        try:
            with retrying(until, is_needless=lambda: self._is_closed):
                self.result = pending.result(0, wait_pending=True)
        except WaitTimeout as error:
            if time.monotonic() >= until:
                self._call_off(pending)
                raise self._terms.late or error from error
            yield from self._progressed(pending)
        else:
            self._has_ended = True
            if self._terms.is_asker:
                request_result(self.result)  # raises the error of an agent that has failed
            yield FollowedEvent(TurnEnded.of(self.result), self._reading.cursor)

    def _progressed(self, pending: PendingCall) -> Iterator[FollowedEvent]:
        progress = None
        with suppress(BrokerUnreachableError, CallNotFoundError):  # the next read waits for Redis
            progress = pending.progress()
        if progress is not None and progress != self._progress:
            self._progress = progress
            yield FollowedEvent(TurnProgress(progress=progress), self._reading.cursor)

"""The events of a Turn for its client: a Redis stream that the client creates before it asks.

Workers write to the stream while it exists (``workers/thinking/turn_stream.py``), and ``finish_event.lua``
writes the end. An entry has one field, ``entries``: a list of the wire forms of the events below. When a Turn
is run again because its worker died, earlier events are written again; the client drops the repetitions.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from redis import Redis
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.connections import reporting_outages, retrying
from broker_config.keys import Keys
from goondan_tasks.authoring.handoff import request_result
from goondan_tasks.authoring.tool_api import RequestResult
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    CallClosedError,
    CallNotFoundError,
    HandoffError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import JsonObject, ToolCallError, ToolCallResult, WireModel
from goondan_tasks.contract.output import Progress

logger = logging.getLogger(__name__)

#: how long a read waits for entries before the client looks for the result and the progress
TICK_SECONDS = 0.5

#: how many entries one read takes
READ_AT_ONCE = 500

#: how long the stream of a Turn without a time limit is kept
LONGEST_SECONDS = 7 * 86_400


class TurnAccepted(WireModel):
    """The Turn is in the agent's mailbox. ``id`` is the request's identity, for ``goondan cancel``."""

    type: Literal["accepted"] = "accepted"
    id: str


class _Piece(WireModel):
    type: Literal["text", "reasoning"]
    #: counts the Steps of the Turn from 0
    step: int
    text: str
    #: distinguishes the answers to one Step
    answer_id: str = ""


class TextDelta(_Piece):
    """The next characters of the model's answer."""

    type: Literal["text"] = "text"


class ReasoningDelta(_Piece):
    """The next characters of the model's reasoning, if the provider sends it."""

    type: Literal["reasoning"] = "reasoning"


class AnswerRestarted(WireModel):
    """The model is asked again in this Step: its text and reasoning of the Step so far are void.

    The worker died, the stream was cut, or the answer could not be used.
    """

    type: Literal["restart"] = "restart"
    step: int
    answer_id: str = ""


class ToolCalled(WireModel):
    """The model has called a tool."""

    type: Literal["tool_call"] = "tool_call"
    step: int
    #: the model's name for the call; it may come again in another Step
    id: str
    #: the call's identity in the ledger
    call_id: str
    tool: str
    #: text if the model's arguments are not JSON
    args: Any = None


class ToolAnswered(WireModel):
    """A tool call has its result, which may be an interim one (``status`` is ``pending``)."""

    type: Literal["tool_result"] = "tool_result"
    step: int
    id: str
    call_id: str
    tool: str
    status: Literal["ok", "error", "pending"]
    output: Any = None
    error: ToolCallError | None = None
    duration_ms: float | None = None
    #: what a pending result waits for
    awaits: Literal["completion", "approval"] | None = None

    @classmethod
    def of(cls, result: ToolCallResult, step: int) -> "ToolAnswered":
        """Make the event for a result."""
        return cls(
            step=step,
            id=result.tool_call_id,
            call_id=result.meta.id,
            tool=result.tool_name,
            status=result.status,
            output=result.output,
            error=result.error,
            duration_ms=result.meta.duration_ms,
            awaits=result.meta.awaits,
        )


class TokensUsed(WireModel):
    """A model has answered: ``usage`` has the tokens, by ``input``, ``output``, ``cached``, ``reasoning``."""

    type: Literal["usage"] = "usage"
    step: int
    usage: dict[str, int]
    #: distinguishes the requests of one Step
    request_id: str = ""


class TurnProgress(WireModel):
    """The latest ``ctx.progress`` of the agent's code."""

    type: Literal["progress"] = "progress"
    progress: Progress


class TurnEnded(WireModel):
    """The agent has answered; always the last event."""

    type: Literal["end"] = "end"
    result: RequestResult
    #: for an agent that thinks: its tokens as in :class:`TokensUsed`, and why the Turn has ended
    usage: dict[str, int] | None = None
    finish_reason: str | None = None
    duration_ms: float | None = None

    @classmethod
    def of(cls, result: ToolCallResult) -> "TurnEnded":
        """Make the event for the end; raises HandoffError if the agent has failed."""
        meta = result.meta
        return cls(
            result=request_result(result),
            usage=meta.usage,
            finish_reason=meta.finish_reason,
            duration_ms=meta.duration_ms,
        )


#: the events that workers write
Told = TextDelta | ReasoningDelta | AnswerRestarted | ToolCalled | ToolAnswered | TokensUsed
TurnEvent = TurnAccepted | Told | TurnProgress | TurnEnded

_TOLD: TypeAdapter[Told] = TypeAdapter(
    Annotated[Told, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)
_END = "end"


class EventFilter:
    """Drops repeated events, and pieces of answers that are void."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, ...]] = set()
        #: by Step: the current answer, and whether some of it was passed on
        self._answers: dict[int, tuple[str, bool]] = {}
        self._void: set[str] = set()

    def passed(self, told: Told) -> Iterator[TurnEvent]:
        """Yield the event if it is new to the client, and a restart before a new answer's first piece."""
        if isinstance(told, _Piece | AnswerRestarted):
            if told.answer_id in self._void:
                return
            before, was_told = self._answers.get(told.step, (told.answer_id, False))
            if before != told.answer_id:
                self._void.add(before)
                if was_told:
                    yield AnswerRestarted(step=told.step, answer_id=told.answer_id)
                was_told = False
            is_piece = isinstance(told, _Piece)
            self._answers[told.step] = told.answer_id, was_told or is_piece
            if is_piece:
                yield told
        elif (mark := _mark(told)) not in self._seen:
            self._seen.add(mark)
            yield told


def _mark(told: ToolCalled | ToolAnswered | TokensUsed) -> tuple[str, ...]:
    """Return the key that distinguishes an event from all others of its Turn."""
    if isinstance(told, TokensUsed):
        return told.type, str(told.step), told.request_id
    return told.type, told.call_id, getattr(told, "status", "")


class TurnFollower:
    """Follows one Turn from before it begins. One thread iterates, any may close.

    ``begin`` submits the event, once there is a stream to write to. Past ``timeout`` seconds the Turn is
    called off, and ``late`` is raised.
    """

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        event_id: str,
        begin: Callable[[], PendingCall],
        *,
        broker_errors: Callable[[], AbstractContextManager[None]],
        late: HandoffError | None = None,
        timeout: float = math.inf,
        cancel_on_close: bool = True,
    ) -> None:
        self.event_id = event_id
        self._redis = redis
        self._key = keys.turn_stream(event_id)
        self._begin = begin
        self._broker_errors = broker_errors
        self._timeout = timeout
        self._late = late
        self._cancels = cancel_on_close
        self._filter = EventFilter()
        self._last_id = "0"
        self._progress: Progress | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._pending: PendingCall | None = None
        self._has_ended = False
        #: how the Turn has ended
        self.result: ToolCallResult | None = None
        #: whether it was told to stop
        self.is_called_off = False

    def events(self, *, ticks: bool = False) -> Generator[TurnEvent | None]:
        """Begin the Turn, and yield its events; with ``ticks``, yield ``None`` while there are none.

        Closing the generator before the end cancels the Turn if that is wanted.

        Raises:
            HandoffError: the agent has failed.
            HandoffTimeoutError: it has not answered in time, and was told to stop.
            BrokerUnreachableError: Redis could not be reached until then.
            GoondanError: what ``begin`` raises.
        """
        until = time.monotonic() + self._timeout
        try:
            self._open(until)
            if self._take(self._begin()):
                yield TurnAccepted(id=self.event_id)
            while not self._is_closed:
                has_news = False
                for event in self._read(until):
                    has_news = True
                    yield event
                    if isinstance(event, TurnEnded):
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
        """Stop following, cancel a Turn that has not ended if that is wanted, and delete the stream.

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
        if pending is not None and self._cancels and not self._has_ended:
            self._call_off(pending)
        with suppress(RedisError), reporting_outages():  # else it expires
            self._redis.unlink(self._key)

    def _call_off(self, pending: PendingCall) -> None:
        self._has_ended = True
        with suppress(CallClosedError, CallNotFoundError):
            pending.cancel()
            self.is_called_off = True

    def _open(self, until: float) -> None:
        """Create the stream; it outlives the wait in the mailbox and the run, each limited by the timeout."""
        seconds = LONGEST_SECONDS if self._timeout == math.inf else 2 * math.ceil(self._timeout) + 60
        with self._broker_errors(), retrying(until), self._redis.pipeline() as pipe:
            pipe.xadd(self._key, {"entries": b"[]"})
            pipe.expire(self._key, seconds)
            self._last_id = pipe.execute()[0].decode()

    def _read(self, until: float) -> Iterator[TurnEvent]:
        """Wait for up to TICK_SECONDS, and yield the events that have arrived."""
        wait = max(1, round(1000 * min(TICK_SECONDS, until - time.monotonic())))
        pending = cast(PendingCall, self._pending)
        with self._broker_errors(), retrying(until, is_needless=lambda: self._is_closed):
            found = self._redis.xread({self._key: self._last_id}, count=READ_AT_ONCE, block=wait)
        is_due = not found or time.monotonic() >= until
        for entry_id, fields in _rows(found):
            self._last_id = entry_id.decode()
            for entry in _entries(fields.get(b"entries", b"[]")):
                is_due = is_due or entry.get("type") == _END
                yield from self._parsed(entry)
        if is_due and not self._is_closed:
            yield from self._look(pending, until)

    def _parsed(self, entry: JsonObject) -> Iterator[TurnEvent]:
        if entry.get("type") == _END:
            return
        try:
            told = _TOLD.validate_python(entry)
        except ValidationError as error:  # a newer worker's, or damaged: the result is what counts
            logger.info("an entry of the stream of event %s cannot be read: %s", self.event_id, error)
            return
        yield from self._filter.passed(told)

    def _look(self, pending: PendingCall, until: float) -> Iterator[TurnEvent]:
        """Yield the end if it is there, else the progress if there is any."""
        try:
            with retrying(until, is_needless=lambda: self._is_closed):
                self.result = pending.result(0)
        except WaitTimeout as error:
            if time.monotonic() >= until:
                self._call_off(pending)
                raise self._late or error from error
            yield from self._progressed(pending)
        else:
            self._has_ended = True
            yield TurnEnded.of(self.result)

    def _progressed(self, pending: PendingCall) -> Iterator[TurnEvent]:
        progress = None
        with suppress(BrokerUnreachableError, CallNotFoundError):  # the next read waits for Redis
            progress = pending.progress()
        if progress is not None and progress != self._progress:
            self._progress = progress
            yield TurnProgress(progress=progress)


def _rows(found: Any) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of the one stream, as either version of Redis' protocol gives them."""
    for rows in found.values() if isinstance(found, dict) else (one[1] for one in found or ()):
        yield from rows


def _entries(data: bytes) -> list[JsonObject]:
    try:
        entries = serializer.decode(data)
    except serializer.NotJsonError:
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

"""A call that was submitted: ask for its status, cancel it, wait for its result, or ``await`` it."""

import asyncio
import base64
import contextlib
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.connections import RetryPeriod, answers_of, retrying
from broker_config.refusals import refusal_text
from goondan_tasks.client.arguments import checking_arguments, end_of_wait
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.client.results import Expected, ResultListener
from goondan_tasks.client.threads import ClientThreads
from goondan_tasks.contract.calls import draft_call
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    CallNotFoundError,
    GoondanError,
    NoOutputError,
    OutputGoneError,
    ToolError,
    ToolInputValidationError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import ToolCallError, ToolCallResult
from goondan_tasks.contract.names import READ_OUTPUT_TOOL
from goondan_tasks.contract.output import Progress
from goondan_tasks.contract.wording import shown
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import REPAIR, CallRecord
from goondan_tasks.ledger.tidying import tidy_queues

if TYPE_CHECKING:
    from goondan_tasks.client.connection import ClientConnection


class Sweeper:
    """Sweeps at most once in ``seconds``, however many threads ask for it."""

    def __init__(self, sweep: Callable[[], object], seconds: float) -> None:
        self._sweep = sweep
        self._seconds = seconds
        self._due = 0.0
        self._lock = threading.Lock()

    def sweep(self) -> bool:
        """Sweep if it is time; return whether that was so.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        with self._lock:
            now = time.monotonic()
            if now < self._due:
                return False
            self._due = now + self._seconds
        self._sweep()
        return True


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

#: how often a client looks for results whose notifications were missed, however many threads wait
LOOK_SECONDS = 2.0

#: how many calls are looked for, and cancelled, in one trip
LOOK_BATCH, CANCEL_BATCH = 500, 200

#: the longest id of a call, in bytes
LONGEST_ID = 200


class CallService:
    """A client's operations on calls by their ids, and the polling that makes up for missed notifications.

    Waiting threads and tasks poll periodically, all in one trip, and sweep, so that no wait lasts forever,
    even without workers.
    """

    def __init__(self, ledger: Ledger, reaper: Reaper) -> None:
        self._ledger = ledger
        self._reaper = reaper
        # when a client was dropped unclosed, and all handles of its calls are gone, nobody closes it
        is_wanted = weakref.ref(self)
        self.listener = ResultListener(ledger.redis, ledger.keys, ledger.result, is_wanted=is_wanted)
        self._sweeper = Sweeper(lambda: reaper.sweep("producer"), LOOK_SECONDS)
        self._polled_at = time.monotonic()
        self._is_polling = threading.Lock()
        self.threads = ClientThreads()
        #: the calls that the ledger did not know at the last poll
        self._unknown: frozenset[str] = frozenset()

    def pending(self, call_ids: Sequence[str]) -> list["PendingCall"]:
        """Return calls whose results are expected from now on."""
        expected = self.listener.expect(call_ids)
        return [PendingCall(*one, self) for one in zip(call_ids, expected, strict=True)]

    def refused(self, call_id: str, error: Exception) -> "PendingCall":
        """Return a call whose result is ``error``, although the id is that of another call."""
        expected = Expected()
        expected.settle(error)
        return PendingCall(call_id, expected, self)

    def glance(self, pending: "PendingCall") -> None:
        """Wait for a result as :meth:`ResultListener.glance` does."""
        self.listener.glance(pending._expected)

    def look(self, call_id: str) -> str:
        """Read a call's status, and hand over its result if there is one; sweep if it is time.

        Raises:
            CallNotFoundError: the call is unknown or expired, or cannot be read.
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self.broker_errors():
            result = self.result(call_id)
            if result is None and self._sweeper.sweep():
                result = self.result(call_id)
            record = self._ledger.record(call_id)
        if result is not None:
            self.listener.resolve(call_id, result, is_asked=True)
        elif record is None:
            raise not_found(call_id)
        return record.status if record is not None else "done"

    def result(self, call_id: str) -> ToolCallResult | None:
        """Read a call's stored result, if there is one.

        Raises:
            CallNotFoundError: it is damaged, or of a newer version.
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        try:
            return self._ledger.result(call_id)
        except ValueError as error:
            raise unreadable(call_id, error) from error

    def record(self, call_id: str) -> CallRecord:
        """Return the ledger's record of a call; raises as :meth:`look`."""
        require_possible(call_id)
        with self.broker_errors():
            record = self._ledger.record(call_id)
        if record is None:
            raise not_found(call_id)
        return record

    def cancel(self, call_id: str) -> None:
        """Cancel a call; see :meth:`PendingCall.cancel`."""
        require_possible(call_id)
        with self.broker_errors():
            self._reaper.cancel(call_id, "producer")

    def run_now(self, call_id: str) -> None:
        """Queue a scheduled call at once; see :meth:`PendingCall.run_now`."""
        require_possible(call_id)
        with self.broker_errors():
            self._reaper.run_now(call_id)

    def cancel_many(self, call_ids: Sequence[str], watch: Callable[[int], object] | None) -> list[str]:
        """Cancel calls by their ids, and remove their messages; see :meth:`Client.cancel_many`."""
        for call_id in call_ids:
            require_possible(call_id)
        cancelled = dict[str, str]()
        with self.broker_errors():
            for start in range(0, len(call_ids), CANCEL_BATCH):
                batch = call_ids[start : start + CANCEL_BATCH]
                cancelled |= self._reaper.cancel_many(batch, "producer")
                if watch is not None:
                    watch(start + len(batch))
            tidy_queues(self._ledger, {agent for agent in cancelled.values() if agent})
        return list(cancelled)

    @property
    def is_poll_due(self) -> bool:
        """Whether the last successful poll is LOOK_SECONDS ago."""
        return time.monotonic() - self._polled_at >= LOOK_SECONDS

    def poll(self, call_id: str) -> bool:
        """Look for all expected results, if it is time; return whether the ledger does not know this call.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        if self.is_poll_due and self._is_polling.acquire(blocking=False):
            try:
                with self.broker_errors():
                    self._poll()
            finally:
                self._is_polling.release()
        return call_id in self._unknown

    def _poll(self) -> None:
        begun_at = time.monotonic()
        self._sweeper.sweep()
        self._unknown = frozenset(self._look_for(self.listener.expected_ids()))
        self._polled_at = begun_at

    def _look_for(self, call_ids: Sequence[str]) -> Iterator[str]:
        """Hand over the results that are stored; yield the calls that have no record."""
        keys = self._ledger.keys
        for begin in range(0, len(call_ids), LOOK_BATCH):
            batch = call_ids[begin : begin + LOOK_BATCH]
            with self._ledger.redis.pipeline(transaction=False) as pipe:
                for call_id in batch:
                    pipe.hmget(keys.call(call_id), "status", "result")
                answers = answers_of(pipe)
            for call_id, answer in zip(batch, answers, strict=True):
                if isinstance(answer, RedisError):
                    self.listener.fail(call_id, unreadable(call_id, refusal_text(answer)))
                    continue
                status, stored = answer
                if stored is not None:
                    self._hand_over(call_id, stored)
                elif status is None:
                    yield call_id

    def _hand_over(self, call_id: str, stored: bytes) -> None:
        try:
            self.listener.resolve(call_id, ToolCallResult.from_json(stored))
        except ValueError as error:
            self.listener.fail(call_id, unreadable(call_id, error))

    def broker_errors(self) -> AbstractContextManager[None]:
        """Turn the errors of Redis into ours, for the length of a ``with`` block."""
        return broker_errors(self._ledger.settings.redis_url)


class PendingCall:
    """A submitted call. Waiting may be repeated, and done from any thread or event loop."""

    def __init__(self, call_id: str, expected: Expected, calls: CallService) -> None:
        self.id = call_id
        self._expected = expected
        self._calls = calls
        #: whether it was submitted before, so that its result may be old
        self.was_known = False

    def __repr__(self) -> str:
        return f"PendingCall({self.id!r})"

    def status(self) -> str:
        """Return ``scheduled``, ``queued``, ``running``, ``pending``, ``done`` or ``dead``.

        Raises:
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        return self._calls.look(self.id)

    def run_now(self) -> None:
        """Queue the call at once if it is scheduled for later; raises as :meth:`cancel` does."""
        self._calls.run_now(self.id)

    def cancel(self) -> None:
        """Cancel the call: its result will be ``E_TOOL_CANCELLED``. Doing so twice is fine.

        A queued or scheduled call ends at once and never runs, a running one when its worker notices. One
        that its worker has held for a quarter of a second without beginning it never begins.

        Raises:
            CallClosedError: it has its final result already.
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        self._calls.cancel(self.id)

    def progress(self) -> Progress | None:
        """Return the handler's latest ``ctx.progress``, if there is one.

        Raises as :meth:`status` does.
        """
        return self._calls.record(self.id).progress

    def result(self, timeout: float | None = None, wait_pending: bool = False) -> ToolCallResult:
        """Wait for the result, at most ``timeout`` seconds; ``None`` waits as long as it takes.

        An outage of Redis does not end the wait early: results that were stored meanwhile are read
        afterwards. A ``pending`` result is an interim record. It is returned while there is no final one,
        unless ``wait_pending`` asks to wait for that.

        Raises:
            WaitTimeout: only the waiting ended; the call goes on.
            ToolInputValidationError: ``timeout`` is not a number. One below 0 means 0.
            CallNotFoundError: its record has expired.
            BrokerUnreachableError: Redis cannot be reached when the time is up, or refuses to work.
        """
        end = end_of_wait(timeout)
        if self._is_known_as_interim():
            with self._retrying(end):
                self.status()
        while True:
            self._calls.listener.wait(self._expected, _patience(end))
            is_over = end is not None and time.monotonic() >= end
            result = self._arrived(wait_pending)
            if result is None and not self._expected.is_there:
                with self._retrying(end):
                    self._look(is_over)
                result = self._arrived(wait_pending)
            if result is not None:
                return result
            if is_over:
                raise WaitTimeout(self.id, timeout or 0.0)

    async def wait(self, timeout: float | None = None, wait_pending: bool = False) -> ToolCallResult:
        """Wait for the result without blocking the event loop; raises as :meth:`result` does."""
        end = end_of_wait(timeout)
        if self._is_known_as_interim():
            with self._retrying(end):
                await self.in_thread(self.status)
        while True:
            await self._until_there(_patience(end))
            is_over = end is not None and time.monotonic() >= end
            result = self._arrived(wait_pending)
            if result is None and not self._expected.is_there and (is_over or self._calls.is_poll_due):
                with self._retrying(end):
                    await self.in_thread(self._look, is_over)
                result = self._arrived(wait_pending)
            if result is not None:
                return result
            if is_over:
                raise WaitTimeout(self.id, timeout or 0.0)

    async def in_thread(
        self, function: Callable[Parameters, Result], /, *args: Parameters.args, **fields: Parameters.kwargs
    ) -> Result:
        """Call a blocking function on a thread of the client."""
        return await self._calls.threads.run(function, *args, **fields)

    async def _until_there(self, seconds: float) -> None:
        if self._expected.is_there:
            return
        loop = asyncio.get_running_loop()
        came: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not came.done():
                came.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle)

        with self._calls.listener.awaited(), self._expected.waking(wake):
            await asyncio.wait({came}, timeout=seconds)

    def _retrying(self, end: float | None) -> AbstractContextManager[RetryPeriod]:
        """Retry during an outage until the wait ends, or the result has arrived by other means."""
        expected = self._expected
        return retrying(math.inf if end is None else end, is_needless=lambda: expected.is_there)

    def _arrived(self, wait_pending: bool) -> ToolCallResult | None:
        """Return the awaited result, if it has arrived; after an interim one, expect the next."""
        if wait_pending and self._follow_interim():
            return None
        return self._read()

    def _is_known_as_interim(self) -> bool:
        """Follow interim results; return whether only the ledger has the last one."""
        self._follow_interim()
        return self._expected.after is not None and not self._expected.is_there

    def _follow_interim(self) -> bool:
        """Expect the result after the last interim one; return whether there was one."""
        has_followed = False
        while (result := self._read()) is not None and result.status == "pending":
            self._expected = self._expected.following or self._calls.listener.expect([self.id])[0]
            has_followed = True
        return has_followed

    def _read(self) -> ToolCallResult | None:
        """Return the result that has arrived; if it cannot be read, expect the ledger's copy instead."""
        try:
            return self._expected.result()
        except ValueError as error:
            logger.warning("a notification of call %r cannot be read: %s", self.id, error)
            [self._expected] = self._calls.listener.expect([self.id])
            return None

    def _look(self, is_over: bool) -> None:
        """Poll for all expected results; when the wait is over, look for this call's result."""
        try:
            if is_over or self._calls.poll(self.id):
                self.status()
        except BrokerUnreachableError:
            if not self._expected.is_there:
                raise

    def __await__(self) -> Generator[Any, None, ToolCallResult]:
        return self.wait().__await__()


class AsyncPendingCall:
    """A submitted call in an asyncio program: a :class:`PendingCall` whose methods are coroutines.

    ``await call`` waits for the result as ``await call.result()`` does.
    """

    def __init__(self, pending: PendingCall) -> None:
        self.id = pending.id
        self._pending = pending

    def __repr__(self) -> str:
        return f"AsyncPendingCall({self.id!r})"

    async def status(self) -> str:
        """Return the status; see :meth:`PendingCall.status`."""
        return await self._pending.in_thread(self._pending.status)

    async def run_now(self) -> None:
        """Queue the call at once; see :meth:`PendingCall.run_now`."""
        await self._pending.in_thread(self._pending.run_now)

    async def cancel(self) -> None:
        """Cancel the call; see :meth:`PendingCall.cancel`. Cancelling a task that waits does not."""
        await self._pending.in_thread(self._pending.cancel)

    async def progress(self) -> Progress | None:
        """Return the handler's latest ``ctx.progress``; see :meth:`PendingCall.progress`."""
        return await self._pending.in_thread(self._pending.progress)

    async def result(self, timeout: float | None = None, wait_pending: bool = False) -> ToolCallResult:
        """Wait for the result, which takes no thread; see :meth:`PendingCall.result`."""
        return await self._pending.wait(timeout, wait_pending)

    #: the earlier name of ``result``
    wait = result

    def __await__(self) -> Generator[Any, None, ToolCallResult]:
        return self.result().__await__()


class ExpectedCall(PendingCall):
    """A call that is about to be submitted: an outage does not end the waiting for it."""

    def __init__(
        self, call_id: str, expected: Expected, calls: CallService, look: Callable[[str], str]
    ) -> None:
        super().__init__(call_id, expected, calls)
        self._look_once = look

    def status(self) -> str:
        """Return the call's status; raises as the function that was given to look for it."""
        return self._look_once(self.id)

    def _look(self, is_over: bool) -> None:
        with contextlib.suppress(BrokerUnreachableError):
            super()._look(is_over)


def require_possible(call_id: str) -> None:
    """Refuse an id that no call can have, before Redis is asked.

    Raises:
        CallNotFoundError: the id is too long, or has lone surrogates.
        ToolInputValidationError: it is not text.
    """
    if not isinstance(call_id, str):
        raise ToolInputValidationError(f"The id of a call is text, not {shown(call_id)}.")
    try:
        size = len(call_id.encode())
    except UnicodeEncodeError as error:
        raise not_found(call_id) from error
    if size > LONGEST_ID:
        raise not_found(f"{call_id[:LONGEST_ID]}…")


def not_found(call_id: str) -> CallNotFoundError:
    return CallNotFoundError(
        f"No call {call_id!r}: it is unknown, expired or damaged, or this version cannot read it."
    )


def unreadable(call_id: str, reason: object) -> CallNotFoundError:
    return CallNotFoundError(
        f"The record of call {call_id!r} cannot be read, it is damaged or of a newer version: {reason}",
        suggestion=REPAIR,
    )


def _patience(end: float | None) -> float:
    """Return how long to wait before looking again, in seconds."""
    return LOOK_SECONDS if end is None else max(0.0, min(LOOK_SECONDS, end - time.monotonic()))


#: waits for the call that reads a part
Wait = Callable[[PendingCall], ToolCallResult]


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A part of an output: its bytes, where they begin, and how many the whole output has."""

    data: bytes
    offset: int
    size: int

    @property
    def next_offset(self) -> int | None:
        """Where the next part begins; ``None`` after the last one."""
        end = self.offset + len(self.data)
        return end if end < self.size else None


@checking_arguments
class CallOutput:
    """One call's output, to be read in parts."""

    def __init__(self, result: ToolCallResult, connection: "ClientConnection") -> None:
        """Take the call's result; parts that it does not contain are read by calls over ``connection``.

        Raises:
            NoOutputError: the call did not succeed.
        """
        if result.status != "ok":
            how = "is pending" if result.error is None else f"ended with an error, {result.error.code}"
            raise NoOutputError(f"Call {result.meta.id} has no output: it {how}.")
        self.result = result
        self._connection = connection

    def ask(self, offset: int = 0, limit: int | None = None) -> OutputPart | PendingCall:
        """Return a part of at most ``limit`` bytes, or the call whose result contains it (:meth:`take`).

        Raises:
            ToolInputValidationError: the offset or the limit is out of range.
            AgentNotFoundError, BrokerUnreachableError: no worker can be asked.
        """
        meta = self.result.meta
        if meta.output_file is None:
            return self._own_part(offset, limit)
        args = {"path": meta.output_file, "offset": offset}
        draft = draft_call(
            {
                "agentName": meta.agent_name,
                "instanceKey": meta.instance_key,
                "toolName": READ_OUTPUT_TOOL,
                "args": args if limit is None else {**args, "limit": limit},
            }
        )
        return self._connection.submit_drafts([draft])[0]

    def take(self, offset: int, asked: PendingCall, answer: ToolCallResult) -> OutputPart:
        """Read the part from its call's result, and delete that result, which is as large as one may be.

        Raises:
            OutputGoneError: the file no longer exists.
            ToolInputValidationError: ``offset`` is past its end.
            ToolError: the call failed; its code says how.
        """
        self._connection.forget(asked.id, self.result.meta.agent_name)
        if answer.error is not None:
            raise raised(answer.error, OutputGoneError, ToolInputValidationError)
        return OutputPart(base64.b64decode(answer.output["data"]), offset, answer.output["size"])

    def read(
        self, offset: int = 0, limit: int | None = None, *, wait: Wait = PendingCall.result
    ) -> OutputPart:
        """Return a part; ``wait`` waits for the call that reads it, if one is needed."""
        asked = self.ask(offset, limit)
        return asked if isinstance(asked, OutputPart) else self.take(offset, asked, wait(asked))

    def parts(self, offset: int = 0, *, wait: Wait = PendingCall.result) -> Iterator[OutputPart]:
        """Yield the parts from ``offset`` to the end, each when the one before has been used."""
        following: int | None = offset
        while following is not None:
            part = self.read(following, wait=wait)
            yield part
            following = part.next_offset

    def _own_part(self, offset: int, limit: int | None) -> OutputPart:
        data = serializer.encode(self.result.output)
        if offset > len(data):
            raise ToolInputValidationError(
                f"Offset {offset} is past the end: the output has {len(data)} bytes."
            )
        end = len(data) if limit is None else offset + limit
        return OutputPart(data[offset:end], offset, len(data))


def raised(error: ToolCallError, *kinds: type[GoondanError]) -> GoondanError:
    """Return a result's error as an exception: the one of ``kinds`` with its code, or else ToolError."""
    kind = next((kind for kind in kinds if kind.code == error.code), ToolError)
    return kind(error.message, code=error.code, suggestion=error.suggestion)

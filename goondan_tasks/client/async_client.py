"""The client for asyncio, derived from :class:`Client`: its methods run in a thread.

Only methods that wait are written here, because waiting for a result must hold no thread.
"""

import asyncio
import functools
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from goondan_tasks.authoring.handoff import (
    EventFields,
    accepted,
    handoff_error,
    not_answered,
    request_result,
)
from goondan_tasks.authoring.tool_api import REQUEST_TIMEOUT_MS, RequestResult
from goondan_tasks.client.arguments import end_of_wait
from goondan_tasks.client.client import Client
from goondan_tasks.client.event_receiver import ReceivedEvent
from goondan_tasks.client.following import FOLLOWED_SECONDS
from goondan_tasks.client.pending_call import (
    LOOK_SECONDS,
    AsyncPendingCall,
    OutputPart,
    PendingCall,
    require_possible,
)
from goondan_tasks.client.reading import FollowedEvent, Position
from goondan_tasks.client.schedules import Schedules
from goondan_tasks.client.threads import ClientThreads
from goondan_tasks.client.turn_events import TurnAccepted, TurnEnded, TurnEvent
from goondan_tasks.client.turns import AsyncTurn, Turn
from goondan_tasks.contract.calls import CallFields
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    ToolCallConflictError,
    UnconfirmedError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import ToolCallResult

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Handles = TypeVar("Handles")

logger = logging.getLogger(__name__)

#: how long a trip may wait for a thread, at least; else as long as an outage is waited for
QUEUE_SECONDS = 3.0


def _in_thread(
    method: Callable[Concatenate[Client, Parameters], Result],
) -> Callable[Concatenate["AsyncClient", Parameters], Coroutine[Any, Any, Result]]:
    """Return a method of the client as a coroutine that runs it in a thread."""

    @functools.wraps(method)
    async def run(self: "AsyncClient", /, *args: Parameters.args, **fields: Parameters.kwargs) -> Result:
        bound: Callable[Parameters, Result] = getattr(self._client, method.__name__)
        return await _trip(self._client, partial(bound, *args, **fields))

    return run


async def _trip(client: Client, function: Callable[[], Result]) -> Result:
    """Call a function on a thread, for as long as an outage is waited for by default."""
    seconds = max(QUEUE_SECONDS, client.settings.connect_timeout_seconds)
    with client.retrying(None):  # bounds the retries on the thread
        return await client.threads.run_within(seconds, function)


def _with_handles(
    method: Callable[Concatenate[Client, Parameters], Result], handles: Callable[[Result], Handles]
) -> Callable[Concatenate["AsyncClient", Parameters], Coroutine[Any, Any, Handles]]:
    """Return a method that returns calls as a coroutine that returns AsyncPendingCalls."""
    in_thread = _in_thread(method)

    @functools.wraps(method)
    async def run(self: "AsyncClient", /, *args: Parameters.args, **fields: Parameters.kwargs) -> Handles:
        try:
            return handles(await in_thread(self, *args, **fields))
        except (ToolCallConflictError, UnconfirmedError) as error:
            error.calls = tuple(_all(error.calls))
            raise

    return run


def _all(calls: Iterable[PendingCall]) -> list[AsyncPendingCall]:
    return [AsyncPendingCall(call) for call in calls]


def _async_turn(
    begin: Callable[Concatenate[Client, Parameters], Turn],
) -> Callable[Concatenate["AsyncClient", Parameters], AsyncTurn]:
    """Return the method that begins a Turn as one that begins an AsyncTurn; neither sends anything."""

    @functools.wraps(begin)
    def run(self: "AsyncClient", /, *args: Parameters.args, **fields: Parameters.kwargs) -> AsyncTurn:
        return AsyncTurn(begin(self._client, *args, **fields).scope)

    return run


class AsyncClient:
    """A :class:`Client` whose methods never block the event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    async def connect(cls, url: str | None = None, *, bundle: Path | str | None = None) -> Self:
        """Make a client; see :meth:`Client.connect`."""
        return cls(await asyncio.to_thread(Client.connect, url, bundle=bundle))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    turn = _async_turn(Client.turn)
    submit = _with_handles(Client.submit, AsyncPendingCall)
    submit_many = _with_handles(Client.submit_many, _all)
    start_turn = _with_handles(Client.start_turn, AsyncPendingCall)
    start_call = _with_handles(Client.start_call, AsyncPendingCall)
    pending = _with_handles(Client.pending, AsyncPendingCall)
    record = _in_thread(Client.record)
    output = _in_thread(Client.output)
    run_now = _in_thread(Client.run_now)
    cancel = _in_thread(Client.cancel)
    cancel_all = _in_thread(Client.cancel_all)
    cancel_many = _in_thread(Client.cancel_many)
    describe = _in_thread(Client.describe)
    calls = _in_thread(Client.calls)
    call_page = _in_thread(Client.call_page)
    failures = _in_thread(Client.failures)
    ids_beginning_with = _in_thread(Client.ids_beginning_with)
    trace = _in_thread(Client.trace)
    traces = _in_thread(Client.traces)
    resolve = _in_thread(Client.resolve)
    complete_with_token = _in_thread(Client.complete_with_token)
    fail = _in_thread(Client.fail)
    approvals = _in_thread(Client.approvals)
    approval_count = _in_thread(Client.approval_count)
    approve = _in_thread(Client.approve)
    deny = _in_thread(Client.deny)
    approve_many = _in_thread(Client.approve_many)
    deny_many = _in_thread(Client.deny_many)
    dead_letters = _in_thread(Client.dead_letters)
    dead_letter = _in_thread(Client.dead_letter)
    replay = _with_handles(Client.replay, AsyncPendingCall)
    act_on_all = _in_thread(Client.act_on_all)
    drop = _in_thread(Client.drop)
    send = _in_thread(Client.send)
    reply = _in_thread(Client.reply)
    give_back = _in_thread(Client.give_back)
    agents = _in_thread(Client.agents)
    catalog = _in_thread(Client.catalog)
    workers = _in_thread(Client.workers)
    queues = _in_thread(Client.queues)
    agent_statuses = _in_thread(Client.agent_statuses)
    connections = _in_thread(Client.connections)
    call_counts = _in_thread(Client.call_counts)
    usage = _in_thread(Client.usage)
    handoffs = _in_thread(Client.handoffs)
    shutdown = _in_thread(Client.shutdown)
    pause = _in_thread(Client.pause)
    resume = _in_thread(Client.resume)
    paused = _in_thread(Client.paused)
    bundles = _in_thread(Client.bundles)
    bundle_files = _in_thread(Client.bundle_files)
    activate_revision = _in_thread(Client.activate_revision)
    grants = _in_thread(Client.grants)
    revoke_grant = _in_thread(Client.revoke_grant)
    forget_grant = _in_thread(Client.forget_grant)
    limits = _in_thread(Client.limits)
    audit = _in_thread(Client.audit)
    instances = _in_thread(Client.instances)
    mailbox = _in_thread(Client.mailbox)
    conversation = _in_thread(Client.conversation)
    files = _in_thread(Client.files)
    read_file = _in_thread(Client.read_file)
    delete_instance = _in_thread(Client.delete_instance)
    collect_garbage = _in_thread(Client.collect_garbage)

    async def close(self) -> None:
        """Close the client; see :meth:`Client.close`. Trips that wait for Redis do not delay it."""
        own = ClientThreads("goondan-close")
        try:
            await own.run(self._client.close)
        finally:
            own.close()

    @property
    def schedules(self) -> "AsyncSchedules":
        """The schedules; see :attr:`Client.schedules`."""
        return AsyncSchedules(self._client)

    async def call(
        self,
        agent: str,
        tool: str,
        args: Any = None,
        *,
        timeout: float | None = None,
        **fields: Unpack[CallFields],
    ) -> ToolCallResult:
        """Submit and wait; see :meth:`Client.call`."""
        end = end_of_wait(timeout)
        with self._client.retrying(timeout):
            pending = await self.submit(agent, tool, args, **fields)
        return await pending.result(None if end is None else max(0.0, end - time.monotonic()))

    async def read_output(
        self, call_id: str, offset: int = 0, limit: int | None = None, *, timeout: float | None = None
    ) -> OutputPart:
        """Read a part of a call's output; see :meth:`Client.read_output`."""
        output = await self.output(call_id)
        asked = await self._client.threads.run(output.ask, offset, limit)
        if isinstance(asked, OutputPart):
            return asked
        return await self._client.threads.run(output.take, offset, asked, await asked.wait(timeout))

    async def request(
        self,
        agent: str,
        input: Any = None,
        *,
        timeout: float = REQUEST_TIMEOUT_MS / 1000,
        is_async: bool = False,
        **fields: Unpack[EventFields],
    ) -> RequestResult:
        """Ask an agent, and wait for its answer; see :meth:`Client.request`.

        If the wait is cancelled, the agent is told to stop.
        """
        client = self._client
        ask = partial(client.ask, agent, input, timeout=timeout, **fields)
        asking = Undoable(ask, undo=lambda asked: client.call_off(asked[1]), threads=client.threads)
        with client.retrying(timeout):
            call, pending = await asking.result(client.threads.run(asking.run))
        if is_async:
            return accepted(call)
        try:
            patience = await client.threads.run(client.patience, call, timeout)
            return request_result(await pending.wait(patience))
        except WaitTimeout as error:
            await client.threads.run(client.call_off, pending)
            raise not_answered(call, timeout) from error
        except asyncio.CancelledError:
            await _left(client.threads.run(client.call_off, pending))
            raise

    async def request_stream(
        self,
        agent: str,
        input: Any = None,
        *,
        timeout: float = REQUEST_TIMEOUT_MS / 1000,
        cancel_on_close: bool = True,
        **fields: Unpack[EventFields],
    ) -> AsyncGenerator[TurnEvent]:
        """Ask an agent, and yield the events of its Turn; see :meth:`Client.request_stream`.

        When the loop is left early, ``contextlib.aclosing`` closes the stream and cancels the Turn;
        cancelling the task does the same.
        """
        client, keep = self._client, fields.get("keep")
        fields["keep"] = FOLLOWED_SECONDS if keep is None else keep
        ask = partial(client.ask, agent, input, timeout=timeout, **fields)
        asking = Undoable(ask, undo=lambda asked: client.call_off(asked[1]), threads=client.threads)
        with client.retrying(timeout):
            call, pending = await asking.result(client.threads.run(asking.run))
        events, is_open = self.follow(pending.id), cancel_on_close
        try:
            yield TurnAccepted(id=pending.id)
            end = time.monotonic() + await client.threads.run(client.patience, call, timeout)
            while (one := await _next_before(end, events)) is not None:
                if isinstance(one.event, TurnEnded):
                    is_open = False
                    if one.event.error is not None:
                        raise handoff_error(one.event.error)
                yield one.event
                if isinstance(one.event, TurnEnded):
                    return
            is_open = True
            raise not_answered(call, timeout)
        except BrokerUnreachableError:
            is_open = False  # as far as can be known
            raise
        finally:
            await events.aclose()
            if is_open:
                await _left(client.threads.run(client.call_off, pending))

    async def follow(self, turn_id: str, after: str | None = None) -> AsyncGenerator[FollowedEvent]:
        """Yield the events of a Turn, or of a call; see :meth:`Client.follow`.

        All streams that a client's coroutines follow are read by one thread, with one connection.
        """
        place, client = Position.of(after), self._client
        require_possible(turn_id)
        follower = client.hub.follower(turn_id)
        try:
            await client.hub.threads.run(client.hub.join, follower)
            async for event in follower.events(place):
                yield event
        finally:
            client.hub.leave(follower)

    async def receive(
        self, agent: str, instance_key: str | None = None, timeout: float | None = None
    ) -> ReceivedEvent | None:
        """Return the next event of an agent without an entry; see :meth:`Client.receive`.

        If the wait is cancelled, an event that is received anyway is given back.
        """
        client, is_cancelled = self._client, threading.Event()
        end = end_of_wait(timeout)

        def receive() -> ReceivedEvent | None:
            while True:
                rest = LOOK_SECONDS if end is None else max(0.0, end - time.monotonic())
                received = client.receive(agent, instance_key, min(LOOK_SECONDS, rest))
                is_over = end is not None and time.monotonic() >= end
                if received is not None or is_over or is_cancelled.is_set():
                    return received

        def give_back(received: ReceivedEvent | None) -> None:
            if received is not None:
                client.give_back(received)

        receiving = Undoable(receive, undo=give_back, threads=client.threads)
        own = ClientThreads("goondan-receive")  # so that those of the client stay free for short trips
        try:
            with client.retrying(math.inf if timeout is None else timeout):
                return await receiving.result(own.run(receiving.run))
        finally:
            is_cancelled.set()
            own.close()


def _of_schedules(
    method: Callable[Concatenate[Schedules, Parameters], Result],
) -> Callable[Concatenate["AsyncSchedules", Parameters], Coroutine[Any, Any, Result]]:
    """Return a method of a client's schedules as a coroutine that runs it in a thread."""

    @functools.wraps(method)
    async def run(self: "AsyncSchedules", /, *args: Parameters.args, **fields: Parameters.kwargs) -> Result:
        return await _trip(self._client, partial(method, self._client.schedules, *args, **fields))

    return run


class AsyncSchedules:
    """The :class:`~goondan_tasks.client.schedules.Schedules` of an AsyncClient."""

    def __init__(self, client: Client) -> None:
        self._client = client

    list = _of_schedules(Schedules.list)
    add = _of_schedules(Schedules.add)
    pause = _of_schedules(Schedules.pause)
    resume = _of_schedules(Schedules.resume)
    remove = _of_schedules(Schedules.remove)

    async def run(self, name: str, *, request_key: str | None = None) -> AsyncPendingCall:
        """Fire a schedule now; see :meth:`~goondan_tasks.client.schedules.Schedules.run`."""
        return AsyncPendingCall(await _of_schedules(Schedules.run)(self, name, request_key=request_key))


async def _next_before(end: float, events: AsyncGenerator[FollowedEvent]) -> FollowedEvent | None:
    """Return the next event; ``None`` if it does not come before ``end`` (``time.monotonic()``)."""
    try:
        return await asyncio.wait_for(anext(events), max(0.0, end - time.monotonic()))
    except TimeoutError:
        return None


async def _left(leaving: Awaitable[object]) -> None:
    """Wait until work that was cancelled is undone; an outage must not replace the cancellation."""
    try:
        await asyncio.shield(leaving)
    except BrokerUnreachableError as error:
        logger.warning("what was cancelled could not be undone, it may go on: %s", error)


class Undoable(Generic[Result]):
    """Work on a thread, which cannot be stopped: if it is cancelled, it is undone after it has finished."""

    def __init__(
        self, work: Callable[[], Result], undo: Callable[[Result], object], threads: ClientThreads
    ) -> None:
        self._work = work
        self._undo = undo
        self._threads = threads
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._done: list[Result] = []

    def run(self) -> Result:
        """Do the work, and undo it if it was cancelled meanwhile; to be run on a thread."""
        result = self._work()
        with self._lock:
            is_cancelled = self._is_cancelled
            self._done.append(result)
        if is_cancelled:
            self._undo(result)
        return result

    async def result(self, running: Awaitable[Result]) -> Result:
        """Return what ``running``, which runs :meth:`run`, returns."""
        try:
            return await running
        except asyncio.CancelledError:
            await _left(self._threads.run(self._cancel))
            raise

    def _cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            done = list(self._done)
        for result in done:
            self._undo(result)

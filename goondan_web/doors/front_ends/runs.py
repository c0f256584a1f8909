"""Runs: a Turn, and the Turns in which its agent goes on after answers of the page, one stream of events.

An agent whose call waits for an approval, or for what the page has to do, ends its Turn, and gets the result
of the call in another Turn. A run that decides contains both: it ends when nothing is left to come, or with
the calls that wait for a decision.
"""

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from goondan_tasks.authoring.handoff import EventFields
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.client.decisions import continuation
from goondan_tasks.client.following import CHAT_SECONDS
from goondan_tasks.client.pending_call import not_found
from goondan_tasks.client.reading import Position
from goondan_tasks.client.threads import ClientThreads
from goondan_tasks.client.turn_events import ToolAnswered, TurnEnded, TurnEvent
from goondan_tasks.contract.errors import (
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    ToolInputValidationError,
)
from goondan_tasks.contract.events import completion_id, is_event
from goondan_tasks.contract.messages import JsonObject, ToolCallError
from goondan_tasks.contract.names import call_identity
from goondan_tasks.fleet.http_tokens import READ
from goondan_tasks.history.attempts import time_of
from goondan_tasks.ledger.record import CallRecord
from goondan_web.callers import Caller

#: how many of a thread's newest calls are searched for an open Turn
SEARCHED_CALLS = 50

#: a call, and what is done to it
_Act = tuple[CallRecord, Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person has decided about a call that waits for an approval."""

    call_id: str
    is_approved: bool
    reason: str = ""
    #: of an approval: what replaces the arguments
    args: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class PageResult:
    """What the page has done for a call that waits for its completion: an output, or an error."""

    call_id: str
    output: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call that waits for an approval."""

    call_id: str
    tool: str
    args: Any
    #: until when it waits; ISO 8601
    expires_at: str | None = None


@dataclass(frozen=True, slots=True)
class RunOver:
    """The end of a run: the answer of its last Turn, or its error; or the calls that wait."""

    response: Any = None
    error: ToolCallError | None = None
    held: Sequence[HeldCall] = ()


class _Over:
    """Stands for the end of a generator that yields ``None``."""


_OVER = _Over()


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run."""

    event: TurnEvent | RunOver
    #: whose event it is: a Turn, or the completed call that began it
    turn_id: str
    #: the place in the stream of the Turn; what comes after an approval has none
    place: Position | None = None


def turn_identity(agent: str, thread_id: str, run_id: str) -> str:
    """Return the identity of the Turn that a run begins."""
    return call_identity(agent, thread_id, f"turn-{run_id}", run_id)


class Runs:
    """The runs of a client's agents. A thread is an instance, the id of a run that of its event."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._async_client = AsyncClient(client)

    async def begin(
        self,
        agent: str,
        thread_id: str,
        run_id: str,
        input: str,
        auth: JsonObject | None,
        metadata: JsonObject,
    ) -> str:
        """Begin a run, once however often it is asked for; return the identity of its Turn.

        Raises:
            AgentNotFoundError: no such agent.
            ToolCallConflictError: the thread has a run of this id with another message.
            ToolInputValidationError, PayloadTooLargeError: it is not accepted.
        """
        fields: EventFields = {
            "instance_key": thread_id,
            "event_id": run_id,
            "keep": CHAT_SECONDS,
            "auth": auth,
        }
        if metadata:
            fields["metadata"] = metadata
        return (await self._async_client.start_turn(agent, input, **fields)).id

    async def require(self, turn_id: str, caller: Caller) -> None:
        """Check that there is a Turn, and that it is the caller's.

        Raises:
            CallNotFoundError: there is none, or no longer, or it is another user's.
        """
        if not _is_shown(await self._async_client.record(turn_id), caller):
            raise not_found(turn_id)

    async def open_turn(self, agent: str, thread_id: str, caller: Caller) -> str | None:
        """Return the newest Turn of a thread that has not ended, of those that are the caller's."""
        for record in await self._async_client.calls(agent, SEARCHED_CALLS, instance=thread_id):
            if is_event(record.call) and not record.has_ended and _is_shown(record, caller):
                return record.id
        return None

    async def turn(self, turn_id: str) -> AsyncGenerator[RunEvent]:
        """Yield the events of a run from the beginning of its Turn; the last one is its end."""
        seen = _Seen()
        async with aclosing(self._async_client.follow(turn_id)) as events:
            async for followed in events:
                seen.note(followed.event)
                yield RunEvent(followed.event, turn_id, Position.of(followed.cursor))
        async with aclosing(self._rest(seen, [])) as rest:
            async for event in rest:
                yield event

    async def decide(
        self,
        agent: str,
        thread_id: str,
        decisions: Sequence[Decision],
        results: Sequence[PageResult],
        caller: Caller,
    ) -> AsyncGenerator[RunEvent]:
        """Carry out decisions, complete calls with what the page has done, and return what follows from both.

        A decision that was made before, or differently, changes nothing: the events are those of the first.
        Results of calls that do not wait for their completion are left out.

        Raises:
            CallNotFoundError: one of the decisions is about no call of this thread, or about another user's;
                then nothing is carried out.
        """
        acts: list[_Act] = []
        for decision in decisions:
            record = await self._of_thread(agent, thread_id, decision.call_id, caller)
            acts.append((record, partial(self._decide, decision, caller.name)))
        waiting, _ = await self._for_results(agent, thread_id, results, caller)
        return await self._carried_out(acts + waiting)

    async def complete(
        self, agent: str, thread_id: str, results: Sequence[PageResult], caller: Caller
    ) -> AsyncGenerator[RunEvent]:
        """Complete calls with what the page has done, and return the events of the run that follows.

        Pages send results of other calls along, which they have got from here: these are left out. If none
        of the calls waits any more, the request is a repeated one, and the events are those after the last.
        The record of an older call may have expired.

        Raises:
            CallNotFoundError: no call waits, and one of them is none of this thread, or another user's.
            CallNotPendingError: none of them waits for its completion, or has waited for it.
        """
        waiting, others = await self._for_results(agent, thread_id, results, caller)
        ended = []
        if not waiting:
            for one in others:
                if isinstance(one, CallNotFoundError):
                    raise one
                if one[0].has_ended and await self._has_waited(one[0]):
                    ended.append(one)
        if not waiting and not ended:
            names = ", ".join(result.call_id for result in results)
            raise CallNotPendingError(
                f"No call that the results are for waits for its completion: {names}.",
                suggestion="A page completes calls whose tool returned a pending result. Results of other "
                "calls come from the workers. To go on after them, send a message of the user.",
            )
        return await self._carried_out(waiting or ended[-1:])

    async def require_tools(self, agent: str, names: Sequence[str]) -> None:
        """Check that an agent has the tools that a page would carry out.

        Raises:
            AgentNotFoundError: no such agent.
            ToolInputValidationError: it lacks one.
        """
        if not names:
            return
        catalog = await asyncio.to_thread(self._client.catalog, agent)
        known = {item["name"] for item in catalog}
        if unknown := [name for name in names if name not in known]:
            raise ToolInputValidationError(
                f"tools: agent {agent!r} has no tool {unknown[0][:200]!r}: it has those of its bundle.",
                suggestion="Declare it in the bundle, under the name <tool>__<export> that the page uses. "
                "Let its handler return a pending result; the page sends the final one.",
            )

    async def _for_results(
        self, agent: str, thread_id: str, results: Sequence[PageResult], caller: Caller
    ) -> tuple[list[_Act], list[_Act | CallNotFoundError]]:
        """Return what completes the calls that wait for it, and what there is for the other results."""
        waiting: dict[str, _Act] = {}
        others: list[_Act | CallNotFoundError] = []
        for result in results:
            try:
                record = await self._of_thread(agent, thread_id, result.call_id, caller)
            except CallNotFoundError as error:
                others.append(error)
                continue
            act = record, partial(self._complete, result)
            if record.awaits == "completion":
                waiting.setdefault(record.id, act)  # a result that is there twice is one
            else:
                others.append(act)
        return list(waiting.values()), others

    async def _of_thread(self, agent: str, thread_id: str, call_id: str, caller: Caller) -> CallRecord:
        record = await self._async_client.record(call_id)
        if (record.call.agent_name, record.call.instance_key) != (agent, thread_id):
            raise CallNotFoundError(f"The thread has no call {record.id}.")
        if not _is_shown(record, caller):
            raise not_found(record.id)
        return record

    async def _has_waited(self, record: CallRecord) -> bool:
        """Return whether the agent got the result of a call in an event, as that of a completed one."""
        with suppress(CallNotFoundError):
            await self._async_client.record(completion_id(record.call, record.id))
            return True
        return False

    async def _carried_out(self, acts: Sequence[_Act]) -> AsyncGenerator[RunEvent]:
        begun: list[_Continued] = []
        with ExitStack() as undoing:
            for record, act in acts:
                begun.append(_Continued(self._client, record, act))
                undoing.callback(begun[-1].close)
                await begun[-1].begin()
            undoing.pop_all()
        return self._rest(_Seen(), begun)

    def _decide(self, decision: Decision, by: str) -> None:
        with suppress(CallNotPendingError, CallClosedError):  # decided already
            if decision.is_approved:
                self._client.approve(decision.call_id, by, decision.args)
            else:
                self._client.deny(decision.call_id, decision.reason, by)

    def _complete(self, result: PageResult) -> None:
        with suppress(CallNotPendingError, CallClosedError):  # completed already
            if result.error is None:
                self._client.resolve(result.call_id, result.output)
            else:
                self._client.fail(result.call_id, result.error)

    async def _rest(self, seen: "_Seen", begun: list["_Continued"]) -> AsyncGenerator[RunEvent]:
        """Yield what comes after decisions, as long as there are any, and the end of the run."""
        held: list[HeldCall] = []
        try:
            while True:
                for call_id in seen.taken():
                    record = await self._async_client.record(call_id)
                    if record.awaits == "approval" and not record.has_ended:
                        until = time_of(record.expires_at)
                        held.append(HeldCall(call_id, record.call.tool_name, record.call.args, until))
                    else:
                        begun.append(_Continued(self._client, record, _nothing))
                if not begun:
                    break
                async for event in begun[0].events():
                    seen.note(event.event)
                    yield event
                begun.pop(0).close()
        finally:
            for one in begun:
                one.close()
        yield RunEvent(seen.over(held), "")


def _is_shown(record: CallRecord, caller: Caller) -> bool:
    """Return whether a caller who may call the agent may read a Turn, as at the door ``api``."""
    return record.call.auth == caller.auth or caller.may(READ)


def _nothing() -> None:
    """Decide nothing: there is a decision."""


class _Seen:
    """What the events of a run say about its end."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._end: TurnEnded | None = None

    def note(self, event: TurnEvent | RunOver) -> None:
        """Note a call that waits for an approval, or no longer, and the end of a Turn."""
        if isinstance(event, ToolAnswered):
            if event.awaits == "approval":
                self._waiting[event.call_id] = None
            else:
                self._waiting.pop(event.call_id, None)
        elif isinstance(event, TurnEnded):
            self._end = event

    def taken(self) -> Sequence[str]:
        """Return the calls that waited when their Turn ended, each once."""
        taken, self._waiting = list(self._waiting), {}
        return taken

    def over(self, held: Sequence[HeldCall]) -> RunOver:
        """Return the end of the run."""
        if self._end is None:
            return RunOver(held=held)
        return RunOver(self._end.result.response, self._end.error, held)


class _Continued:
    """What comes of a decision, read by a thread of its own."""

    def __init__(self, client: Client, record: CallRecord, decide: Callable[[], None]) -> None:
        self._turn_id = completion_id(record.call, record.id)
        self._events = continuation(client, record, decide)
        # one context for all reads: the generator sets variables in one read and resets them in another
        self._read = partial(contextvars.copy_context().run, next, self._events, _OVER)
        self._threads = ClientThreads("goondan-run")
        self._first: TurnEvent | _Over | None = None

    async def begin(self) -> None:
        """Carry out the decision."""
        self._first = await self._threads.run(self._read)

    async def events(self) -> AsyncGenerator[RunEvent]:
        """Yield the events of the call, and of the Turn that begins with its result."""
        event = self._first
        while not isinstance(event, _Over):
            if event is not None:
                yield RunEvent(event, self._turn_id)
            event = await self._threads.run(self._read)

    def close(self) -> None:
        """Stop reading; what was begun goes on. A read that still runs is the last one, and ends soon.

        Nothing is awaited: a server cancels what its client has left again at each wait.
        """
        self._threads.close()

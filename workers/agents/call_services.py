"""How a run reaches tools and other agents: ``ctx.runtime`` and ``ctx.call``.

Each is written once, as coroutines. For plain code, :func:`in_plain_code` runs them on the caller's thread.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError

from goondan_tasks.authoring.handoff import (
    Asker,
    Handoff,
    accepted,
    handoff_call,
    moment_of,
    not_answered,
    request_result,
    require_timeout,
    sent,
)
from goondan_tasks.authoring.tool_api import (
    REQUEST_TIMEOUT_MS,
    CatalogResult,
    EventLike,
    ListResult,
    RequestResult,
    ScheduledEvent,
    SendResult,
    SpawnResult,
)
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    ToolInputValidationError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import (
    LONGEST_RUN_SECONDS,
    JsonObject,
    ToolCall,
    ToolCallResult,
    faults_of,
    iso_time,
    wall_clock,
)
from goondan_tasks.contract.wording import closest
from goondan_tasks.ledger.record import CallRecord
from workers.agents.handoffs import Handoffs, Submitted
from workers.cancellation import Cancellation
from workers.concurrency.slots import Wait
from workers.concurrency.waits import Waits
from workers.instances.service import InstanceService, Spawner
from workers.turns.pipeline import in_plain_code, may_block
from workers.turns.steps import patiently

#: a call as an agent writes it
CallSpec = Mapping[str, Any] | Sequence[Any]
Options = Mapping[str, Any] | None
OnResult = Callable[[ToolCallResult], Awaitable[object]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reach:
    """Submits the calls and events of one run, and waits for their results."""

    handoffs: Handoffs
    asker: Asker
    waits: Waits
    cancellation: Cancellation
    is_async: ClassVar[bool]

    async def _get_ready(self) -> None:
        if not self.handoffs.is_ready:
            await may_block(partial(patiently, self.handoffs.get_ready), is_async=self.is_async)

    async def time_of(self, fields: Mapping[str, Any], what: str = "The event") -> str | None:
        """Return the time before which it must not run; raises as :func:`moment_of`."""
        moment = moment_of(fields, what)
        if not moment.delay_ms:
            return moment.not_before
        now = partial(patiently, partial(self.handoffs.time_of, moment))
        return await may_block(now, is_async=self.is_async)

    async def _submit_event(self, call: ToolCall) -> None:
        """Submit an event and wait until the ledger has it."""
        submitted = self.handoffs.submit_event(call)
        if self.is_async:  # a cancelled wait must not cancel the future, which is settled elsewhere
            await asyncio.shield(asyncio.wrap_future(submitted.accepted))
        else:
            submitted.accepted.result()

    async def _results(
        self,
        submit: Callable[[], Sequence[Submitted]],
        timeout: float | None = None,
        on_result: OnResult | None = None,
        wait: Wait = Wait.AGENT,
    ) -> list[ToolCallResult]:
        """Submit calls or events, and wait for their results without a slot.

        If the wait is cancelled, so are they. In async code, ``on_result`` gets each result as it arrives.
        """
        async with self.waits.without_slot(wait, is_async=self.is_async):
            submitted = submit()
            with self.handoffs.awaited(submitted, self.cancellation):
                if self.is_async and len(submitted) == 1:  # saves a task
                    return [await _awaited(submitted[0], timeout, on_result)]
                if self.is_async:
                    return await asyncio.gather(*(_awaited(one, timeout, on_result) for one in submitted))
                return [_waited(one, timeout) for one in submitted]


def _waited(submitted: Submitted, timeout: float | None) -> ToolCallResult:
    result = submitted.pending.result(timeout)
    submitted.accepted.result()
    return result


async def _awaited(submitted: Submitted, timeout: float | None, on_result: OnResult | None) -> ToolCallResult:
    result = await submitted.pending.wait(timeout)
    if not submitted.accepted.done():
        await asyncio.shield(asyncio.wrap_future(submitted.accepted))
    submitted.accepted.result()  # after a conflict, the result is that of the other call with the same id
    if on_result is not None:
        await on_result(result)
    return result


@dataclass(frozen=True, slots=True)
class AgentTools(Reach):
    """``ctx.call`` and ``ctx.call_many``: the agent's own tools, through its own queue."""

    #: the revision of the bundle for calls outside of Steps
    bundle_ref: str | None = None

    async def _call(self, tool: str, args: Any = None, *, timeout: float | None = None) -> ToolCallResult:
        [result] = await self.results([self.new_call(tool, args, timeout)])
        return result

    async def _call_many(self, calls: Iterable[CallSpec]) -> list[ToolCallResult]:
        return await self.results([self.new_call(*_tool_and_args(call)) for call in calls])

    async def results(
        self, calls: Sequence[ToolCall], on_result: OnResult | None = None
    ) -> list[ToolCallResult]:
        """Submit calls and wait for all results; if the wait is cancelled, so are the calls."""
        await self._get_ready()
        wait = Wait.TOOLS if self.is_async else Wait.AGENT
        submit = partial(self.handoffs.submit_calls, calls)
        return await self._results(submit, on_result=on_result, wait=wait)

    def new_call(self, tool: str, args: Any, timeout: float | None = None, **fields: Any) -> ToolCall:
        """Make a call that belongs to the agent's Turn and trace; ``fields`` replace the usual ones.

        Raises:
            ToolInputValidationError: it is not valid.
            ValueError: it is not made in a run.
        """
        call_id, given = self.asker.new_id([tool, args]), {"bundle_ref": self.bundle_ref, **fields}
        return tool_call(self.asker, call_id, tool, args, timeout_seconds=timeout, **given)


def tool_call(asker: Asker, call_id: str, tool: str, args: Any, **fields: Any) -> ToolCall:
    """Make a call that belongs to the asker's Turn and trace; ``call_id`` are 32 hexadecimal digits.

    Raises:
        ToolInputValidationError: it is not valid.
        ValueError: it is not made in a run.
    """
    parent = asker.call
    if parent is None:
        raise ValueError("only a run calls tools")
    try:
        return ToolCall(
            tool_call_id=f"call_{call_id}",
            tool_name=tool,
            args={} if args is None else args,
            agent_name=asker.name,
            instance_key=asker.instance_key,
            turn_id=parent.turn_id,
            trace_id=parent.trace_id,
            span_id=call_id[:16],
            correlation_id=parent.correlation_id,
            auth=parent.auth,
            origin=parent.origin,
            call_chain=parent.call_chain,
            waiting=parent.waiting,
            parent_id=asker.call_id,
            followed=None if parent.keep is None else True,
            root_id=parent.root_id or asker.call_id,
            parent_span_id=parent.span_id,
            trace_context=parent.trace_context,
            **fields,
        )
    except ValidationError as error:
        raise ToolInputValidationError(f"The call is not valid: {faults_of(error)}.") from error


class AsyncToolCaller(AgentTools):
    is_async = True
    call = AgentTools._call
    call_many = AgentTools._call_many


class BlockingToolCaller(AgentTools):
    is_async = False
    call = in_plain_code(AgentTools._call)
    call_many = in_plain_code(AgentTools._call_many)


def _tool_and_args(call: CallSpec) -> tuple[str, Any]:
    if isinstance(call, Mapping):
        name = call.get("toolName", call.get("tool_name"))
        args = next((call[key] for key in ("args", "arguments", "input") if key in call), None)
        if isinstance(name, str):
            return name, args
    elif isinstance(call, tuple | list) and len(call) == 2 and isinstance(call[0], str):
        return call[0], call[1]
    raise ToolInputValidationError(
        f"A call is (tool, args) or {{'toolName': …, 'args': …}}, not {call!r:.200}."
    )


@dataclass(frozen=True, slots=True)
class Swarm:
    """The swarm of a worker process."""

    name: str
    entry_agent: str
    agents: tuple[str, ...]
    most_hops: int

    def require(self, agent: Any) -> str:
        """Return the name of an agent of the swarm, or raise an AgentNotFoundError."""
        if agent not in self.agents:
            similar = closest(agent, self.agents) if isinstance(agent, str) else None
            hint = f"; did you mean {similar!r}?" if similar else f"; it has: {', '.join(self.agents)}."
            raise AgentNotFoundError(f"No agent {agent!r} in the swarm{hint}")
        return str(agent)


@dataclass(frozen=True, slots=True)
class _SwarmRuntime(Reach):
    """``ctx.runtime``: see :class:`goondan_tasks.authoring.tool_api.AgentRuntime`."""

    swarm: Swarm
    instances: InstanceService
    #: of the asking run
    workdir: Path

    async def _request(
        self,
        target: str,
        event: EventLike,
        options: Options = None,
        *,
        timeout_ms: float | None = None,
        is_async: bool = False,
        output_schema: JsonObject | None = None,
        delay: float | None = None,
        not_before: datetime | str | None = None,
    ) -> RequestResult:
        keywords = {
            "timeoutMs": timeout_ms,
            "async": is_async or None,
            "outputSchema": output_schema,
            "delay": delay,
            "notBefore": not_before,
        }
        given = _options(options, keywords)
        timeout_ms, is_async = _request_options(given)
        handoff = Handoff(
            self.swarm.require(target),
            event,
            is_awaited=not is_async,
            timeout_ms=timeout_ms,
            output_schema=given["outputSchema"],
            not_before=await self.time_of(given),
        )
        call = self._call(handoff)
        await self._get_ready()
        if is_async:
            await self._submit_event(call)
            return accepted(call)
        patience = timeout_ms / 1000
        if call.not_before is not None:
            asked = partial(patiently, partial(self.handoffs.patience, call, patience))
            patience = await may_block(asked, is_async=self.is_async)
        try:
            [result] = await self._results(lambda: [self.handoffs.submit_event(call)], patience)
        except WaitTimeout as error:
            raise not_answered(call, timeout_ms / 1000) from error
        return request_result(result)

    async def _send(
        self,
        target: str,
        event: EventLike,
        options: Options = None,
        *,
        delay: float | None = None,
        not_before: datetime | str | None = None,
    ) -> SendResult:
        given = _options(options, {"delay": delay, "notBefore": not_before})
        handoff = Handoff(
            self.swarm.require(target),
            event,
            is_request=False,
            is_awaited=False,
            not_before=await self.time_of(given),
        )
        call = self._call(handoff)
        await self._get_ready()
        await self._submit_event(call)
        return sent(call)

    async def _scheduled(self, ids: Sequence[str]) -> Sequence[ScheduledEvent]:
        asked = partial(patiently, partial(self.handoffs.scheduled, [str(one) for one in ids]))
        found = await may_block(asked, is_async=self.is_async)
        return [_scheduled_event(one) for one in found if self._has_sent(one.call)]

    async def _cancel(self, event_id: str) -> bool:
        if not await self._scheduled([event_id]):
            return False
        cancel = partial(patiently, partial(self.handoffs.cancel, event_id))
        return await may_block(cancel, is_async=self.is_async)

    def _has_sent(self, call: ToolCall) -> bool:
        sender = call.args.get("from"), call.args.get("fromInstanceKey")
        return sender == (self.asker.name, self.asker.instance_key)

    async def _spawn(
        self,
        target: str,
        options: Options = None,
        *,
        instance_key: str | None = None,
        cwd: str | None = None,
    ) -> SpawnResult:
        given = _options(options, {"instanceKey": instance_key, "cwd": cwd})
        spawn = partial(
            self.instances.spawn,
            self._spawner,
            self.swarm.require(target),
            instance_key=given["instanceKey"],
            cwd=given["cwd"],
            request=self.asker.new_id(["spawn", target, given]),
        )
        return await may_block(spawn, is_async=self.is_async)

    async def _list(self, options: Options = None, *, include_all: bool = False) -> ListResult:
        given = _options(options, {"includeAll": include_all or None})["includeAll"]
        if not isinstance(given, bool | None):
            raise ToolInputValidationError(f"includeAll must be true or false, not {given!r}.")
        listed = partial(self.instances.list, self._spawner, include_all=bool(given))
        return await may_block(listed, is_async=self.is_async)

    async def _catalog(self) -> CatalogResult:
        return CatalogResult(
            swarm_name=self.swarm.name,
            entry_agent=self.swarm.entry_agent,
            self_agent=self.asker.name,
            available_agents=self.swarm.agents,
            callable_agents=self.swarm.agents,
        )

    @property
    def _spawner(self) -> Spawner:
        return Spawner(self.asker.name, self.asker.instance_key, self.workdir)

    def _call(self, handoff: Handoff) -> ToolCall:
        return handoff_call(self.asker, handoff, most_hops=self.swarm.most_hops, now_ms=wall_clock())


class AsyncRuntime(_SwarmRuntime):
    is_async = True
    request = _SwarmRuntime._request
    send = _SwarmRuntime._send
    scheduled = _SwarmRuntime._scheduled
    cancel = _SwarmRuntime._cancel
    spawn = _SwarmRuntime._spawn
    list = _SwarmRuntime._list
    catalog = _SwarmRuntime._catalog


class BlockingRuntime(_SwarmRuntime):
    is_async = False
    request = in_plain_code(_SwarmRuntime._request)
    send = in_plain_code(_SwarmRuntime._send)
    scheduled = in_plain_code(_SwarmRuntime._scheduled)
    cancel = in_plain_code(_SwarmRuntime._cancel)
    spawn = in_plain_code(_SwarmRuntime._spawn)
    list = in_plain_code(_SwarmRuntime._list)
    catalog = in_plain_code(_SwarmRuntime._catalog)


def _scheduled_event(record: CallRecord) -> ScheduledEvent:
    call = record.call
    return ScheduledEvent(
        id=record.id,
        target=call.agent_name,
        instance_key=call.instance_key,
        not_before=iso_time(record.not_before or 0),
        input=call.args["payload"].get("input"),
    )


def _request_options(given: Mapping[str, Any]) -> tuple[float, bool]:
    timeout = REQUEST_TIMEOUT_MS if given["timeoutMs"] is None else given["timeoutMs"]
    timeout = require_timeout("timeoutMs", timeout, LONGEST_RUN_SECONDS * 1000)
    if not isinstance(given["async"], bool | None):
        raise ToolInputValidationError(f"async must be true or false, not {given['async']!r}.")
    return timeout, bool(given["async"])


def _options(options: Options, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options that were given as one object or as keyword arguments."""
    given = {} if options is None else options
    if not isinstance(given, Mapping):
        raise ToolInputValidationError(f"Options are an object, not {type(given).__name__}.")
    for name in given.keys() - keywords.keys():
        similar = closest(str(name), keywords)
        hint = f"did you mean {similar!r}?" if similar else f"there are: {', '.join(keywords)}."
        raise ToolInputValidationError(f"There is no option {name!r}; {hint}")
    return {name: given.get(name) if keyword is None else keyword for name, keyword in keywords.items()}

"""How a run reaches tools and other agents: ``ctx.runtime``, ``ctx.call`` and ``ctx.step``.

Each is written once, as coroutines. For plain code, :func:`in_plain_code` runs them on the caller's thread.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, TypeVar

from pydantic import ValidationError

from goondan_tasks.authoring.extension_api import StepResult
from goondan_tasks.authoring.handoff import (
    Asker,
    Handoff,
    accepted,
    handoff_call,
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
    SendResult,
    SpawnResult,
)
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.catalog import ToolCatalog
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    MiddlewareError,
    ToolInputValidationError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import (
    LONGEST_RUN_SECONDS,
    JsonObject,
    ToolCall,
    ToolCallResult,
    faults_of,
    wall_clock,
)
from goondan_tasks.contract.model_messages import StepCallResult
from goondan_tasks.contract.names import call_identity
from goondan_tasks.contract.on_error import OnError
from goondan_tasks.contract.table_rows import naming
from goondan_tasks.contract.wording import closest
from goondan_tasks.history import RecordedStep, ReplyCalls, StepCall, StepRecord, TurnCalls
from workers.agents.handoffs import Handoffs, Submitted
from workers.cancellation import Cancellation
from workers.concurrency.slots import Wait
from workers.concurrency.waits import Waits
from workers.instances.service import InstanceService, Spawner
from workers.turns.pipeline import CoreOutcome, in_plain_code, may_block
from workers.turns.steps import OpenStep, StepRequest, Steps, patiently
from workers.turns.turn_state import TurnState

#: a call as an agent writes it
CallSpec = Mapping[str, Any] | Sequence[Any]
Options = Mapping[str, Any] | None
OnResult = Callable[[ToolCallResult], Awaitable[object]]
StepsNow = Callable[[], Steps]
T = TypeVar("T")


class CallWatch(Protocol):
    """Observes the tool calls of a Step."""

    async def called(self, calls: Sequence[tuple[str, StepCall]]) -> None:
        """Note calls, each with its identity."""

    async def answered(self, result: ToolCallResult) -> None:
        """Note a result."""


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
        asker, parent = self.asker, self.asker.call
        if parent is None:
            raise ValueError("only a run calls tools")
        call_id = asker.new_id([tool, args])
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
                root_id=parent.root_id or asker.call_id,
                parent_span_id=parent.span_id,
                timeout_seconds=timeout,
                **{"bundle_ref": self.bundle_ref, **fields},
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


@dataclass(slots=True)
class AgentTurn:
    """The Steps of one Turn that an agent's entry handles."""

    call: ToolCall
    #: the number of the event's run; the ids of its Steps differ from those of earlier runs, whose catalogs
    #: workers remember
    attempt: int
    steps_now: StepsNow
    state: TurnState = field(default_factory=TurnState)
    #: whether a Step is prepared without Redis, and in the one revision that there is: this does not block
    prepares_at_once: bool = False
    calls: TurnCalls = field(default_factory=TurnCalls)
    #: numbers the Steps, of which several may be open at once
    indexes: Iterator[int] = field(default_factory=count)
    #: the ids of the Steps that were opened
    opened: list[str] = field(default_factory=list)

    def prepare(
        self, steps: Steps, message: JsonObject | None, conversation: Conversation | None
    ) -> OpenStep:
        """Return the next Step; this blocks, and raises as :meth:`Steps.prepare`."""
        call, index = self.call, next(self.indexes)
        name = f"step-{index}.{self.attempt}"
        request = StepRequest(
            call_identity(call.agent_name, call.instance_key, call.turn_id, name),
            call,
            index,
            message,
            previous_step_id=self.opened[-1] if self.opened else None,
            conversation=conversation,
            ask_model=self.state.ask_model,
        )
        return steps.prepare(request)


class EntryStep(RecordedStep):
    """A Step of an agent's entry: see :class:`goondan_tasks.authoring.extension_api.AgentStep`."""

    is_async: ClassVar[bool]

    def __init__(
        self,
        turn: AgentTurn,
        message: JsonObject | None,
        tools: AgentTools,
        conversation: Conversation | None = None,
    ) -> None:
        self._turn = turn
        self._message = message
        #: set if the agent thinks
        self._conversation = conversation
        self._tools = tools
        self._steps: Steps
        self._step: OpenStep | None = None
        self._record: StepRecord | None = None
        #: done once Redis has the Step
        self._kept: Future[bool] | None = None
        self._calls: list[JsonObject] = []
        self._results: list[ToolCallResult] = []
        #: the answer of the middlewares once the Step has ended
        self.result: StepResult | None = None

    @property
    def record(self) -> StepRecord:
        if self._record is None:
            raise _not_open()
        return self._record

    @property
    def catalog(self) -> ToolCatalog:
        return self._open.catalog

    @property
    def should_continue(self) -> bool:
        result = self.result
        return result is not None and bool(result.tool_calls or result.metadata.get("shouldContinue"))

    @property
    def _open(self) -> OpenStep:
        if self._step is None:
            raise _not_open()
        return self._step

    async def _enter(self) -> Self:
        waits = self.is_async and not self._turn.prepares_at_once
        self._step = step = await may_block(self._prepare, is_async=waits)
        await step.enter(is_async=self.is_async)
        with OnError(lambda _: step.break_off()):  # the Step's block does not run then
            await self._keep(step)
        self._turn.opened.append(self.record.id)
        return self

    async def _keep(self, step: OpenStep) -> None:
        """Store the Step before calls of it are submitted; raises as :meth:`Steps.keep`."""
        unkept = self._steps.unkept(step)
        self._record = unkept.record
        self._kept = self._tools.handoffs.post(unkept.script_call, is_awaited=not self._goes_along)
        if not self._goes_along and not await self._answer(self._kept):
            opened = partial(self._steps.opened_before, unkept.record)
            self._record = await may_block(opened, is_async=self.is_async)
        else:
            self._steps.note_opened(step, unkept)

    @property
    def _goes_along(self) -> bool:
        """Whether what is stored goes with the next call: the Turn thinks, and runs no extension's code."""
        return self._conversation is not None and self._turn.prepares_at_once

    async def _answer(self, posted: "Future[T]") -> T:
        """Wait for the answer of a script call.

        Raises:
            RecordDamagedError: the contents of a key are those of another program.
        """
        with naming():
            if self.is_async and not posted.done():  # a cancelled wait must not cancel the writer's future
                await asyncio.shield(asyncio.wrap_future(posted))
            return posted.result()

    def _prepare(self) -> OpenStep:
        self._steps = self._turn.steps_now()
        return self._turn.prepare(self._steps, self._message, self._conversation)

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End the Step; return whether a middleware caught the block's error."""
        if error is not None and not isinstance(error, Exception):
            self._open.break_off()
            return False
        outcome = CoreOutcome(StepResult(tuple(self._calls), tuple(self._results)), error)
        result = await self._open.leave(outcome, is_async=self.is_async)
        if not isinstance(result, StepResult):
            raise MiddlewareError(f"A step middleware returned no StepResult but {result!r:.200}.")
        self.result = result
        self._steps.tell_completed(self.record)
        return error is not None

    async def _run(
        self, reply: Any, *, timeout_seconds: float | None = None, watch: CallWatch | None = None
    ) -> list[StepCallResult]:
        if not self._open.is_open:
            raise _not_open()
        record, terms = self.record, self._steps.terms
        requested = self._turn.calls.of_step(record, self.catalog, reply, max_args_bytes=terms.max_args_bytes)
        correlation_id = self._turn.call.correlation_id
        calls = ReplyCalls.of(requested, record, help_url=terms.help_url, correlation_id=correlation_id)
        submitted = [
            self._tools.new_call(
                call.tool_name,
                call.asked.args,
                timeout_seconds,
                step_id=record.id,
                bundle_ref=record.bundle_ref,
                message=call.message,
                model_call_id=call.asked.id,
            )
            for call in calls.submitted()
        ]
        if self._kept is not None:
            await self._answer(self._kept)
        if watch is not None:
            await _announce(watch, calls, submitted)
        on_result = None if watch is None else watch.answered
        results = await self._tools.results(submitted, on_result) if submitted else []
        if results:
            noting = self._steps.store.noting(record, [result.meta.id for result in results])
            noted = self._tools.handoffs.post(noting, is_awaited=not self._goes_along)
            if not self._goes_along:
                await self._answer(noted)
        answered = calls.answered(results)
        self._calls += [call.to_wire() for call in requested]
        self._results += answered
        return answered


async def _announce(watch: CallWatch, calls: ReplyCalls, submitted: Sequence[ToolCall]) -> None:
    """Tell ``watch`` of a reply's calls, and of the results of refused ones."""
    ids = map(identity_of, submitted)
    pairs = zip(calls.calls, calls.refusals, strict=True)
    await watch.called([(next(ids) if refusal is None else refusal.meta.id, call) for call, refusal in pairs])
    for refusal in filter(None, calls.refusals):
        await watch.answered(refusal)


class AsyncEntryStep(EntryStep):
    """A Step of ``async`` code: ``async with ctx.step() as step``."""

    is_async = True
    __aenter__ = EntryStep._enter
    __aexit__ = EntryStep._leave
    run = EntryStep._run


class BlockingEntryStep(EntryStep):
    """A Step of plain code: ``with ctx.step() as step``."""

    is_async = False
    __enter__ = in_plain_code(EntryStep._enter)
    __exit__ = in_plain_code(EntryStep._leave)
    run = in_plain_code(EntryStep._run)


def _not_open() -> RuntimeError:
    return RuntimeError("the Step is open only inside its with block")


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
    ) -> RequestResult:
        keywords = {"timeoutMs": timeout_ms, "async": is_async or None, "outputSchema": output_schema}
        given = _options(options, keywords)
        timeout_ms, is_async = _request_options(given)
        handoff = Handoff(
            self.swarm.require(target),
            event,
            is_awaited=not is_async,
            timeout_ms=timeout_ms,
            output_schema=given["outputSchema"],
        )
        call = self._call(handoff)
        await self._get_ready()
        if is_async:
            await self._submit_event(call)
            return accepted(call)
        try:
            [result] = await self._results(lambda: [self.handoffs.submit_event(call)], timeout_ms / 1000)
        except WaitTimeout as error:
            raise not_answered(call, timeout_ms / 1000) from error
        return request_result(result)

    async def _send(self, target: str, event: EventLike) -> SendResult:
        call = self._call(Handoff(self.swarm.require(target), event, is_request=False, is_awaited=False))
        await self._get_ready()
        await self._submit_event(call)
        return sent(call)

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
    spawn = _SwarmRuntime._spawn
    list = _SwarmRuntime._list
    catalog = _SwarmRuntime._catalog


class BlockingRuntime(_SwarmRuntime):
    is_async = False
    request = in_plain_code(_SwarmRuntime._request)
    send = in_plain_code(_SwarmRuntime._send)
    spawn = in_plain_code(_SwarmRuntime._spawn)
    list = in_plain_code(_SwarmRuntime._list)
    catalog = in_plain_code(_SwarmRuntime._catalog)


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

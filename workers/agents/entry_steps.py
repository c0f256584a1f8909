"""The Steps of an agent's entry, and of agents that think: ``ctx.step``.

Written once, as coroutines. For plain code, :func:`in_plain_code` runs them on the caller's thread.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from goondan_tasks.authoring.extension_api import StepResult
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.catalog import ToolCatalog
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.errors import (
    MiddlewareError,
)
from goondan_tasks.contract.messages import (
    JsonObject,
    ToolCall,
    ToolCallResult,
)
from goondan_tasks.contract.model_messages import StepCallResult
from goondan_tasks.contract.names import call_identity
from goondan_tasks.contract.on_error import OnError
from goondan_tasks.history import RecordedStep, ReplyCalls, StepCall, StepRecord, TurnCalls

#: a call as an agent writes it
from workers.agents.call_services import AgentTools
from workers.agents.handoffs import answer_to
from workers.turns.pipeline import CoreOutcome, in_plain_code, may_block
from workers.turns.steps import OpenStep, StepRequest, Steps
from workers.turns.turn_state import TurnState

StepsNow = Callable[[], Steps]


class CallWatch(Protocol):
    """Observes the tool calls of a Step."""

    async def called(self, calls: Sequence[tuple[str, StepCall]]) -> None:
        """Note calls, each with its identity."""

    async def answered(self, result: ToolCallResult) -> None:
        """Note a result."""


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
        """Store the Step before its calls; raises as :func:`answer_to` and :meth:`Steps.opened_before`."""
        opened = self._steps.opened(step)
        self._record = opened.record
        self._kept = self._tools.handoffs.post(opened.keeping, is_awaited=not self._goes_along)
        if not self._goes_along and not await answer_to(self._kept, is_async=self.is_async):
            opened_before = partial(self._steps.opened_before, opened.record)
            self._record = await may_block(opened_before, is_async=self.is_async)
        else:
            opened.note_kept()
            self._steps.tell_started(opened.record)

    @property
    def _goes_along(self) -> bool:
        """Whether what is stored goes with the next call: the Turn thinks, and runs no extension's code."""
        return self._conversation is not None and self._turn.prepares_at_once

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
        self,
        reply: Any,
        *,
        timeout_seconds: float | None = None,
        delay: float | None = None,
        not_before: datetime | str | None = None,
        watch: CallWatch | None = None,
    ) -> list[StepCallResult]:
        if not self._open.is_open:
            raise _not_open()
        starts_at = None
        if delay is not None or not_before is not None:
            starts_at = await self._tools.time_of({"delay": delay, "notBefore": not_before}, "The call")
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
                not_before=starts_at,
            )
            for call in calls.submitted()
        ]
        if self._kept is not None:
            await answer_to(self._kept, is_async=self.is_async)
        if watch is not None:
            await _announce(watch, calls, submitted)
        on_result = None if watch is None else watch.answered
        results = await self._tools.results(submitted, on_result) if submitted else []
        if results:
            noting = self._steps.store.noting(record, [result.meta.id for result in results])
            noted = self._tools.handoffs.post(noting, is_awaited=not self._goes_along)
            if not self._goes_along:
                await answer_to(noted, is_async=self.is_async)
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

"""``ctx.step()`` of an agent's entry: Steps whose core is what the entry does in them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any

from goondan_tasks.bundle.catalog import ToolCatalog
from goondan_tasks.errors import MiddlewareError
from goondan_tasks.extension_api import StepResult
from goondan_tasks.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.model_messages import StepCallResult
from goondan_tasks.names import call_identity
from goondan_tasks.steps import StepCall, StepRecord, TurnCalls, in_order, refused
from workers.agents.tool_caller import AsyncToolCaller, BlockingToolCaller
from workers.concurrency.beside_loop import beside_loop
from workers.concurrency.threads import on_new_thread
from workers.turns.held_onion import CoreOutcome
from workers.turns.open_step import OpenStep
from workers.turns.steps import StepRequest, Steps


@dataclass(slots=True)
class AgentTurn:
    """The Steps of one Turn that an agent's entry handles."""

    call: ToolCall
    #: which run of the event it is: each has Steps of its own, for workers keep in mind what those of an
    #: earlier one admit
    attempt: int
    steps_now: Callable[[], Steps]
    calls: TurnCalls = field(default_factory=TurnCalls)
    #: of Steps; several may be on their way at once
    indexes: Iterator[int] = field(default_factory=count)
    #: the ids of those that have opened
    opened: list[str] = field(default_factory=list)
    #: those that the last Step belongs to
    steps: Steps = field(init=False)

    def prepare(self, message: JsonObject | None) -> OpenStep:
        """Return the next Step; this blocks, and raises as :meth:`Steps.prepare`."""
        index = next(self.indexes)
        names = (self.call.agent_name, self.call.instance_key, self.call.turn_id)
        step_id = call_identity(*names, f"step-{index}.{self.attempt}")
        previous = self.opened[-1] if self.opened else None
        self.steps = self.steps_now()
        return self.steps.prepare(StepRequest(step_id, self.call, index, message, previous))

    def keep(self, step: OpenStep) -> StepRecord:
        """Keep a Step that has been entered; this blocks."""
        record = self.steps.keep(step)
        self.opened.append(record.id)
        return record


class AgentStep:
    """What both kinds of Steps have: see :class:`goondan_tasks.extension_api.AgentStep`."""

    def __init__(self, turn: AgentTurn, message: JsonObject | None) -> None:
        self._turn = turn
        self._message = message
        self._step: OpenStep | None = None
        self._record: StepRecord | None = None
        self._asked: list[JsonObject] = []
        self._results: list[ToolCallResult] = []
        #: what the middlewares have made of the Step, once it has ended
        self.result: StepResult | None = None

    @property
    def _open(self) -> OpenStep:
        if self._step is None:
            raise RuntimeError("the Step is open inside of its with block only")
        return self._step

    @property
    def record(self) -> StepRecord:
        """What was fixed when it opened."""
        if self._record is None:
            raise RuntimeError("the Step is open inside of its with block only")
        return self._record

    @property
    def id(self) -> str:
        """The ``stepId`` of its calls."""
        return self.record.id

    @property
    def index(self) -> int:
        """How many Steps the Turn has had before."""
        return self.record.index

    @property
    def catalog(self) -> ToolCatalog:
        """What the model may call."""
        return self._open.catalog

    @property
    def blocks(self) -> tuple[JsonObject, ...]:
        """What the model is told besides its messages."""
        return self.record.blocks

    @property
    def should_continue(self) -> bool:
        """Whether the Turn goes on after this Step, which has ended."""
        result = self.result
        return result is not None and bool(result.tool_calls or result.metadata.get("shouldContinue"))

    def _read(self, reply: Any) -> list[StepCall]:
        if not self._open.is_open:
            raise RuntimeError("the Step is open inside of its with block only")
        terms = self._turn.steps.terms
        return self._turn.calls.of_step(self.record, self.catalog, reply, max_args_bytes=terms.max_args_bytes)

    def _answered(self, calls: Sequence[StepCall], results: Sequence[ToolCallResult]) -> list[StepCallResult]:
        """Return the answers to ``calls``; there are no results of those that are refused."""
        turn, correlation_id = self._turn, self._turn.call.correlation_id
        refusals = [
            refused(call, self.record, help_url=turn.steps.terms.help_url, correlation_id=correlation_id)
            for call in calls
        ]
        submitted = [call for call, refusal in zip(calls, refusals, strict=True) if refusal is None]
        answers = (call.answered(result) for call, result in zip(submitted, results, strict=True))
        answered = in_order(refusals, answers)
        self._asked += [call.to_wire() for call in calls]
        self._results += answered
        return answered

    def _outcome(self, error: Exception | None) -> CoreOutcome:
        return CoreOutcome(StepResult(tuple(self._asked), tuple(self._results)), error)

    def _ended(self, result: Any) -> None:
        if not isinstance(result, StepResult):
            raise MiddlewareError(f"A step middleware returned no StepResult but {result!r:.200}.")
        self.result = result
        self._turn.steps.tell_completed(self.record)


class BlockingStep(AgentStep):
    """A Step of plain code: ``with ctx.step() as step``."""

    def __init__(self, turn: AgentTurn, message: JsonObject | None, tools: BlockingToolCaller) -> None:
        super().__init__(turn, message)
        self._tools = tools

    def __enter__(self) -> "BlockingStep":
        self._step = self._turn.prepare(self._message)
        self._step.enter()
        with _Open(self._step):
            self._record = self._turn.keep(self._step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            self._open.break_off()
            return False
        with _Again(error) as again:
            self._ended(self._open.leave(self._outcome(error)))
        return again.is_caught

    def run(self, reply: Any, *, timeout_seconds: float | None = None) -> list[StepCallResult]:
        """Run the tool calls of the model side by side."""
        calls = self._read(reply)
        wanted = self._tools.parts.step_calls(calls, timeout_seconds, self.record) if calls else []
        results = self._tools.results(wanted) if wanted else []
        self._turn.steps.note_calls(self.record, results)
        return self._answered(calls, results)


class AsyncStep(AgentStep):
    """A Step of ``async`` code: ``async with ctx.step() as step``."""

    def __init__(self, turn: AgentTurn, message: JsonObject | None, tools: AsyncToolCaller) -> None:
        super().__init__(turn, message)
        self._tools = tools

    async def __aenter__(self) -> "AsyncStep":
        self._step = await beside_loop(partial(self._turn.prepare, self._message), on_new_thread)
        await self._step.enter_async()
        with _Open(self._step):
            self._record = await beside_loop(partial(self._turn.keep, self._step), on_new_thread)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            self._open.break_off()
            return False
        with _Again(error) as again:
            self._ended(await self._open.leave_async(self._outcome(error)))
        return again.is_caught

    async def run(self, reply: Any, *, timeout_seconds: float | None = None) -> list[StepCallResult]:
        """Run the tool calls of the model side by side."""
        calls = self._read(reply)
        wanted = self._tools.parts.step_calls(calls, timeout_seconds, self.record) if calls else []
        results = await self._tools.results(wanted) if wanted else []
        note = partial(self._turn.steps.note_calls, self.record, results)
        await beside_loop(note, on_new_thread)
        return self._answered(calls, results)


class _Open:
    """Leaves no Step open whose with block does not begin: its middlewares clean up."""

    def __init__(self, step: OpenStep) -> None:
        self._step = step

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._step.break_off()


class _Again:
    """Lets an error that comes out of the onion as it went in go its way: the with block raises it itself."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        #: whether a middleware has caught it
        self.is_caught = error is not None

    def __enter__(self) -> "_Again":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and error is self._error:
            self.is_caught = False
            return True
        return False

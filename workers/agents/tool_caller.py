"""``ctx.call`` and ``ctx.call_many`` of an agent: its own tools, through its own queue."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from goondan_tasks.errors import ToolInputValidationError
from goondan_tasks.handoff import Asker
from goondan_tasks.messages import ToolCall, ToolCallResult, faults_of
from goondan_tasks.steps import StepCall, StepRecord
from workers.agents.handoffs import Handoffs
from workers.agents.waits import Waits
from workers.cancellation import Cancellation

#: a call as an agent writes it
Wanted = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True, slots=True)
class CallerParts:
    """What both kinds of callers are made of."""

    handoffs: Handoffs
    asker: Asker
    waits: Waits
    cancellation: Cancellation
    #: the revision of the bundle that calls outside of Steps belong to
    bundle_ref: str | None = None

    def calls(self, wanted: Iterable[tuple[str, Any]], timeout: float | None) -> list[ToolCall]:
        """Make calls outside of Steps; the agent's Turn and trace go on in them.

        Raises:
            ToolInputValidationError: one is no call.
        """
        return [self._call(tool, args, timeout, bundle_ref=self.bundle_ref) for tool, args in wanted]

    def step_calls(
        self, asked: Iterable[StepCall], timeout: float | None, step: StepRecord
    ) -> list[ToolCall]:
        """Make the calls of a Step that can be submitted; raises as :meth:`calls`."""
        return [
            self._call(
                call.tool_name,
                call.asked.args,
                timeout,
                step_id=step.id,
                bundle_ref=step.bundle_ref,
                message=call.message,
                model_call_id=call.asked.id,
            )
            for call in asked
            if call.asked.fault is None
        ]

    def _call(self, tool: str, args: Any, timeout: float | None, **fields: Any) -> ToolCall:
        try:
            return self._made(tool, args, timeout_seconds=timeout, **fields)
        except ValidationError as error:
            raise ToolInputValidationError(f"The call is not valid: {faults_of(error)}.") from error

    def _made(self, tool: str, args: Any, **fields: Any) -> ToolCall:
        asker, above = self.asker, self.asker.call
        if above is None:
            raise ValueError("only a run calls tools")
        call_id = asker.new_id([tool, args])
        return ToolCall(
            tool_call_id=f"call_{call_id}",
            tool_name=tool,
            args={} if args is None else args,
            agent_name=asker.name,
            instance_key=asker.instance_key,
            turn_id=above.turn_id,
            trace_id=above.trace_id,
            span_id=call_id[:16],
            correlation_id=above.correlation_id,
            auth=above.auth,
            origin=above.origin,
            call_chain=above.call_chain,
            waiting=above.waiting,
            parent_id=asker.call_id,
            root_id=above.root_id or asker.call_id,
            parent_span_id=above.span_id,
            **fields,
        )


@dataclass(frozen=True, slots=True)
class BlockingToolCaller:
    """The tools, for plain code."""

    parts: CallerParts

    def call(self, tool: str, args: Any = None, *, timeout: float | None = None) -> ToolCallResult:
        """Call one tool, and block until its result is there."""
        return self.results(self.parts.calls([(tool, args)], timeout))[0]

    def call_many(self, calls: Iterable[Wanted]) -> list[ToolCallResult]:
        """Call many tools side by side."""
        return self.results(self.parts.calls(map(_read, calls), None))

    def results(self, calls: Sequence[ToolCall]) -> list[ToolCallResult]:
        """Queue calls, and block until all results are there."""
        self.parts.handoffs.get_ready()
        with self.parts.waits.blocked():
            handed = self.parts.handoffs.submit_calls(calls)
            with self.parts.handoffs.awaited(handed, self.parts.cancellation):
                return [one.pending.result() for one in handed]


@dataclass(frozen=True, slots=True)
class AsyncToolCaller:
    """The tools, for ``async`` code."""

    parts: CallerParts

    async def call(self, tool: str, args: Any = None, *, timeout: float | None = None) -> ToolCallResult:
        """Call one tool, and wait for its result; if the wait is cancelled, so is the call."""
        return (await self.results(self.parts.calls([(tool, args)], timeout)))[0]

    async def call_many(self, calls: Iterable[Wanted]) -> list[ToolCallResult]:
        """Call many tools side by side."""
        return await self.results(self.parts.calls(map(_read, calls), None))

    async def results(self, calls: Sequence[ToolCall]) -> list[ToolCallResult]:
        """Queue calls, and wait for all results."""
        if not self.parts.handoffs.is_ready:
            await asyncio.to_thread(self.parts.handoffs.get_ready)
        async with self.parts.waits.away():
            handed = self.parts.handoffs.submit_calls(calls)
            with self.parts.handoffs.awaited(handed, self.parts.cancellation):
                return await asyncio.gather(*(one.pending.wait() for one in handed))


def _read(call: Wanted) -> tuple[str, Any]:
    """Read a call as an agent writes it.

    Raises:
        ToolInputValidationError: it cannot be read.
    """
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

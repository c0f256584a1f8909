"""A Turn that a producer handles: a worker opens its Steps, and runs the tool calls of each (DESIGN §6).

Waiting methods exist twice, blocking and for asyncio; the rest is shared.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from goondan_tasks.authoring.handoff import moment_of
from goondan_tasks.client.arguments import end_of_wait
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.client.pending_call import PendingCall, raised
from goondan_tasks.contract.calls import CallDraft, completed_draft
from goondan_tasks.contract.catalog import ToolCatalog
from goondan_tasks.contract.errors import (
    CallNotFoundError,
    MiddlewareError,
    StepLimitError,
    ToolInputValidationError,
)
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from goondan_tasks.contract.model_messages import StepCallResult
from goondan_tasks.contract.moments import Moment
from goondan_tasks.contract.names import STEP_TOOL
from goondan_tasks.history import (
    KeptStep,
    RecordedStep,
    ReplyCalls,
    StepCall,
    StepInput,
    StepRecord,
    TurnCalls,
    TurnEntry,
    opening_id,
)

AT_ONCE = Moment()


@dataclass(frozen=True, slots=True)
class TurnScope:
    """The common fields of all calls of one Turn, and the connection that submits them."""

    connection: ClientConnection = field(repr=False)
    agent: str
    instance_key: str
    turn_id: str
    trace_id: str
    correlation_id: str
    auth: JsonObject | None = field(default=None, repr=False)
    origin: JsonObject | None = None
    calls: TurnCalls = field(default_factory=TurnCalls, repr=False)

    def draft(self, tool: str, args: Any, tool_call_id: str, **more: Any) -> CallDraft:
        wire = {
            "agentName": self.agent,
            "instanceKey": self.instance_key,
            "turnId": self.turn_id,
            "traceId": self.trace_id,
            "correlationId": self.correlation_id,
            "auth": self.auth,
            "origin": self.origin,
            "toolName": tool,
            "args": args,
            "toolCallId": tool_call_id,
            **more,
        }
        return completed_draft(wire)

    def drafts(self, calls: Sequence[StepCall], delay_ms: int = 0, **common: Any) -> list[CallDraft]:
        """Make the calls of one Step; their ids and names are known to be valid, the ``common`` fields not.

        So only the first one is validated, with its message, which contains all of them.
        """
        if not calls:
            return []
        first = self.draft("", {}, "", message=calls[0].message, **common)
        return [
            CallDraft(first.call.model_copy(update=_own(call)), first.fault, call.message_json, delay_ms)
            for call in calls
        ]


@dataclass(frozen=True, slots=True)
class ProducerStep(RecordedStep):
    """An open Step: its catalog is fixed, and its calls may use no other tools."""

    #: the tools that the model may call; ``.to_openai()``, ``.to_anthropic()``, ``.to_mcp()``
    catalog: ToolCatalog
    record: StepRecord = field(repr=False)
    scope: TurnScope = field(repr=False)

    def submit(
        self,
        reply: Any,
        timeout: float | None,
        timeout_seconds: float | None,
        moment: Moment = AT_ONCE,
        *,
        is_awaited: bool = False,
    ) -> tuple[ReplyCalls, Sequence[PendingCall]]:
        """Submit the tool calls of the model without waiting; raises as :meth:`Step.run`."""
        scope, connection, settings = self.scope, self.scope.connection, self.scope.connection.settings
        asked = scope.calls.of_step(self.record, self.catalog, reply, max_args_bytes=settings.max_args_bytes)
        names = {"help_url": settings.help_url, "correlation_id": scope.correlation_id}
        calls = ReplyCalls.of(asked, self.record, **names)
        drafts = scope.drafts(
            calls.submitted(),
            moment.delay_ms,
            stepId=self.id,
            bundleRef=self.record.bundle_ref,
            timeoutSeconds=timeout_seconds,
            notBefore=moment.not_before,
        )
        if not drafts:
            return calls, []
        with connection.retrying(timeout):
            noting = partial(connection.step_store.noting, self.record)
            pending = connection.submit_drafts(drafts, noting, is_awaited=is_awaited)
        return calls, pending


class Step(ProducerStep):
    """An open Step whose calls block until they have ended."""

    __slots__ = ()

    def run(
        self,
        reply: Any,
        *,
        timeout: float | None = None,
        timeout_seconds: float | None = None,
        wait_pending: bool = False,
        delay: float | None = None,
        not_before: datetime | str | None = None,
    ) -> list[StepCallResult]:
        """Run the tool calls of the model in parallel; their results come in call order.

        ``reply`` is the model's whole message, which handlers and middlewares see, or the list of its tool
        calls, in the format of OpenAI, of Anthropic or of our Message. Each result has the ``message`` that
        the model expects back. A mistake of the model is a result too. Repeating a call within this Step
        gives the same call.

        ``timeout`` only waits, in seconds; ``timeout_seconds`` limits each run; ``wait_pending`` waits for
        the final result of a call that is pending. With ``delay``, in seconds, or ``not_before``, as for
        :meth:`Client.submit`, the calls begin at that time.

        Raises:
            ToolInputValidationError: ``reply`` is not a model's reply, an item in it is not a tool call, or
                the time is not valid.
            WaitTimeout: the results did not arrive in time; the calls continue.
            BrokerUnreachableError, ToolCallConflictError: as :meth:`Client.submit`.
        """
        end = end_of_wait(timeout)
        moment = _moment(delay, not_before)
        calls, pending = self.submit(reply, timeout, timeout_seconds, moment, is_awaited=True)
        return calls.answered([one.result(_left(end), wait_pending=wait_pending) for one in pending])


class AsyncStep(ProducerStep):
    """An open Step whose calls are awaited."""

    __slots__ = ()

    async def run(
        self,
        reply: Any,
        *,
        timeout: float | None = None,
        timeout_seconds: float | None = None,
        wait_pending: bool = False,
        delay: float | None = None,
        not_before: datetime | str | None = None,
    ) -> list[StepCallResult]:
        """Run the tool calls of the model in parallel; see :meth:`Step.run`."""
        end = end_of_wait(timeout)
        moment = _moment(delay, not_before)
        calls, pending = await self.scope.connection.threads.run(
            self.submit, reply, timeout, timeout_seconds, moment
        )
        waits = (one.wait(_left(end), wait_pending=wait_pending) for one in pending)
        return calls.answered(await asyncio.gather(*waits))


@dataclass(slots=True)
class ProducerTurn:
    """One event that a producer handles; its Steps follow one another."""

    scope: TurnScope
    _steps: list[str] = field(default_factory=list, repr=False)
    #: how often the next Step could not be opened
    _failures: int = field(default=0, repr=False)

    @property
    def id(self) -> str:
        """The ``turnId`` of its calls."""
        return self.scope.turn_id

    def ask(
        self, message: JsonObject | None, timeout: float | None, *, is_awaited: bool = False
    ) -> PendingCall:
        """Ask for the next Step; return the call whose result :meth:`take` reads."""
        if message is not None and not isinstance(message, dict):
            raise ToolInputValidationError(f"A Step begins with an object, not {message!r:.200}.")
        index = len(self._steps)
        previous = self._steps[-1] if self._steps else None
        asked = StepInput(index=index, message=message, previous_step_id=previous)
        draft = self.scope.draft(STEP_TOOL, asked.to_wire(), opening_id(index, self._failures))
        with self.scope.connection.retrying(timeout):
            [pending] = self.scope.connection.submit_drafts([draft], is_awaited=is_awaited)
        return pending

    def take(self, opened: ToolCallResult, *, is_new: bool) -> KeptStep:
        """Read the Step that has been opened, from Redis unless it is new; raises as :meth:`Turn.step`."""
        if opened.error is not None:
            self._failures += 1
            raise raised(opened.error, StepLimitError, MiddlewareError)
        step_id, told = opened.output["stepId"], opened.output.get("step")
        with self.scope.connection.broker_errors():
            store = self.scope.connection.step_store
            is_told = is_new and told is not None
            kept = store.with_catalog(StepRecord.from_wire(told)) if is_told else store.read(step_id)
        if kept is None:
            raise CallNotFoundError(f"Step {step_id} has expired.")
        self._failures = 0
        self._steps.append(step_id)
        return kept

    def _entries(self) -> list[TurnEntry]:
        scope = self.scope
        with scope.connection.broker_errors():
            return scope.connection.step_store.turn(scope.agent, scope.instance_key, self.id)


class Turn(ProducerTurn):
    """A Turn of a program that blocks."""

    __slots__ = ()

    def step(self, message: JsonObject | None = None, *, timeout: float | None = None) -> Step:
        """Open the next Step: a worker runs its middlewares, and fixes the catalog and blocks for the model.

        ``message``, with which the Step begins, is for the middlewares. ``timeout`` only limits the wait, in
        seconds. A producer that begins the Turn again after a crash gets the same Steps.

        Raises:
            StepLimitError: the Turn has had ``policy.maxStepsPerTurn`` Steps.
            MiddlewareError: a step middleware failed, or prevented the Step from opening.
            ToolError: it could not be opened for another reason; the code says which.
            WaitTimeout: no worker has opened it yet; calling again waits for the same Step.
            ToolInputValidationError: ``message`` is not an object.
            AgentNotFoundError, PayloadTooLargeError, ToolCallConflictError, BrokerUnreachableError:
                as :meth:`Client.submit`.
        """
        end = end_of_wait(timeout)
        pending = self.ask(message, timeout, is_awaited=True)
        is_new = not pending.was_known
        kept = self.take(pending.result(_left(end)), is_new=is_new)
        return Step(kept.catalog, kept.record, self.scope)

    def record(self) -> list[TurnEntry]:
        """Return the record of the Turn: its Steps, with the message that began each, and its calls' ids.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        return self._entries()


class AsyncTurn(ProducerTurn):
    """A Turn whose Steps are awaited."""

    __slots__ = ()

    async def step(self, message: JsonObject | None = None, *, timeout: float | None = None) -> AsyncStep:
        """Open the next Step; see :meth:`Turn.step`."""
        end = end_of_wait(timeout)
        pending = await self.scope.connection.threads.run(self.ask, message, timeout)
        is_new = not pending.was_known
        opened = await pending.wait(_left(end))
        kept = await self.scope.connection.threads.run(self.take, opened, is_new=is_new)
        return AsyncStep(kept.catalog, kept.record, self.scope)

    async def record(self) -> list[TurnEntry]:
        """Return the record of the Turn; see :meth:`Turn.record`."""
        return await self.scope.connection.threads.run(self._entries)


def _moment(delay: float | None, not_before: datetime | str | None) -> Moment:
    return moment_of({"delay": delay, "not_before": not_before}, "The call")


def _own(call: StepCall) -> dict[str, Any]:
    """Return the fields that each call of a Step has for itself."""
    fields = {
        "tool_name": call.tool_name,
        "args": call.asked.args,
        "tool_call_id": call.tool_call_id,
        "span_id": secrets.token_hex(8),
    }
    if call.model_call_id is not None:
        fields["model_call_id"] = call.model_call_id
    return fields


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())

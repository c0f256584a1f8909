"""One Step of a producer: what its model is shown, and the tool calls that the model makes."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.bundle.catalog import ToolCatalog
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.client.turn_desk import TurnDesk
from goondan_tasks.messages import JsonObject, ToolCallResult
from goondan_tasks.model_messages import StepCallResult
from goondan_tasks.steps import StepCall, StepRecord, in_order, refused


@dataclass(frozen=True, slots=True)
class SubmittedCalls:
    """The calls of one answer of the model, on their way."""

    calls: Sequence[StepCall]
    refusals: Sequence[StepCallResult | None]
    #: those that are not refused, in call order
    pending: Sequence[PendingCall]

    def answered(self, results: Iterable[ToolCallResult]) -> list[StepCallResult]:
        """Return the answers to all of them, given the results of ``pending``."""
        asked = [call for call in self.calls if call.asked.fault is None]
        answers = (call.answered(result) for call, result in zip(asked, results, strict=True))
        return in_order(self.refusals, answers)


@dataclass(frozen=True, slots=True)
class Step:
    """A Step that has opened: its catalog does not change any more, and is all that its calls may use."""

    #: what the model may call; ``.to_openai()``, ``.to_anthropic()``, ``.to_mcp()``
    catalog: ToolCatalog
    record: StepRecord = field(repr=False)
    desk: TurnDesk = field(repr=False)

    @property
    def id(self) -> str:
        """The Step's id: the ``stepId`` of its calls."""
        return self.record.id

    @property
    def index(self) -> int:
        """How many Steps the Turn has had before."""
        return self.record.index

    @property
    def blocks(self) -> tuple[JsonObject, ...]:
        """What the model is told besides its messages: ``{type, data?, items?, priority?}``."""
        return self.record.blocks

    def run(
        self,
        reply: Any,
        *,
        timeout: float | None = None,
        timeout_seconds: float | None = None,
        wait_pending: bool = False,
    ) -> list[StepCallResult]:
        """Run the tool calls of the model side by side; their results come in call order.

        ``reply`` is the model's whole message, which handlers and middlewares are shown, or the list of its
        tool calls; as OpenAI, Anthropic or we write them. Each result has a ``message``: what the
        model expects back for it. Whatever the model has got wrong is a result too. The same calls asked for
        again in this Step are the same calls.

        ``timeout`` only waits, in seconds; ``timeout_seconds`` limits each run; ``wait_pending`` waits for
        the final result of a call that is pending.

        Raises:
            ToolInputValidationError: it is no reply of a model, or something in it is no tool call at all.
            WaitTimeout: the results are not there in time; the calls go on.
            BrokerUnreachableError, ToolCallConflictError: as :meth:`Client.submit`.
        """
        submitted = self.submit(reply, timeout_seconds=timeout_seconds)
        end = None if timeout is None else time.monotonic() + timeout
        return submitted.answered(
            [one.result(_left(end), wait_pending=wait_pending) for one in submitted.pending]
        )

    def submit(self, reply: Any, *, timeout_seconds: float | None = None) -> SubmittedCalls:
        """Submit the calls without waiting; raises as :meth:`run`."""
        desk, actions = self.desk, self.desk.actions
        calls = desk.calls.of_step(self.record, self.catalog, reply, max_args_bytes=actions.max_args_bytes)
        refusals = [
            refused(call, self.record, help_url=actions.help_url, correlation_id=desk.correlation_id)
            for call in calls
        ]
        drafts = [
            desk.draft(
                call.tool_name,
                call.asked.args,
                call.tool_call_id,
                stepId=self.id,
                bundleRef=self.record.bundle_ref,
                timeoutSeconds=timeout_seconds,
                message=call.message,
                modelCallId=call.model_call_id,
            )
            for call in calls
            if call.asked.fault is None
        ]
        if not drafts:
            return SubmittedCalls(calls, refusals, [])
        pending = actions.submit(drafts)
        with actions.broker_errors():
            actions.store.note_calls(self.record, [one.id for one in pending])
        return SubmittedCalls(calls, refusals, pending)


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())

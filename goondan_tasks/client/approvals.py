"""Calls that wait for a person's approval: list them, and decide, with other arguments if need be."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Unpack

from broker_config import serializer
from goondan_tasks.client.acts import OF_APPROVALS
from goondan_tasks.client.arguments import checking_arguments
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.client.pending_call import require_possible
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    ApprovalDeniedError,
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    ToolInputValidationError,
)
from goondan_tasks.contract.failure import ErrorLike, as_exception, describe
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.schema import SchemaError, compile_schema
from goondan_tasks.contract.wording import require_keywords
from goondan_tasks.fleet.audit import recording
from goondan_tasks.ledger.call_filter import CallFilter, is_wanted, moments
from goondan_tasks.ledger.completions import is_same_json
from goondan_tasks.ledger.record import CallRecord, Outcome

#: another person was faster, or the call has ended or expired
_DECIDED = (CallClosedError, CallNotPendingError, CallNotFoundError)


@recording(OF_APPROVALS)
@checking_arguments
class ApprovalClient(ClientConnection):
    """The decisions of a person about calls."""

    def approvals(self, agent: str | None = None, **wanted: Unpack[CallFilter]) -> list[CallRecord]:
        """Return the calls that wait for an approval, of one agent or of all, the oldest first.

        ``wanted`` narrows them; ages are since the submission.
        """
        require_keywords("approvals()", wanted, CallFilter.__annotations__)
        with self.broker_errors():
            found = self._completions.approvals(self._agents_of(agent))
            earliest, latest = moments(self._redis, wanted)
        return [one for one in found if earliest <= one.queued_at <= latest and is_wanted(one, wanted)]

    def approve(self, call_id: str, by: str = "", args: JsonObject | None = None) -> None:
        """Approve a call, which then runs; ``by`` names the approver.

        With ``args`` it runs with these arguments. The record keeps those that were asked for, in
        ``call.edited``, and the agent is told with the result.

        Raises:
            CallClosedError: it has its final result: it was denied or cancelled, or has expired.
            CallNotPendingError: it does not, or no longer, wait for an approval.
            CallNotFoundError: as :meth:`pending`.
            ToolInputValidationError: ``by`` is not text of at most 200 characters, or ``args`` do not match
                the tool's parameters; then it waits as before.
            PayloadTooLargeError: ``args`` exceed ``MAX_ARGS_BYTES``.
        """
        record = self.record(call_id)
        edited = None if args is None else self._edited(record, args)
        with self.broker_errors():
            self._completions.approve(record, by, edited)

    def deny(self, call_id: str, reason: str = "", by: str = "") -> None:
        """End a call that waits for an approval: ``E_APPROVAL_DENIED``; raises as :meth:`approve` does."""
        who = f" by {by}" if by else ""
        why = f": {reason}" if reason else ". No reason was given."
        error = ApprovalDeniedError(f"The call was denied{who}{why}")
        self._complete(call_id, self._error_outcome(error), is_decision=True)

    def approve_many(self, call_ids: Iterable[str], by: str = "") -> list[str]:
        """Approve calls; return the ids of those that run now.

        Those that were decided meanwhile, have ended or are unknown are left out.
        """
        return _each(call_ids, lambda call_id: self.approve(call_id, by))

    def deny_many(self, call_ids: Iterable[str], reason: str = "", by: str = "") -> list[str]:
        """Deny calls as :meth:`approve_many` approves them; return the ids of those that are denied."""
        return _each(call_ids, lambda call_id: self.deny(call_id, reason, by))

    def _edited(self, record: CallRecord, args: JsonObject) -> JsonObject | None:
        """Check the arguments that replace those of a call; ``None`` if they are the same.

        If no catalog has the tool any more, only its worker can check them, before it runs the call.

        Raises:
            ToolInputValidationError, PayloadTooLargeError: see :meth:`approve`.
        """
        call = record.call.model_copy(update={"args": args})
        try:
            self.submitter.require_sizes(call)
            serializer.encode(args, serializer.DEEPEST)
        except serializer.NotJsonError as error:
            raise ToolInputValidationError(f"The arguments are not JSON: {error}.") from error
        if is_same_json(args, record.call.args):
            return None
        if record.awaits != "approval":
            return args  # refused, unless it begins to wait in this moment; then its worker checks them
        try:
            faults = compile_schema(self._parameters_of(call)).faults(args)
        except SchemaError:
            faults = []
        if faults:
            raise ToolInputValidationError(
                f"The arguments for {call.tool_name} are not valid: {'; '.join(faults)}. "
                f"Call {record.id} waits as before.",
                suggestion="Correct the arguments named in the message and approve the call again.",
            )
        return args

    def _parameters_of(self, call: ToolCall) -> JsonObject | None:
        """Return the schema of a call's arguments by the catalog of its Step, else of its agent."""
        with self.broker_errors():
            step = None if call.step_id is None else self.step_store.read(call.step_id)
            if step is not None and (item := step.catalog.item(call.tool_name)) is not None:
                return item.parameters
            with suppress(AgentNotFoundError):
                for known in self._known_agents.current(call.agent_name).catalog:
                    if known["name"] == call.tool_name:
                        parameters: JsonObject | None = known.get("parameters")
                        return parameters
        return None

    def _complete(self, call_id: str, outcome: Outcome, *, is_decision: bool = False) -> None:
        require_possible(call_id)
        with self.broker_errors():
            self._completions.complete(call_id, outcome, "producer", is_decision=is_decision)

    def _error_outcome(self, error: ErrorLike) -> Outcome:
        return Outcome(error=describe(as_exception(error), help_url=self.settings.help_url))


def _each(call_ids: Iterable[str], decide: Callable[[str], None]) -> list[str]:
    decided = []
    for call_id in call_ids:
        with suppress(*_DECIDED):
            decide(call_id)
            decided.append(call_id)
    return decided

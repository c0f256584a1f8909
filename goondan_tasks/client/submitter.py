"""Getting calls accepted: checked, recorded and queued, many in one trip."""

from collections.abc import Sequence
from dataclasses import dataclass

from broker_config import serializer
from goondan_tasks.agents.handling import is_event
from goondan_tasks.agents.handoff import event_submission
from goondan_tasks.client.producer_span import producer_span
from goondan_tasks.dispatch import Dispatch
from goondan_tasks.errors import (
    BrokerUnreachableError,
    ToolCallConflictError,
    ToolInputValidationError,
)
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Admission
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.ledger.submission import Submission, call_json, digest_of
from goondan_tasks.messages import ToolCall
from goondan_tasks.new_call import Draft, require_sizes


@dataclass(frozen=True, slots=True)
class Accepted:
    """A call that the ledger has. ``is_new`` is false if it had it before."""

    id: str
    is_new: bool


class Submitter:
    """Hands calls to the ledger and their messages to the broker."""

    def __init__(
        self, ledger: Ledger, dispatch: Dispatch, settlement: Settlement, *, max_args_bytes: int
    ) -> None:
        self._ledger = ledger
        self._dispatch = dispatch
        self._settlement = settlement
        self._max_args_bytes = max_args_bytes

    def submit(self, drafts: Sequence[Draft], producer: str) -> list[Accepted]:
        """Accept calls; one that is wrong, or has no JSON form, is answered with that error.

        Raises:
            PayloadTooLargeError: a call exceeds a limit of :func:`require_sizes`; none is accepted.
            ToolCallConflictError: a call was submitted before with other arguments; those beside it
                are accepted.
            BrokerUnreachableError: the broker, if it is not the ledger's Redis, cannot be reached.
        """
        with producer_span(drafts) as sent:
            return self.submit_prepared([self._prepare(draft) for draft in sent], producer)

    def submit_event(self, call: ToolCall, producer: str) -> Accepted:
        """Accept an event; raises as :meth:`submit` and :meth:`prepare_event`."""
        with producer_span([Draft(call)]) as [sent]:
            return self.submit_prepared([self.prepare_event(sent.call)], producer)[0]

    def submit_again(self, calls: Sequence[ToolCall], producer: str) -> list[Accepted]:
        """Accept calls and events that were accepted before, in another Turn; raises as both."""
        prepared = [
            self.prepare_event(call) if is_event(call) else self._prepare(Draft(call)) for call in calls
        ]
        return self.submit_prepared(prepared, producer)

    def submit_prepared(self, submissions: Sequence[Submission], producer: str) -> list[Accepted]:
        """Accept what was prepared; raises as :meth:`submit`."""
        admissions = self._ledger.submit_all(submissions, producer)
        for submission, admission in zip(submissions, admissions, strict=True):
            self._follow_up(submission, admission)
        for submission, admission in zip(submissions, admissions, strict=True):
            if admission.is_conflict:
                raise _conflict(submission)
        return [
            Accepted(submission.id, admission.is_new and not submission.fault)
            for submission, admission in zip(submissions, admissions, strict=True)
        ]

    def _follow_up(self, submission: Submission, admission: Admission) -> None:
        if admission.is_conflict:
            return
        if submission.fault:
            if admission.is_new:
                self._refuse(submission)
        elif admission.status == "queued":
            # known ones too: whoever recorded it may have died before the message was sent, and the
            # ledger drops doubles
            self._send(submission)

    def _send(self, submission: Submission) -> None:
        try:
            self._dispatch.send(submission.id, submission.call)
        except BrokerUnreachableError:
            if submission.mailbox:  # without a message it would stand in the way of those behind it
                self._settlement.cancel(submission.id, "producer")
            raise

    def prepare_call(self, call: ToolCall) -> Submission:
        """Make a call ready to be accepted.

        Raises:
            ToolInputValidationError: it has no JSON form, or a name that is the system's own.
            PayloadTooLargeError: it exceeds a limit of :func:`require_sizes`.
        """
        submission = self._prepare(Draft(call))
        if submission.fault:
            raise ToolInputValidationError(submission.fault)
        return submission

    def prepare_event(self, call: ToolCall) -> Submission:
        """Make an event ready to be accepted.

        Raises:
            ToolInputValidationError: it has no JSON form.
            PayloadTooLargeError: it exceeds a limit of :func:`require_sizes`.
        """
        try:
            require_sizes(call, len(serializer.encode(call.args)), self._max_args_bytes)
            return event_submission(self._dispatch, call)
        except serializer.NotJsonError as error:
            raise ToolInputValidationError(f"The event is not valid JSON: {error}.") from error

    def _prepare(self, draft: Draft) -> Submission:
        call, call_id = draft.call, draft.id
        if is_event(call):
            draft = Draft(
                _without_tool(call), f"{call.tool_name} is no tool: request and send hand events over."
            )
            call = draft.call
        try:
            args = serializer.encode(call.args)
            wire = call_json(call, args)
        except serializer.NotJsonError as error:
            bare = _without_payload(call)
            args, wire = b"{}", serializer.encode(bare.to_wire())
            fault = f"The call is not valid JSON: {error}."
            return Submission(call_id, bare, wire, digest_of(bare, args), fault=fault)
        require_sizes(call, len(args), self._max_args_bytes)
        message = b"" if draft.fault else self._dispatch.inline(call_id, call, wire)
        return Submission(call_id, call, wire, digest_of(call, args), message, draft.fault)

    def _refuse(self, submission: Submission) -> None:
        request = ClaimRequest(submission.id, submission.call, "producer", ClaimTerms())
        claim = self._ledger.claim(request)
        self._settlement.fail(claim, ToolInputValidationError(submission.fault))


def _conflict(submission: Submission) -> ToolCallConflictError:
    return ToolCallConflictError(
        f"Call {submission.id} (toolCallId {submission.call.tool_call_id!r}, turn "
        f"{submission.call.turn_id!r}) was submitted before with other arguments."
    )


def _without_payload(call: ToolCall) -> ToolCall:
    """Keep of a call without a JSON form what its refusal needs, in printable text."""
    texts = {
        name: _printable(getattr(call, name))
        for name in (
            "tool_call_id",
            "tool_name",
            "instance_key",
            "turn_id",
            "correlation_id",
            "trace_id",
            "span_id",
        )
    }
    absent = dict.fromkeys(
        (
            "message",
            "auth",
            "origin",
            "step_id",
            "timeout_seconds",
            "idempotency_key",
            "bundle_ref",
            "replay_of",
            "parent_id",
            "root_id",
            "parent_span_id",
        )
    )
    return call.model_copy(update={"args": {}, "call_chain": (), **absent, **texts})


def _without_tool(call: ToolCall) -> ToolCall:
    """Take a name away that would make the ledger believe that this is an event."""
    return call.model_copy(update={"tool_name": call.tool_name.partition("__")[2]})


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

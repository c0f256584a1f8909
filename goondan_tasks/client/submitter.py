"""Submission of calls to the ledger, many in one trip, and replays."""

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.confirmation import NotConfirmedError
from broker_config.scripts import ScriptCall
from goondan_tasks.contract.calls import CallDraft, identity_of, queue_element, require_sizes
from goondan_tasks.contract.errors import (
    NotReplayableError,
    PayloadTooLargeError,
    ToolCallConflictError,
    ToolInputValidationError,
    ToolNotInCatalogError,
)
from goondan_tasks.contract.events import is_event, queue_of
from goondan_tasks.contract.messages import Message, ToolCall, ToolCallResult
from goondan_tasks.contract.moments import delay_fault
from goondan_tasks.contract.names import NO_CALL_TOOL, current_context, current_span, open_telemetry, span_ids
from goondan_tasks.contract.table_rows import name_keys
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Admission, CallRecord
from goondan_tasks.ledger.submission import Submission, call_json, conflict_of, digest_of, event_submission


class Submitter:
    """Hands calls to the ledger, with their messages."""

    def __init__(self, ledger: Ledger, reaper: Reaper, *, max_args_bytes: int) -> None:
        self._ledger = ledger
        self._reaper = reaper
        self._max_args_bytes = max_args_bytes
        #: the message that was written last, and its JSON
        self._written: tuple[Message | None, bytes] = (None, b"")

    def prepare(self, draft: CallDraft) -> Submission:
        """Prepare a call for submission; if it is not valid, the submission has the reason in ``fault``.

        Raises:
            PayloadTooLargeError: it exceeds a limit of :func:`require_sizes`.
        """
        call, fault, message_json, _ = draft
        if call.not_before is not None and (late := delay_fault(call)):
            fault, call = f"The call is not valid: {late}.", call.model_copy(update={"not_before": None})
        if is_event(call):
            fault = f"{call.tool_name} is not a tool: use request or send for events."
            # with its full name the ledger would treat the call as an event
            call = call.model_copy(update={"tool_name": call.tool_name.partition("__")[2]})
        call_id = identity_of(draft.call)
        try:
            args = serializer.encode(call.args, serializer.DEEPEST)
            wire = call_json(call, args, message_json or self._message_json(call.message))
            require_sizes(call, len(args), self._max_args_bytes)
        except serializer.NotJsonError as error:
            bare = _without_payload(call)
            args, wire = b"{}", serializer.encode(bare.to_wire())
            fault = f"The call is not valid JSON: {error}."
            return Submission(call_id, bare, wire, digest_of(bare, args), fault=fault)
        message = b"" if fault else queue_element(call_id, call, wire)
        return Submission(call_id, call, wire, digest_of(call, args), message, fault)

    def _message_json(self, message: Message | None) -> bytes:
        """Return the JSON of a message, written once for all calls of a model's reply, which share it."""
        known, text = self._written
        if message is not known:
            text = b"" if message is None else serializer.encode(message.to_wire())
            self._written = message, text
        return text

    def require_sizes(self, call: ToolCall) -> None:
        """Refuse a call that :meth:`prepare` would refuse.

        Raises:
            PayloadTooLargeError: it exceeds a limit of :func:`require_sizes`.
        """
        with suppress(serializer.NotJsonError):  # a fault, which becomes its result
            args = serializer.encode(call.args, serializer.DEEPEST)
            require_sizes(call, len(args), self._max_args_bytes)

    def prepare_call(self, call: ToolCall) -> Submission:
        """Prepare a call for submission.

        Raises:
            ToolInputValidationError: it has no JSON form, or uses a tool name of the system.
            PayloadTooLargeError: it exceeds a limit of :func:`require_sizes`.
        """
        submission = self.prepare(CallDraft(call))
        if submission.fault:
            raise ToolInputValidationError(submission.fault)
        return submission

    def prepare_event(self, call: ToolCall) -> Submission:
        """Prepare an event for submission.

        Raises:
            ToolInputValidationError: it has no JSON form.
            PayloadTooLargeError: it exceeds a limit of :func:`require_sizes`.
        """
        try:
            require_sizes(call, len(serializer.encode(call.args, serializer.DEEPEST)), self._max_args_bytes)
            if fault := delay_fault(call):
                raise ToolInputValidationError(f"The event is not valid: {fault}.")
            return event_submission(call)
        except serializer.NotJsonError as error:
            raise ToolInputValidationError(f"The event is not valid JSON: {error}.") from error

    def accept(
        self,
        submissions: Sequence[Submission],
        producer: str,
        *after: ScriptCall[Any],
        meanwhile: Callable[[], object] | None = None,
    ) -> tuple[list[int], dict[int, ToolCallConflictError]]:
        """Submit prepared calls, and run scripts ``after`` that; a fault becomes the call's result.

        ``meanwhile`` is called when they are sent, before it is known that they are accepted.

        Return the positions of the calls to look for: known ones and those with a fault, which may have
        results already, and those with damaged records, which have none. And the conflicts, by position:
        calls that were submitted before with other arguments. The others are accepted.

        Raises:
            NotConfirmedError: all are accepted, but for conflicts, and too few replicas have confirmed it.
            RecordDamagedError: another program has written a key that all calls share, and none is accepted.
        """
        unconfirmed: NotConfirmedError | None = None
        try:
            admissions = self._ledger.submit_all(submissions, producer, *after, meanwhile=meanwhile)
        except ResponseError as error:
            queues = dict.fromkeys(queue_of(one.call) for one in submissions)
            name_keys((self._ledger.keys.due, *queues), error)
            raise
        except NotConfirmedError as error:
            of_calls = error.answers[: len(error.answers) - len(after)]
            unconfirmed, admissions = error, list(itertools.chain.from_iterable(of_calls))
        for submission, admission in zip(submissions, admissions, strict=True):
            self._follow_up(submission, admission)
        if unconfirmed is not None:
            raise unconfirmed
        looked_for, conflicts = [], {}
        for at, (submission, admission) in enumerate(zip(submissions, admissions, strict=True)):
            if admission.is_conflict:
                conflicts[at] = conflict_of(submission)
            elif submission.fault or not admission.is_new:
                looked_for.append(at)
        return looked_for, conflicts

    def _follow_up(self, submission: Submission, admission: Admission) -> None:
        """Answer a call that has a fault."""
        if not submission.fault or admission.is_conflict or admission.is_damaged:
            return
        if admission.is_new or self._was_recorded(submission):
            self._refuse(submission)

    def _was_recorded(self, submission: Submission) -> bool:
        """Return whether the recorded call is this one, whose submission was not answered."""
        record = self._ledger.record(submission.id)
        return record is not None and (record.status, record.call) == ("queued", submission.call)

    def _refuse(self, submission: Submission) -> None:
        request = ClaimRequest(submission.id, submission.call, "producer", ClaimTerms())
        claim = self._ledger.claim(request).run(self._ledger.redis)
        self._reaper.fail(claim, ToolInputValidationError(submission.fault))


def _without_payload(call: ToolCall) -> ToolCall:
    """Return a call that has no JSON form with only the fields that its refusal needs, as printable text."""
    texts = {
        name: getattr(call, name).encode("utf-8", "backslashreplace").decode("utf-8")
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
            "not_before",
            "idempotency_key",
            "bundle_ref",
            "replay_of",
            "parent_id",
            "root_id",
            "parent_span_id",
            "trace_context",
        )
    )
    return call.model_copy(update={"args": {}, "call_chain": (), **absent, **texts})


def producer_span(drafts: Sequence[CallDraft]) -> AbstractContextManager[Sequence[CallDraft]]:
    """Open a span of kind PRODUCER and return the calls with it as their parent.

    Calls of another trace stay unchanged. Without a current span, or without a call of its trace, no span is
    opened.
    """
    here = current_span()
    if here is None or all(draft.call.trace_id != here.trace_id for draft in drafts):
        return nullcontext(drafts)
    return _open_span(drafts)


@contextmanager
def _open_span(drafts: Sequence[CallDraft]) -> Iterator[Sequence[CallDraft]]:
    api = open_telemetry()
    queues = sorted({queue_of(draft.call) for draft in drafts})
    with api.get_tracer("goondan").start_as_current_span(
        f"send {', '.join(queues)}", kind=api.SpanKind.PRODUCER, attributes=_attributes(drafts, queues)
    ) as span:
        yield [_asked_by(span, draft) for draft in drafts]


def _asked_by(span: Any, draft: CallDraft) -> CallDraft:
    ids = span_ids(span)
    if ids is None or draft.call.trace_id != ids.trace_id or draft.call.parent_span_id is not None:
        return draft
    found = {"parent_span_id": ids.span_id, "trace_context": draft.call.trace_context or current_context()}
    return draft._replace(call=draft.call.model_copy(update=found))


def _attributes(drafts: Sequence[CallDraft], queues: Sequence[str]) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "celery",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.batch.message_count": len(drafts),
    }
    if len(queues) == 1:
        attributes["messaging.destination.name"] = queues[0]
    if len(drafts) == 1:
        attributes["messaging.message.id"] = attributes["goondan.call_id"] = identity_of(drafts[0].call)
        attributes["goondan.tool"] = drafts[0].call.tool_name
    return attributes


#: after these the record does not have the arguments that were asked for
_REFUSED = {ToolInputValidationError.code, PayloadTooLargeError.code}


def may_be_replayed(letter: CallRecord) -> bool:
    """Return whether a dead letter is a call, and was not replayed yet."""
    return letter.replayed_by is None and letter.call.tool_name != NO_CALL_TOOL


def require_replayable(record: CallRecord, result: ToolCallResult | None, *, again: bool) -> None:
    """Refuse a call that must not be replayed.

    Raises:
        NotReplayableError: it has not ended, has succeeded, was refused, holds no call, or was replayed
            before and ``again`` is false.
    """
    if not record.has_ended:
        raise NotReplayableError(f"Call {record.id} has not ended: it is {record.status}.")
    if record.outcome == "ok":
        raise NotReplayableError(f"Call {record.id} has succeeded; submit another one to run it again.")
    code = "" if result is None or result.error is None else result.error.code
    if record.call.tool_name == NO_CALL_TOOL:
        raise NotReplayableError(f"{record.id} is the dead letter of a message that holds no call.")
    # a replay has no Step, so it must not run what the Step's catalog lacked
    if code in _REFUSED or (code == ToolNotInCatalogError.code and record.call.step_id is not None):
        raise NotReplayableError(
            f"Call {record.id} was refused ({code}) and would be again; submit a corrected one."
        )
    if record.replayed_by is not None and not again:
        raise NotReplayableError(
            f"Call {record.id} was replayed before, as {record.replayed_by}.",
            suggestion="Look at that call first; say --again (again=True) to replay this one once more.",
        )


def replay_of(record: CallRecord) -> ToolCall:
    """Make the call that replays another one: the same in all but its Turn, its span and its time.

    The turnId names the replayed call and counts its replays, so two producers that make the same replay get
    the same call. The Step, its time, the deadline, the idempotency key and the revision of the bundle are
    not copied: the cause of the failure may have been fixed since. Nor are the Turn's followers.
    """
    first_time_only = dict.fromkeys(
        ("step_id", "deadline", "not_before", "idempotency_key", "bundle_ref", "followed", "edited")
    )
    return record.call.model_copy(
        update={
            **first_time_only,
            "turn_id": f"replay-{record.replays + 1}-of-{record.id}",
            "span_id": uuid.uuid4().hex[:16],
            "replay_of": record.id,
        }
    )

"""Submits the calls and events of a worker process's runs, and delivers their results."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog
from redis.exceptions import ResponseError

from broker_config.pipelined_writer import PipelinedWriter
from broker_config.refusals import refusal_text
from broker_config.scripts import ScriptCall
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    GoondanError,
    ToolCancelledError,
)
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.moments import Moment
from goondan_tasks.contract.on_error import OnError
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.contract.table_rows import naming
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import NO_CALL, Admission, CallRecord, damaged
from goondan_tasks.ledger.submission import Submission, conflict_of
from workers.cancellation import Cancellation

logger = structlog.get_logger(__name__)

T = TypeVar("T")


async def answer_to(posted: "Future[T]", *, is_async: bool = True) -> T:
    """Wait for what :meth:`Handoffs.post` returned; in plain code this blocks.

    Raises:
        RecordDamagedError: the contents of a key are those of another program.
    """
    with naming():
        if is_async and not posted.done():  # a cancelled wait must not cancel the writer's future
            await asyncio.shield(asyncio.wrap_future(posted))
        return posted.result()


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitted call or event."""

    pending: PendingCall
    #: done once the ledger has it
    accepted: "Future[None]"


class Handoffs:
    """Submits calls and events through the pipelined writer, and delivers their results."""

    def __init__(self, ledger: Ledger, writer: PipelinedWriter, client: ClientConnection) -> None:
        self._ledger = ledger
        self._writer = writer
        self._client = client
        self.is_ready = False

    def get_ready(self) -> None:
        """Subscribe to results; this blocks, once.

        Raises:
            BrokerUnreachableError: Redis does not answer.
        """
        if not self.is_ready:
            self._client.listen()
            self.is_ready = True

    def time_of(self, moment: Moment) -> str | None:
        """Return the time before which it must not run, see :meth:`ClientConnection.time_of`; this blocks."""
        return self._client.time_of(moment)

    def patience(self, call: ToolCall, timeout: float) -> float:
        """Return for how many seconds to wait for the answer to a scheduled request; this blocks."""
        return self._client.patience(call, timeout)

    def scheduled(self, ids: Sequence[str]) -> list[CallRecord]:
        """Return those of these events whose time is to come; this blocks."""
        found = self._ledger.records(ids) if ids else []
        return [one for one in found if one is not None and one.status == "scheduled" and is_event(one.call)]

    def cancel(self, event_id: str) -> bool:
        """Cancel an event; return whether it was open. This blocks."""
        return self._client.cancel_open(event_id)

    def submit_calls(self, calls: Sequence[ToolCall]) -> list[Submitted]:
        """Submit tool calls in one write.

        Raises:
            ToolInputValidationError, PayloadTooLargeError: one is not JSON or too large; none is submitted.
        """
        return self._submit([self._client.submitter.prepare_call(call) for call in calls])

    def submit_event(self, call: ToolCall) -> Submitted:
        """Submit an event, its secrets masked; raises as :meth:`submit_calls`."""
        masked = call.model_copy(update={"args": KNOWN_SECRETS.hidden_in_answer(call.args)})
        return self._submit([self._client.submitter.prepare_event(masked)])[0]

    def post(self, script_call: ScriptCall[T], *, is_awaited: bool) -> "Future[T]":
        """Send a script call; return its answer. It runs before all calls that are submitted later.

        One that is not awaited goes with the next packet, and its answer is read with those of that.
        """
        answer: Future[T] = Future()
        refused, is_full = answer.set_exception, not is_awaited
        self._writer.put_off(
            script_call, answer.set_result, is_urgent=is_awaited, refused=refused, is_full=is_full
        )
        if is_awaited:
            self._writer.flush()
        return answer

    @contextmanager
    def awaited(self, submitted: Sequence[Submitted], asker: Cancellation) -> Iterator[None]:
        """Wait for results in the block; if it raises, the calls are cancelled.

        If the asking run is cancelled or ends, waits that go on end with an error. If another run has taken
        its place, nothing is done, because that run waits for the same results.
        """

        def end_waits() -> None:
            if not asker.is_taken_over:
                for one in submitted:
                    self._client.give_up(one.pending.id, ToolCancelledError())

        def cancel_calls(_: BaseException) -> None:
            if not asker.is_taken_over:
                for one in submitted:  # until the ledger has it, there is nothing to cancel
                    one.accepted.add_done_callback(partial(_cancel_accepted, one.pending))

        with OnError(cancel_calls):
            stop_listening = asker.on_cancel(end_waits, or_end=True)
            try:
                yield
            finally:
                stop_listening()

    def _submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        submitted = [self._expect(submission) for submission in submissions]
        for submission, one in zip(submissions, submitted, strict=True):
            script_call = self._ledger.submit(submission, self._client.producer)
            self._writer.put_off(
                script_call,
                partial(self._on_answer, submission, one),
                is_urgent=True,
                refused=partial(self._on_refusal, submission, one),
            )
        self._writer.flush()
        return submitted

    def _expect(self, submission: Submission) -> Submitted:
        accepted: Future[None] = Future()

        def look(call_id: str) -> str:
            """Return the status; "queued" during an outage, and until the submission is accepted."""
            if not accepted.done():
                return "queued"
            try:
                return self._client.look(call_id)
            except BrokerUnreachableError:
                return "queued"

        return Submitted(self._client.expect(submission.id, look), accepted)

    def _on_answer(self, submission: Submission, submitted: Submitted, admission: Admission) -> None:
        if admission.is_conflict:
            self._give_up(submitted, conflict_of(submission))
        elif admission.is_damaged:
            self._give_up(submitted, damaged(submission.id, NO_CALL))
        else:
            submitted.accepted.set_result(None)
            if not admission.is_new:
                _on_thread(partial(self._check, submitted))

    def _on_refusal(self, submission: Submission, submitted: Submitted, error: ResponseError) -> None:
        self._give_up(submitted, damaged(submission.id, refusal_text(error)))

    def _check(self, submitted: Submitted) -> None:
        try:
            submitted.pending.status()
        except GoondanError as error:
            self._give_up(submitted, error)

    def _give_up(self, submitted: Submitted, error: GoondanError) -> None:
        if not submitted.accepted.done():
            submitted.accepted.set_exception(error)
        self._client.give_up(submitted.pending.id, error)


def _on_thread(function: Callable[[], object]) -> None:
    threading.Thread(target=function, name="goondan-handoff", daemon=True).start()


def _cancel_accepted(pending: PendingCall, accepted: Future[None]) -> None:
    if accepted.exception() is None:  # an id that was refused may belong to another run's call
        _on_thread(partial(_cancel, pending))


def _cancel(pending: PendingCall) -> None:
    try:
        pending.cancel()
    except GoondanError as error:
        logger.info("handoff.not_called_off", call_id=pending.id, reason=str(error))

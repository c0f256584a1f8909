"""What the runs of one worker process ask for: calls of their agents' tools, and work for other agents."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from broker_config.courier import Courier
from goondan_tasks.client.client import Client
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.errors import (
    BrokerUnreachableError,
    GoondanError,
    ToolCallConflictError,
    ToolCancelledError,
)
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Admission
from goondan_tasks.ledger.submission import Submission
from goondan_tasks.messages import ToolCall
from goondan_tasks.redaction import KNOWN_SECRETS
from workers.cancellation import Cancellation

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Something that the ledger is about to have."""

    call: ToolCall
    pending: PendingCall
    #: done when the ledger has it
    accepted: "Future[None]"


class Handoffs:
    """Hands things to the ledger by courier, and follows what becomes of them."""

    def __init__(self, ledger: Ledger, courier: Courier, client: Client) -> None:
        self._ledger = ledger
        self._courier = courier
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

    def submit_calls(self, calls: Sequence[ToolCall]) -> list[HandedOver]:
        """Hand tool calls over, in one packet; one that has no JSON form, or is too large, raises.

        Raises:
            ToolInputValidationError, PayloadTooLargeError: see above; none is handed over.
        """
        return self._submit([self._client.submitter.prepare_call(call) for call in calls])

    def submit_event(self, call: ToolCall) -> HandedOver:
        """Hand an event over, without any secret that it holds; raises as :meth:`submit_calls`."""
        shown = call.model_copy(update={"args": KNOWN_SECRETS.hidden_in_answer(call.args)})
        return self._submit([self._client.submitter.prepare_event(shown)])[0]

    @contextmanager
    def awaited(self, handed: Sequence[HandedOver], asker: Cancellation) -> Iterator[None]:
        """Wait for them in here; if this block raises, they are told to stop.

        That is so, too, if the run that asks is cancelled, or ends without waiting for this block: then the
        block is told. One whose run was taken over is waited for elsewhere, perhaps in this very process:
        nothing is done.
        """
        with ExitStack() as always, ExitStack() as on_error:
            for one in handed:
                on_error.callback(self._call_off, one, asker)
            always.callback(asker.on_cancel(partial(self._wake, handed, asker), or_end=True))
            yield
            on_error.pop_all()

    def _wake(self, handed: Sequence[HandedOver], asker: Cancellation) -> None:
        """Let whoever waits for them go on without an answer."""
        if not asker.is_taken_over:
            for one in handed:
                self._client.give_up(one.pending.id, ToolCancelledError())

    def _call_off(self, handed: HandedOver, asker: Cancellation) -> None:
        """Tell whoever deals with it that nobody waits any more, on a thread of its own."""
        if not asker.is_taken_over:  # before the ledger has it, there is nothing to cancel
            handed.accepted.add_done_callback(partial(_cancel_accepted, handed.pending))

    def _submit(self, submissions: Sequence[Submission]) -> list[HandedOver]:
        handed = [self._expect(submission) for submission in submissions]
        for submission, one in zip(submissions, handed, strict=True):
            errand = self._ledger.errands.submit(submission, self._client.producer)
            self._courier.put_off(errand, partial(self._on_answer, submission, one), is_urgent=True)
        self._courier.flush()
        return handed

    def _expect(self, submission: Submission) -> HandedOver:
        accepted: Future[None] = Future()

        def look(call_id: str) -> str:
            """Take neither an outage of Redis nor a submission that is on its way for an end."""
            if not accepted.done():
                return "queued"
            try:
                return self._client.look(call_id)
            except BrokerUnreachableError:
                return "queued"

        return HandedOver(submission.call, self._client.expect(submission.id, look), accepted)

    def _on_answer(self, submission: Submission, handed: HandedOver, answer: Any) -> None:
        admission = Admission.of(answer)
        if admission.is_conflict:
            error = ToolCallConflictError(f"{submission.id} was asked for before, with another content.")
            self._give_up(handed, error)
        elif not submission.message:
            _apart(partial(self._send, submission, handed))
        else:
            handed.accepted.set_result(None)
            if not admission.is_new:
                _apart(partial(self._look, handed))

    def _look(self, handed: HandedOver) -> None:
        try:
            handed.pending.status()
        except GoondanError as error:
            self._give_up(handed, error)

    def _send(self, submission: Submission, handed: HandedOver) -> None:
        try:
            self._client.send_messages({submission.id: submission.call_json})
        except GoondanError as error:
            _cancel(handed.pending)  # without a message it would stand in the way of those behind it
            self._give_up(handed, error)
        else:
            handed.accepted.set_result(None)
            self._look(handed)

    def _give_up(self, handed: HandedOver, error: GoondanError) -> None:
        if not handed.accepted.done():
            handed.accepted.set_exception(error)
        self._client.give_up(handed.pending.id, error)


def _apart(what: Callable[[], object]) -> None:
    threading.Thread(target=what, name="goondan-handoff", daemon=True).start()


def _cancel_accepted(pending: PendingCall, accepted: Future[None]) -> None:
    if accepted.exception() is None:  # what was refused for its id is another asker's
        _apart(partial(_cancel, pending))


def _cancel(pending: PendingCall) -> None:
    try:
        pending.cancel()
    except GoondanError as error:
        logger.info("handoff.not_called_off", call_id=pending.id, reason=str(error))  # it has just ended

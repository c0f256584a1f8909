"""What a client can do about calls whose results come later."""

from collections.abc import Mapping
from typing import Any

from goondan_tasks.client.connection import Connection
from goondan_tasks.client.pending_call import require_possible
from goondan_tasks.errors import (
    ApprovalDeniedError,
    GoondanError,
    PayloadTooLargeError,
    ToolError,
    ToolInputValidationError,
)
from goondan_tasks.failure import LONGEST_NAME, describe
from goondan_tasks.ledger.outcome import Outcome
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.output import encoded_output

#: an exception, a message, or ``{"message": …, "code"?: …, "suggestion"?: …}``
ErrorLike = BaseException | str | Mapping[str, Any]


class PendingMethods(Connection):
    """The methods of :class:`goondan_tasks.client.Client` about pending calls."""

    def resolve(self, call_id: str, output: Any = None) -> None:
        """Complete a pending call with its output, any JSON: its result is ``ok`` then.

        One whose handler still runs is completed as soon as it returns that it is pending; should it return
        something else, that is the result.

        Raises:
            CallClosedError: it has its final result, or was completed before; also if it has expired.
            CallNotPendingError: it waits for an approval, or has not been run.
            CallNotFoundError: as :meth:`Client.pending`.
            ToolOutputError: the output is no JSON.
            PayloadTooLargeError: it is larger than ``MAX_OUTPUT_BYTES``.
            BrokerUnreachableError: Redis cannot be reached.
        """
        self._complete(call_id, self._outcome(output))

    def complete_with_token(
        self, call_id: str, token: str, output: Any = None, error: ErrorLike | None = None
    ) -> None:
        """Complete a call as :meth:`resolve` does, or with an error, on behalf of whoever has its callback.

        Raises:
            CallNotFoundError: the token is not the one of ``ctx.callback_url``, too.
            ToolInputValidationError: ``error`` has no message.
        """
        require_possible(call_id)
        outcome = self._outcome(output) if error is None else self._error_outcome(error)
        with self._broker_errors():
            self._completions.complete_with_token(call_id, token, outcome)

    def approvals(self, agent: str | None = None) -> list[CallRecord]:
        """Return the calls that wait for an approval, of one agent or of all; the longest waiting first."""
        with self._broker_errors():
            return self._completions.approvals(self._agents_of(agent))

    def approve(self, call_id: str, by: str = "") -> None:
        """Let a call be run that waits for an approval; ``by`` says who answers for that.

        Raises:
            CallClosedError: it has its final result: it was denied, cancelled, or has expired.
            CallNotPendingError: it does not wait for an approval, or does not any more.
            CallNotFoundError: as :meth:`Client.pending`.
            ToolInputValidationError: ``by`` is no text of 200 characters at most.
            BrokerUnreachableError: Redis or the broker cannot be reached.
        """
        _require_name(by)
        record = self.record(call_id)
        with self._broker_errors():
            self._completions.approve(record, by)

    def deny(self, call_id: str, reason: str = "", by: str = "") -> None:
        """End a call that waits for an approval: ``E_APPROVAL_DENIED``; raises as :meth:`approve` does."""
        _require_name(by)
        who = f" by {by}" if by else ""
        why = f": {reason}" if reason else ". No reason was given."
        error = ApprovalDeniedError(f"The call was denied{who}{why}")
        self._complete(call_id, self._error_outcome(error), is_decision=True)

    def _fail_call(self, call_id: str, error: ErrorLike) -> None:
        self._complete(call_id, self._error_outcome(error))

    def _complete(self, call_id: str, outcome: Outcome, *, is_decision: bool = False) -> None:
        require_possible(call_id)
        with self._broker_errors():
            self._completions.complete(call_id, outcome, "producer", is_decision=is_decision)

    def _outcome(self, output: Any) -> Outcome:
        size, most = len(encoded_output(output, "Whoever completes the call")), self.settings.max_output_bytes
        if size > most:
            raise PayloadTooLargeError(
                f"The output takes {size} bytes; at most {most} are allowed.",
                suggestion="Put large data where the agent can read it, and complete the call with its path.",
            )
        return Outcome(output)

    def _error_outcome(self, error: ErrorLike) -> Outcome:
        return Outcome(error=describe(as_exception(error), help_url=self.settings.help_url))


def _require_name(by: Any) -> None:
    if not isinstance(by, str) or len(by) > LONGEST_NAME or not by.isprintable():
        raise ToolInputValidationError(
            f"A name has {LONGEST_NAME} printable characters at most: {by!r:.200}."
        )


def as_exception(error: ErrorLike, default: type[GoondanError] = ToolError) -> BaseException:
    """Return what ``error`` stands for, of the class ``default`` unless it is an exception.

    Raises:
        ToolInputValidationError: it is none of these, or has no message.
    """
    if isinstance(error, BaseException):
        return error
    if isinstance(error, str):
        return default(error)
    fields: Any = error
    if not isinstance(fields, Mapping) or not isinstance(fields.get("message"), str):
        raise ToolInputValidationError(f"An error has a message, as text: {fields!r:.200} has none.")
    texts = {name: fields[name] for name in ("code", "suggestion") if isinstance(fields.get(name), str)}
    return default(fields["message"], **texts)

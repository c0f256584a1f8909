"""Running a call again that has ended badly: what becomes of it, and which calls may be."""

import uuid

from goondan_tasks.errors import (
    NotReplayableError,
    PayloadTooLargeError,
    ToolInputValidationError,
    ToolNotInCatalogError,
)
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCall, ToolCallResult
from goondan_tasks.names import NO_CALL_TOOL

_FINAL = {"done", "dead"}

#: after these the record does not have the arguments that were asked for
_REFUSED = {ToolInputValidationError.code, PayloadTooLargeError.code}


def may_be_replayed(letter: CallRecord) -> bool:
    """Say whether a dead letter is a call that was not replayed yet."""
    return letter.replayed_by is None and letter.call.tool_name != NO_CALL_TOOL


def require_replayable(record: CallRecord, result: ToolCallResult | None, *, again: bool) -> None:
    """Refuse a call that must not be replayed.

    Raises:
        NotReplayableError: it has not ended, has ended well, was refused, or was replayed before and
            ``again`` is not said.
    """
    if record.status not in _FINAL:
        raise NotReplayableError(f"Call {record.id} has not ended: it is {record.status}.")
    if record.outcome == "ok":
        raise NotReplayableError(f"Call {record.id} has ended well; submit another one to run it again.")
    if result is not None and result.error is not None and _is_refusal(record.call, result.error.code):
        raise NotReplayableError(
            f"Call {record.id} was refused ({result.error.code}) and would be again; submit a corrected one."
        )
    if record.replayed_by is not None and not again:
        raise NotReplayableError(
            f"Call {record.id} was replayed before, as {record.replayed_by}.",
            suggestion="Look at that call first; say --again (again=True) to replay this one once more.",
        )


def _is_refusal(call: ToolCall, code: str) -> bool:
    """A replay belongs to no Step, so it must not run what its Step's catalog did not have."""
    return code in _REFUSED or (code == ToolNotInCatalogError.code and call.step_id is not None)


def replay_of(record: CallRecord) -> ToolCall:
    """Make the call that replays another one: the same in all but its Turn, its span and its time.

    The Turn tells which call is replayed, and which time, so the identity does too: whoever makes the same
    replay again, or at the same time, gets the same call. Its Step, its deadline, its idempotency key and its
    revision of the bundle were for the first time only: what did not work may have been mended since.
    """
    first_time_only = dict.fromkeys(("step_id", "deadline", "idempotency_key", "bundle_ref"))
    return record.call.model_copy(
        update={
            **first_time_only,
            "turn_id": f"replay-{record.replays + 1}-of-{record.id}",
            "span_id": uuid.uuid4().hex[:16],
            "replay_of": record.id,
        }
    )

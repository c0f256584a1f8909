"""What a replay is, and what cannot be replayed."""

import dataclasses

import pytest

from goondan_tasks.calls import identity_of
from goondan_tasks.client.replay import replay_of, require_replayable
from goondan_tasks.errors import NotReplayableError
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCall, ToolCallResult

CALL = ToolCall.from_wire(
    {
        "toolCallId": "call_1",
        "toolName": "image__resize",
        "args": {"width": 1},
        "agentName": "painter",
        "instanceKey": "issue-42",
        "turnId": "turn-7",
        "stepId": "step-1",
        "traceId": "a" * 32,
        "spanId": "b" * 16,
        "correlationId": "c",
        "timeoutSeconds": 5,
        "deadline": "2026-01-01T00:00:00Z",
        "idempotencyKey": "k",
        "auth": {"user": "u"},
        "origin": {"from": "chat"},
        "callChain": ["planner@issue-42"],
    }
)
DEAD = CallRecord(
    id=identity_of(CALL),
    status="dead",
    call=CALL,
    queued_at=1,
    claimed_at=2,
    finished_at=3,
    attempt=3,
    worker="w",
    outcome="error",
    has_started=True,
)


def a_result(code: str) -> ToolCallResult:
    names = ("id", "agentName", "instanceKey", "turnId", "traceId", "spanId", "correlationId")
    error = {"code": code, "name": "Error", "message": "m"}
    wire = {"toolCallId": "c", "toolName": "t__x", "status": "error", "error": error}
    return ToolCallResult.from_wire({**wire, "meta": dict.fromkeys(names, "x")})


def test_a_replay_is_the_same_but_for_what_was_for_the_first_time_only() -> None:
    new = replay_of(DEAD)
    changed = {name for name, value in CALL if getattr(new, name) != value}
    assert changed == {"turn_id", "span_id", "step_id", "deadline", "idempotency_key", "replay_of"}
    assert new.replay_of == DEAD.id
    assert (new.step_id, new.deadline, new.idempotency_key) == (None, None, None)


def test_the_identity_of_a_replay_tells_which_time_it_is() -> None:
    second = dataclasses.replace(DEAD, replayed_by="x", replays=1)
    ids = [identity_of(replay_of(record)) for record in (DEAD, DEAD, second)]
    assert ids[0] == ids[1]
    assert len({DEAD.id, *ids}) == 3


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"status": "running", "outcome": None}, None, "has not ended: it is running"),
        ({"status": "queued", "outcome": None}, None, "has not ended: it is queued"),
        ({"status": "pending", "outcome": None}, None, "has not ended: it is pending"),
        ({"status": "done", "outcome": "ok"}, None, "ended well"),
        ({"status": "done"}, "E_TOOL_INVALID_ARGS", "was refused"),
        ({"status": "done"}, "E_PAYLOAD_TOO_LARGE", "was refused"),
        ({"status": "done"}, "E_TOOL_NOT_IN_CATALOG", "was refused"),
        ({"replayed_by": "new-id", "replays": 1}, None, "replayed before, as new-id"),
    ],
)
def test_what_must_not_be_replayed_is_refused(
    changes: dict[str, object], code: str | None, reason: str
) -> None:
    record = dataclasses.replace(DEAD, **changes)  # type: ignore[arg-type]
    with pytest.raises(NotReplayableError, match=reason):
        require_replayable(record, a_result(code) if code else None, again=False)


@pytest.mark.parametrize("code", ["E_TOOL_POISONED", "E_TOOL_OUTCOME_UNKNOWN", "E_TOOL_EXPIRED", "E_TOOL"])
def test_any_other_error_can_be_replayed_and_once_more_if_that_is_meant(code: str) -> None:
    require_replayable(DEAD, a_result(code), again=False)
    require_replayable(dataclasses.replace(DEAD, replayed_by="x", replays=1), a_result(code), again=True)


def test_a_call_outside_of_any_step_can_be_replayed_once_its_agent_has_the_tool() -> None:
    call = CALL.model_copy(update={"step_id": None})
    record = dataclasses.replace(DEAD, call=call, status="done")
    require_replayable(record, a_result("E_TOOL_NOT_IN_CATALOG"), again=False)

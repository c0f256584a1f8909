"""Getting calls accepted, one by one and beside each other; and what a replay is."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast

import fakeredis
import pytest
from redis import Redis

from broker_config import serializer
from broker_config.confirmation import NotConfirmedError
from broker_config.keys import Keys
from broker_config.scripts import ScriptCall
from broker_config.settings import Settings
from goondan_tasks.client.submitter import Submitter, replay_of, require_replayable
from goondan_tasks.contract.calls import CallDraft, draft_call, identity_of
from goondan_tasks.contract.errors import NotReplayableError, RecordDamagedError
from goondan_tasks.contract.messages import ToolCall, ToolCallResult, assistant_message, iso_time
from goondan_tasks.contract.names import NO_CALL_TOOL
from goondan_tasks.history import StepRecord, StepStore
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import CallRecord


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Settings())


@pytest.fixture
def submitter(ledger: Ledger) -> Submitter:
    return Submitter(ledger, Reaper(ledger, "https://help/"), max_args_bytes=1000)


def queued(redis: Redis) -> list[str]:
    """Return the ids of the messages that lie in the queue, the first one first."""
    messages = cast("list[bytes]", redis.lrange("agent.coder", 0, -1))
    return [serializer.decode(message)["headers"]["id"] for message in reversed(messages)]


def submit(submitter: Submitter, *drafts: CallDraft) -> list[int]:
    return submitter.accept([submitter.prepare(draft) for draft in drafts], "p1")[0]


def draft(name: str, **fields: object) -> CallDraft:
    known = {"agentName": "coder", "toolName": "echo__args", "toolCallId": name, "turnId": "turn-1"}
    return draft_call({**known, **fields})


def test_calls_beside_conflict_are_sent_or_answered(
    submitter: Submitter, ledger: Ledger, redis: Redis
) -> None:
    submit(submitter, draft("taken"))
    conflict = draft("taken", args={"n": 2})
    refused, good = draft("refused", timeoutSeconds=-1), draft("good")

    drafts = [submitter.prepare(one) for one in (conflict, refused, good)]
    [(at, error)] = submitter.accept(drafts, "p1")[1].items()

    assert (at, "'taken'" in error.message) == (0, True)
    assert queued(redis) == [identity_of(draft("taken").call), identity_of(good.call)]
    result = ledger.result(identity_of(refused.call))
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_INVALID_ARGS"


def test_each_call_of_reply_carries_its_message(submitter: Submitter) -> None:
    first, second = (assistant_message("a", "echo__args", {}, step, iso_time(0)) for step in ("s1", "s2"))
    drafts = [draft("a", message=message) for message in (first, first, None, second)]
    written = [serializer.decode(submitter.prepare(one).call_json) for one in drafts]
    assert [one.get("message") for one in written] == [
        first.to_wire(),
        first.to_wire(),
        None,
        second.to_wire(),
    ]


def noting(redis: Redis) -> tuple[str, ScriptCall[None]]:
    """Return the key of a Turn's record, and the script call that adds a call to it."""
    names = {"id": "s", "agent_name": "coder", "instance_key": "k", "turn_id": "t", "trace_id": "0" * 32}
    record, keys = StepRecord.from_wire({**names, "index": 0, "catalog": "digest"}), Keys()
    return keys.turn("coder", "k", "t"), StepStore(redis, keys, 60).noting(record, ["c1"])


@pytest.mark.parametrize("key", ["goondan:due", "agent.coder"])
def test_submission_names_keys_overwritten_by_other_programs(
    submitter: Submitter, redis: Redis, key: str
) -> None:
    redis.set(key, "overwritten")
    with pytest.raises(RecordDamagedError, match=f"'{key}'"):
        submit(submitter, draft("call_1"))


def test_script_runs_after_calls_of_its_trip(submitter: Submitter, redis: Redis) -> None:
    turn, note = noting(redis)
    accepted = submitter.accept([submitter.prepare(draft("a")), submitter.prepare(draft("b"))], "p1", note)
    assert accepted == ([], {})
    assert redis.llen(turn) == 1


def test_unconfirmed_calls_are_sent_despite_later_scripts(
    submitter: Submitter, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(calls: Sequence[ScriptCall[Any]], meanwhile: None) -> None:
        error = NotConfirmedError("no replica")
        error.answers = [call.run(redis) for call in calls]
        raise error

    _, note = noting(redis)
    monkeypatch.setattr(submitter._ledger._submissions, "run", run)
    with pytest.raises(NotConfirmedError):
        submitter.accept([submitter.prepare(draft("a"))], "p1", note)
    assert queued(redis) == [identity_of(draft("a").call)]


def test_queued_call_submitted_again_is_not_resent(submitter: Submitter, redis: Redis) -> None:
    call_id = identity_of(draft("call_1").call)
    assert submit(submitter, draft("call_1")) == []
    assert submit(submitter, draft("call_1")) == [0]
    assert queued(redis) == [call_id]


def test_faulty_repetition_does_not_answer_waiting_call(submitter: Submitter, ledger: Ledger) -> None:
    submit(submitter, draft("call_1"))
    submit(submitter, draft("call_1", timeoutSeconds=-1))
    record = ledger.record(identity_of(draft("call_1").call))
    assert record is not None
    assert record.status == "queued"


def test_faulty_call_submitted_twice_is_answered(submitter: Submitter, ledger: Ledger) -> None:
    submission = submitter.prepare(draft("call_1", timeoutSeconds=-1))
    ledger.submit_all([submission], "p1")  # and its answer was lost on its way
    assert submitter.accept([submission], "p1") == ([0], {})
    result = ledger.result(submission.id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_INVALID_ARGS"


@pytest.mark.parametrize(
    "field",
    [
        *(
            {name: "\ud800"}
            for name in ("bundleRef", "replayOf", "parentId", "rootId", "parentSpanId", "spanId")
        ),
        {"callChain": ["\ud800"]},
    ],
    ids=str,
)
def test_call_without_json_form_is_always_answered(
    submitter: Submitter, ledger: Ledger, field: dict[str, object]
) -> None:
    submission = submitter.prepare(draft("call_1", **field))
    assert submitter.accept([submission], "p1") == ([0], {})
    result = ledger.result(submission.id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_INVALID_ARGS"


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


def test_replay_keeps_call_except_one_time_fields() -> None:
    new = replay_of(DEAD)
    changed = {name for name, value in CALL if getattr(new, name) != value}
    assert changed == {"turn_id", "span_id", "step_id", "deadline", "idempotency_key", "replay_of"}
    assert new.replay_of == DEAD.id
    assert (new.step_id, new.deadline, new.idempotency_key) == (None, None, None)


def test_identity_of_replay_depends_on_number_of_replays() -> None:
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
        ({"status": "done", "outcome": "ok"}, None, "has succeeded"),
        ({"status": "done"}, "E_TOOL_INVALID_ARGS", "was refused"),
        ({"status": "done"}, "E_PAYLOAD_TOO_LARGE", "was refused"),
        ({"status": "done"}, "E_TOOL_NOT_IN_CATALOG", "was refused"),
        ({"replayed_by": "new-id", "replays": 1}, None, "replayed before, as new-id"),
        ({"call": CALL.model_copy(update={"tool_name": NO_CALL_TOOL})}, "E_TOOL_CANCELLED", "holds no call"),
    ],
)
def test_call_not_replayable_is_refused(changes: dict[str, object], code: str | None, reason: str) -> None:
    record = dataclasses.replace(DEAD, **changes)  # type: ignore[arg-type]
    with pytest.raises(NotReplayableError, match=reason):
        require_replayable(record, a_result(code) if code else None, again=False)


@pytest.mark.parametrize("code", ["E_TOOL_POISONED", "E_TOOL_OUTCOME_UNKNOWN", "E_TOOL_EXPIRED", "E_TOOL"])
def test_other_errors_are_replayable_and_again_on_request(code: str) -> None:
    require_replayable(DEAD, a_result(code), again=False)
    require_replayable(dataclasses.replace(DEAD, replayed_by="x", replays=1), a_result(code), again=True)


def test_stepless_call_is_replayable_once_agent_has_tool() -> None:
    call = CALL.model_copy(update={"step_id": None})
    record = dataclasses.replace(DEAD, call=call, status="done")
    require_replayable(record, a_result("E_TOOL_NOT_IN_CATALOG"), again=False)

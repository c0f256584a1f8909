"""Getting calls accepted, one by one and beside each other."""

from collections.abc import Iterator

import fakeredis
import pytest
from redis import Redis

from broker_config.settings import Settings
from goondan_tasks.calls import Draft, draft_call, identity_of
from goondan_tasks.client.submitter import Submitter
from goondan_tasks.errors import ToolCallConflictError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.settlement import Settlement
from tests.unit.goondan_tasks.other_broker import OtherBroker


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Settings())


@pytest.fixture
def broker() -> OtherBroker:
    return OtherBroker()


@pytest.fixture
def submitter(ledger: Ledger, broker: OtherBroker) -> Submitter:
    return Submitter(ledger, broker, Settlement(ledger, broker, "https://help/"), max_args_bytes=1000)


def submit(submitter: Submitter, *drafts: Draft) -> list[str]:
    return submitter.accept([submitter.prepare(draft) for draft in drafts], "p1")


def draft(name: str, **fields: object) -> Draft:
    known = {"agentName": "coder", "toolName": "echo__args", "toolCallId": name, "turnId": "turn-1"}
    return draft_call({**known, **fields})


def test_calls_beside_a_conflict_are_sent_or_answered(
    submitter: Submitter, ledger: Ledger, broker: OtherBroker
) -> None:
    submit(submitter, draft("taken"))
    conflict = draft("taken", args={"n": 2})
    refused, good = draft("refused", timeoutSeconds=-1), draft("good")

    with pytest.raises(ToolCallConflictError, match="'taken'"):
        submit(submitter, conflict, refused, good)

    assert broker.sent == [identity_of(draft("taken").call), identity_of(good.call)]
    result = ledger.result(identity_of(refused.call))
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_INVALID_ARGS"


def test_a_call_that_is_still_queued_is_sent_again_when_it_is_submitted_again(
    submitter: Submitter, broker: OtherBroker
) -> None:
    call_id = identity_of(draft("call_1").call)
    assert submit(submitter, draft("call_1")) == []
    assert submit(submitter, draft("call_1")) == [call_id]
    assert broker.sent == [call_id, call_id]


def test_a_fault_in_a_repetition_does_not_answer_the_call_that_waits(
    submitter: Submitter, ledger: Ledger
) -> None:
    submit(submitter, draft("call_1"))
    submit(submitter, draft("call_1", timeoutSeconds=-1))
    record = ledger.record(identity_of(draft("call_1").call))
    assert record is not None
    assert record.status == "queued"


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
def test_a_call_without_a_json_form_is_answered_wherever_the_fault_is(
    submitter: Submitter, ledger: Ledger, field: dict[str, object]
) -> None:
    [call_id] = submit(submitter, draft("call_1", **field))
    result = ledger.result(call_id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_INVALID_ARGS"

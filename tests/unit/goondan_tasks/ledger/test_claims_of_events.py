"""Events that are claimed while their messages are reserved: each the first of its mailbox."""

import pytest
from redis import Redis

from broker_config import serializer
from broker_config.queues import call_queue, events_queue
from broker_config.scripts import ClaimOnReserve
from goondan_tasks.contract.calls import identity_of, queue_element
from goondan_tasks.contract.events import TOOL_OF_TASK, mailbox_of
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL, EVENT_TOOL
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Stored, Verdict
from goondan_tasks.ledger.submission import Submission, digest_of
from tests.unit.goondan_tasks.ledger.calls import AGAIN, an_event, reserved


def put(ledger: Ledger, *events: ToolCall) -> None:
    """Accept events as a producer does; their messages are what :func:`reserved` makes."""
    for event in events:
        wire = serializer.encode(event.to_wire())
        one = Submission(
            identity_of(event), event, wire, digest_of(event), b"message", mailbox=mailbox_of(event)
        )
        ledger.submit_all([one], "p1")


def message_of(event: ToolCall) -> bytes:
    return queue_element("e1", event, serializer.encode(event.to_wire()))


def quoted(text: str | None) -> bytes:
    """Return a text as it stands in a message's body, which is a text itself."""
    return serializer.encode(text).replace(b'"', b'\\"')


def claims(ledger: Ledger, *, ref: str | None = None, agent: str = "coder") -> ClaimOnReserve:
    events = dict.fromkeys(TOOL_OF_TASK, ClaimTerms(max_attempts=7))
    return ledger.claim_on_reserve(
        "w1", 3, {call_queue("coder"): {}, events_queue(agent): events}, bundle_ref=ref
    )


@pytest.mark.parametrize("tool", [DELEGATE_TOOL, DELEGATE_RESULT_TOOL, EVENT_TOOL])
def test_first_of_mailbox_is_claimed_with_its_message(redis: Redis, ledger: Ledger, tool: str) -> None:
    event = an_event(1, tool=tool, awaited=False)
    put(ledger, event)
    job = reserved(redis, claims(ledger), event)
    assert job is not None
    assert (job.verdict, job.claim.run.call) == (Verdict.RUN, event)
    assert (job.agent, job.classify(), job.is_plain) == ("coder", True, False)
    assert redis.hget(ledger.keys.call(job.id), "maxAttempts") == b"7"
    finished: Stored = ledger.finish(job.claim, job.claim.run.ok(None, 0.0)).run(redis)
    assert finished is Stored.YES


def test_next_event_is_left_until_first_ends(redis: Redis, ledger: Ledger) -> None:
    first, second, elsewhere = an_event(1), an_event(2), an_event(3, "other")
    put(ledger, first, second, elsewhere)
    claim_on_reserve = claims(ledger)
    assert reserved(redis, claim_on_reserve, second) is None
    job = reserved(redis, claim_on_reserve, first)
    assert job is not None
    assert reserved(redis, claim_on_reserve, second) is None
    assert reserved(redis, claim_on_reserve, elsewhere) is not None
    ledger.finish(job.claim, job.claim.run.ok(None, 0.0)).run(redis)
    assert reserved(redis, claim_on_reserve, second) is not None


def test_claimed_and_released_event_is_claimed_again(redis: Redis, ledger: Ledger) -> None:
    event = an_event(1)
    put(ledger, event)
    job = reserved(redis, claims(ledger), event)
    assert job is not None
    again = reserved(redis, claims(ledger), event)
    assert again is not None
    assert again.verdict is Verdict.HELD
    assert ledger.release(job.claim, died=False, message=b"message").run(redis)
    assert redis.rpop("agent.coder.events") == b"message"
    again = reserved(redis, claims(ledger), event)
    assert again is not None
    assert (again.verdict, again.attempt) == (Verdict.RUN, 1)


def test_event_of_uncertain_revision_or_handler_is_left(redis: Redis, ledger: Ledger) -> None:
    event = an_event(1)
    put(ledger, event)
    assert reserved(redis, claims(ledger, ref="git:2"), event) is None  # a Turn may keep to another revision
    assert reserved(redis, claims(ledger, agent="reviewer"), event) is None  # nobody handles its events here
    queued = ClaimRequest(identity_of(event), event, "w1", AGAIN)
    assert ledger.claim_event(queued, b"m", is_handled_here=True).run(redis).verdict is Verdict.RUN


@pytest.mark.parametrize(
    "changed",
    [
        {"agentName": "reviewer"},
        {"toolName": "bash__exec"},
        {"toolName": EVENT_TOOL},
        {"args": 5},
        {"args": None},
        None,
    ],
)
def test_event_whose_record_differs_is_not_claimed(
    redis: Redis, ledger: Ledger, changed: dict[str, object] | None
) -> None:
    event = an_event(1)
    put(ledger, event)
    call = None if changed is None else {**event.to_wire(), **changed}
    redis.hset(ledger.keys.call(identity_of(event)), "call", serializer.encode(call))
    assert reserved(redis, claims(ledger), event) is None


@pytest.mark.parametrize("field", ["retried", "approved"])
def test_event_marked_retried_or_approved_is_left(redis: Redis, ledger: Ledger, field: str) -> None:
    event = an_event(1)
    put(ledger, event)
    redis.hset(ledger.keys.call(identity_of(event)), field, "text")
    assert reserved(redis, claims(ledger), event) is None


def test_event_with_damaged_mailbox_is_not_claimed(redis: Redis, ledger: Ledger) -> None:
    event = an_event(1)
    put(ledger, event)
    redis.set(f"{ledger.keys.prefix}mailbox:{mailbox_of(event)}", "text")
    assert reserved(redis, claims(ledger), event) is None


def test_event_without_record_is_not_claimed(redis: Redis, ledger: Ledger) -> None:
    assert reserved(redis, claims(ledger), an_event(1)) is None


def test_answer_that_its_asker_has_needs_no_handling(redis: Redis, ledger: Ledger) -> None:
    event = an_event(1, tool=DELEGATE_RESULT_TOOL)
    told = reserved(redis, claims(ledger), event)
    assert told is not None
    assert (told.verdict, told.verdict.is_granted) == (Verdict.TOLD, False)
    payload = {"awaited": True, "text": '"awaited":true'}
    for kind in ("event", "shutdown", None):
        other = message_of(event).replace(
            b'\\"type\\":\\"delegate_result\\"', b'\\"type\\":%b' % quoted(kind)
        )
        assert other != message_of(event)
        assert reserved(redis, claims(ledger), event, other) is None
    untold = an_event(2, tool=DELEGATE_RESULT_TOOL, awaited=False, payload=payload)
    assert reserved(redis, claims(ledger), untold) is None
    assert reserved(redis, claims(ledger), an_event(3)) is None


def test_message_only_beginning_like_ours_is_left(redis: Redis, ledger: Ledger) -> None:
    answer = an_event(1, tool=DELEGATE_RESULT_TOOL)
    whole = message_of(answer)
    body = whole.index(b'"body":"') + len(b'"body":"')
    for message in (
        whole[:-9],
        whole[:body] + b"[[],3]" + whole[body + 2 :],
        whole[: body - 1] + b"7}",
        whole[:90],
    ):
        assert reserved(redis, claims(ledger), answer, message) is None

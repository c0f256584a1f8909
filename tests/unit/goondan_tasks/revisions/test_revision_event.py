"""The event that tells an agent that its change is active."""

from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.events import message_of
from goondan_tasks.ledger.submission import digest_of
from goondan_tasks.revisions.active import (
    CHANGED,
    FAILED,
    RevisionChange,
    RevisionFailure,
    failure_event,
    revision_event,
)

CHANGE = RevisionChange(
    previous_ref="r1",
    new_ref="r2",
    changeset_id="cs",
    timestamp="2026-01-01T00:00:00.000Z",
    agent_name="newt",
    instance_key="i",
)


def test_event_goes_to_instance_that_committed() -> None:
    event = revision_event(CHANGE)
    assert event is not None
    message = message_of(event)
    assert (event.agent_name, event.instance_key, message.payload["type"]) == ("newt", "i", CHANGED)
    assert message.payload["input"]["newRef"] == "r2"


def test_every_worker_makes_same_event() -> None:
    one, other = revision_event(CHANGE), revision_event(CHANGE)
    assert one is not None and other is not None
    assert (identity_of(one), digest_of(one)) == (identity_of(other), digest_of(other))


def test_same_change_at_another_time_is_another_event() -> None:
    one, other = (
        revision_event(CHANGE),
        revision_event(CHANGE.model_copy(update={"timestamp": "2026-01-02T00:00:00.000Z"})),
    )
    assert one is not None and other is not None
    assert identity_of(one) != identity_of(other)


def test_change_by_person_makes_no_event() -> None:
    assert revision_event(CHANGE.model_copy(update={"agent_name": None, "instance_key": None})) is None


def test_committing_instance_learns_failure_and_reason() -> None:
    failure = RevisionFailure(
        ref="r2", code="E_EXT_INIT", reason="no ear", worker="w", timestamp=CHANGE.timestamp, change=CHANGE
    )
    event, news = failure_event(failure), revision_event(CHANGE)
    assert event is not None and news is not None
    message = message_of(event)
    assert (event.agent_name, event.instance_key, message.payload["type"]) == ("newt", "i", FAILED)
    told = message.payload["input"]
    assert (told["ref"], told["reason"], told["change"]["changesetId"]) == ("r2", "no ear", "cs")
    assert identity_of(event) != identity_of(news)
    assert failure_event(failure.model_copy(update={"change": None})) is None

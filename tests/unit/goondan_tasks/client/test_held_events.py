"""Events in a brain's hands."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from goondan_tasks.calls import Run, new_call
from goondan_tasks.client.held_events import HeldEvents
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.messages import ToolCall
from tests.waiting import wait_until


class Office:
    """A ledger and a settlement: every event is cancelled, and what ends so is noted by its token."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        #: how often Redis is away when an event is to be ended
        self.outages = 0

    def marked(self, call_ids: list[str]) -> set[str]:
        return set(call_ids)

    def renew(self, claims: list[Claim]) -> set[str]:
        return set()

    def fail(self, claim: Claim, error: Exception) -> None:
        if self.outages:
            self.outages -= 1
            raise RedisConnectionError("gone")
        self.ended.append(claim.token)


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def held(office: Office) -> Iterator[HeldEvents]:
    any_: Any = office
    held = HeldEvents(any_, any_, 30)
    yield held
    held.close()


def a_claim(token: str) -> Claim:
    call: ToolCall = new_call("mute", "goondan__event", {}, {})
    return Claim(Run("id", call, "brain", 1, 0.0, lambda: 0.0), token, Verdict.RUN)


def test_the_late_end_of_an_old_claim_leaves_the_newer_one_of_its_event(
    held: HeldEvents, office: Office
) -> None:
    old, new = a_claim("old"), a_claim("new")
    held.hold(old)
    held.hold(new)
    held.drop(old)
    wait_until(lambda: office.ended == ["new"])


def test_an_event_whose_end_redis_did_not_take_is_ended_later(
    held: HeldEvents, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goondan_tasks.client.held_events.LOOK_SECONDS", 0.01)
    office.outages = 2
    held.hold(a_claim("mine"))
    wait_until(lambda: office.ended == ["mine"])

"""The leases of received events."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from goondan_tasks.client.event_receiver import EventLeases
from goondan_tasks.contract.calls import Run, new_call
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger.record import Claim, Verdict
from tests.answered import Answered
from tests.waiting import wait_until


class FakeLedger:
    """A ledger and a reaper: every event is cancelled, and what ends so is noted by its token."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        #: how often Redis is away when an event is to be ended
        self.outages = 0

    redis = None

    def cancelled_ids(self, call_ids: list[str]) -> Answered[set[str]]:
        return Answered(lambda: set(call_ids))

    def renew(self, claims: list[Claim]) -> Answered[set[str]]:
        return Answered(set)

    def fail(self, claim: Claim, error: Exception) -> None:
        if self.outages:
            self.outages -= 1
            raise RedisConnectionError("gone")
        self.ended.append(claim.token)


@pytest.fixture
def ledger() -> FakeLedger:
    return FakeLedger()


@pytest.fixture
def leases(ledger: FakeLedger) -> Iterator[EventLeases]:
    any_: Any = ledger
    leases = EventLeases(any_, any_, 30)
    yield leases
    leases.close()


def a_claim(token: str) -> Claim:
    call: ToolCall = new_call("mute", "goondan__event", {}, {})
    return Claim(Run("id", call, "producer", 1, 0.0, lambda: 0.0), token, Verdict.RUN)


def test_dropping_old_claim_keeps_events_newer_claim(leases: EventLeases, ledger: FakeLedger) -> None:
    old, new = a_claim("old"), a_claim("new")
    leases.hold(old)
    leases.hold(new)
    leases.drop(old)
    wait_until(lambda: ledger.ended == ["new"])


def test_event_is_ended_later_after_redis_outage(
    leases: EventLeases, ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goondan_tasks.client.event_receiver.END_SECONDS", 0.01)
    ledger.outages = 2
    leases.hold(a_claim("mine"))
    wait_until(lambda: ledger.ended == ["mine"])

"""Renewing leases, whatever Redis says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from goondan_tasks.contract.calls import Run, new_call
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.ledger.leases import RETRY_SECONDS, LeaseKeeper
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Verdict
from tests.answered import Answered
from tests.waiting import wait_until

LEASE_SECONDS = 6.0
#: what the ledger takes for a renewal
SLOW_SECONDS = 0.5


@pytest.fixture
def claim() -> Claim:
    call = new_call("coder", "a__b", {}, {})
    return Claim(Run("id", call, "w", 1, 0, wall_clock), "older", Verdict.RUN)


def nobody(claim: Claim) -> None:
    """Be told of a lost claim, and do nothing."""


class AwayTwice:
    """A ledger whose Redis is away the first two times, and always slow."""

    redis = None

    def __init__(self, pauses: "Pauses") -> None:
        self._asked = 0
        self._pauses = pauses

    def renew(self, claims: Sequence[tuple[str, str]]) -> Answered[set[str]]:
        return Answered(self._answer)

    def _answer(self) -> set[str]:
        self._asked += 1
        self._pauses.now += SLOW_SECONDS
        if self._asked <= 2:
            raise RedisError("away")
        return set()


class Pauses:
    """The pauses between renewals, which take no time here; the fourth is the last."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.now = 0.0

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        self.now += seconds
        return len(self.seconds) == 4


class Forgetful:
    """A ledger that finds one claim never, and another one not at first."""

    redis = None

    def __init__(self) -> None:
        self.renewed: list[set[str]] = []

    def renew(self, claims: Sequence[tuple[str, str]]) -> Answered[set[str]]:
        self.renewed.append({call_id for call_id, _ in claims})
        return Answered(lambda: {"lost", "finished"} if len(self.renewed) == 1 else {"lost"})


def test_claim_missed_by_two_renewals_is_reported_lost_once(claim: Claim) -> None:
    ledger, told = Forgetful(), list[Claim]()
    lost, finished = (replace(claim, run=replace(claim.run, id=id), token=id) for id in ("lost", "finished"))
    with capture_logs() as logs:
        keeper = LeaseKeeper(cast(Ledger, ledger), 0.03, on_lost=told.append)
        keeper.hold(lost)
        keeper.hold(finished)
        keeper.renew_also(lambda: [("short", "token")])
        keeper.start()
        wait_until(lambda: len(ledger.renewed) >= 4)
        keeper.stop()
    assert told == [lost]
    assert [entry["call_id"] for entry in logs if entry["event"] == "leases.lost"] == ["lost"]
    assert keeper.held() == [finished]
    assert all("short" in ids for ids in ledger.renewed)


def test_claim_missed_by_quick_renewals_is_not_lost_yet(claim: Claim) -> None:
    now, told = [0.0], list[Claim]()
    lost = replace(claim, run=replace(claim.run, id="lost"), token="lost")
    keeper = LeaseKeeper(cast(Ledger, Forgetful()), LEASE_SECONDS, told.append, lambda: now[0])
    keeper.hold(lost)
    for _ in range(3):  # an outage is over, and the renewals that it has held up follow one another
        assert keeper._renew()
    assert told == []
    now[0] += LEASE_SECONDS
    assert keeper._renew()
    assert told == [lost]


@pytest.fixture
def away_twice(claim: Claim, monkeypatch: pytest.MonkeyPatch) -> tuple[LeaseKeeper, Pauses]:
    pauses = Pauses()
    keeper = LeaseKeeper(cast(Ledger, AwayTwice(pauses)), LEASE_SECONDS, nobody, lambda: pauses.now)
    keeper.hold(claim)
    monkeypatch.setattr(keeper, "_pause", pauses)
    return keeper, pauses


def test_failed_renewal_retries_soon_and_slow_one_delays_nothing(
    away_twice: tuple[LeaseKeeper, Pauses],
) -> None:
    keeper, pauses = away_twice
    keeper.keep()
    soon, usual = RETRY_SECONDS - SLOW_SECONDS, LEASE_SECONDS / 3 - SLOW_SECONDS
    assert pauses.seconds == [LEASE_SECONDS / 3, soon, soon, usual]
    assert RETRY_SECONDS < LEASE_SECONDS / 3


def test_redis_outage_and_end_are_reported_once(
    away_twice: tuple[LeaseKeeper, Pauses],
) -> None:
    with capture_logs() as logs:
        away_twice[0].keep()

    assert [one["event"] for one in logs] == ["leases.not_renewed", "leases.renewed_again"]


def test_late_end_of_old_claim_leaves_newer(claim: Claim) -> None:
    keeper = LeaseKeeper(cast(Ledger, AwayTwice(Pauses())), LEASE_SECONDS, nobody)
    newer = replace(claim, token="newer")
    keeper.hold(claim)
    keeper.hold(newer)
    keeper.drop(claim)
    assert keeper.held() == [newer]
    keeper.drop(newer)
    assert keeper.held() == []

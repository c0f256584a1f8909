"""Renewing leases, whatever Redis says."""

from collections.abc import Sequence
from typing import cast

import pytest
from redis.exceptions import RedisError

from goondan_tasks.ledger import leases
from goondan_tasks.ledger.leases import LeaseKeeper
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim
from tests.waiting import wait_until

LEASE_SECONDS = 1.5


class AwayTwice:
    """A ledger whose Redis is away the first two times."""

    def __init__(self) -> None:
        self.asked = 0

    def renew(self, claims: Sequence[Claim]) -> set[str]:
        self.asked += 1
        if self.asked <= 2:
            raise RedisError("away")
        return set()


def test_a_renewal_that_failed_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RETRY_SECONDS", 0.01)
    ledger = AwayTwice()
    LeaseKeeper(cast(Ledger, ledger), LEASE_SECONDS).start()
    wait_until(lambda: ledger.asked == 1, LEASE_SECONDS)
    wait_until(lambda: ledger.asked == 3, LEASE_SECONDS / 5)

"""Workers that are killed while they work."""

import pytest

from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.fleet import Fleet
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import keys_without_ttl, wait_until_idle
from tests.faults.reckoning import POISONED, UNKNOWN
from tests.faults.sizes import KILLS, LEASE_SECONDS, MARGIN_SECONDS, Size
from tests.faults.survival import survive


@pytest.mark.faults
@pytest.mark.parametrize("size", KILLS)
def test_calls_survive_kill_of_one_worker_after_another(
    stack: LocalStack, log: HandlerLog, say: Say, size: Size
) -> None:
    reckoning = survive(stack, Fleet(stack, 3), log, size)
    say(reckoning.lines())
    assert reckoning.wrong_owner == []
    assert reckoning.codes.keys() <= {"ok", UNKNOWN, POISONED}
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)
    assert keys_without_ttl(stack.redis_url) == []

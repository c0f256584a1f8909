"""A worker looks for scheduled calls at the time of the next one, whatever Redis says."""

from collections.abc import Callable

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.ledger.timer import WAKE_SECONDS, Woken
from tests.waiting import wait_until
from workers.pool.waking import LEAST_SECONDS, _pause, start_waking


def answering(answer: Woken | Exception) -> Callable[[], Woken]:
    def wake() -> Woken:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return wake


@pytest.mark.parametrize(
    ("answer", "least", "most"),
    [
        (Woken(0, None, 0.2), 0.2, 0.2 + LEAST_SECONDS),
        (Woken(200, 0, 0.0), LEAST_SECONDS, 2 * LEAST_SECONDS),
        (Woken(0, None, WAKE_SECONDS), WAKE_SECONDS, WAKE_SECONDS),
        (RedisConnectionError("away"), WAKE_SECONDS, WAKE_SECONDS),
        (BrokerUnreachableError("away"), WAKE_SECONDS, WAKE_SECONDS),
    ],
)
def test_pause_ends_with_time_of_next_call(answer: Woken | Exception, least: float, most: float) -> None:
    assert least <= _pause(answering(answer), "due") <= most


def test_waking_continues_after_error_until_stopped() -> None:
    looks: list[int] = []

    def wake() -> Woken:
        looks.append(len(looks))
        if len(looks) == 1:
            raise RedisConnectionError("away")
        return Woken(0, None, 0.0)

    stop = start_waking(wake, "due")
    wait_until(lambda: len(looks) > 2, 30)
    stop()

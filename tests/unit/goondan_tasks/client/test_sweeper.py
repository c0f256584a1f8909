"""Sweeping on behalf of many who wait."""

from goondan_tasks.client.pending_call import Sweeper
from tests.waiting import wait_until


def test_many_simultaneous_requests_make_one_sweep() -> None:
    sweeps: list[str] = []
    sweeper = Sweeper(lambda: sweeps.append("swept"), 60)
    assert [sweeper.sweep() for _ in range(1000)].count(True) == 1
    assert len(sweeps) == 1


def test_after_interval_it_is_time_again() -> None:
    sweeper = Sweeper(lambda: None, 0.02)
    assert sweeper.sweep()
    wait_until(sweeper.sweep)

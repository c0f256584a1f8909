"""The state of an agent's workers, step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.orchestrator.upkeep import Backoff, Upkeep

BACKOFF = Backoff()
START_MS = 30_000


def begun(state: Upkeep, generation: str, now: int) -> Upkeep:
    after = state.begun(generation, now, START_MS)
    assert after is not None
    return after


def crashed_times(count: int, *, now: int = 0) -> Upkeep:
    state = Upkeep()
    for number in range(count):
        state = begun(state, f"g{number}", max(now, state.retry_at))
        state = state.crashed(f"g{number}", now, "no luck", BACKOFF)
    return state


def test_while_a_worker_starts_nobody_starts_another_one() -> None:
    state = begun(Upkeep(), "mine", 1_000)

    assert state.begun("yours", 1_001, START_MS) is None
    assert state.is_starting(1_001)


def test_a_start_that_nobody_hears_of_again_is_given_up_after_its_time() -> None:
    state = begun(Upkeep(), "mine", 1_000)

    assert begun(state, "yours", 31_000).generation == "yours"


def test_a_worker_that_is_slow_to_start_gets_more_time() -> None:
    state = begun(Upkeep(), "mine", 1_000)

    assert state.kept("mine", 15_999, START_MS) == state
    assert state.kept("mine", 16_000, START_MS).starting_until == 46_000
    assert state.kept("other", 16_000, START_MS) == state


def test_once_a_worker_is_at_work_another_one_may_be_started() -> None:
    state = begun(Upkeep(), "first", 1_000).settled("first")

    assert begun(state, "second", 1_001).generation == "second"


def test_after_five_quick_crashes_each_start_waits_twice_as_long_up_to_five_minutes() -> None:
    pauses = [BACKOFF.pause_ms(crashes) for crashes in range(1, 16)]

    assert pauses[:8] == [0, 0, 0, 0, 1_000, 2_000, 4_000, 8_000]
    assert pauses[8:] == [16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000]


@given(st.integers(min_value=0, max_value=10**9))
def test_no_pause_is_longer_than_the_longest(crashes: int) -> None:
    assert 0 <= BACKOFF.pause_ms(crashes) <= 300_000


def test_a_crash_loop_forbids_a_start_until_its_pause_is_over() -> None:
    state = crashed_times(5, now=10_000)

    assert state.is_pausing(10_999)
    assert state.begun("early", 10_999, START_MS) is None
    assert begun(state, "in time", 11_000).crashes == 5


def test_the_last_crash_tells_the_reason() -> None:
    state = crashed_times(2)

    assert (state.crashes, state.reason) == (2, "no luck")


def test_a_success_ends_the_loop() -> None:
    state = crashed_times(9).succeeded()

    assert (state.crashes, state.reason, state.is_pausing(0)) == (0, "", False)


@pytest.mark.parametrize("step", ["crashed", "settled"])
def test_what_is_heard_of_an_older_worker_is_stale(step: str) -> None:
    state = begun(begun(Upkeep(), "old", 0), "new", 30_000)

    after = state.settled("old") if step == "settled" else state.crashed("old", 30_001, "late", BACKOFF)

    assert after == state


def test_the_same_crash_counts_once() -> None:
    state = begun(Upkeep(), "mine", 0)

    twice = state.crashed("mine", 1, "a", BACKOFF).crashed("mine", 2, "b", BACKOFF)

    assert (twice.crashes, twice.reason) == (1, "a")

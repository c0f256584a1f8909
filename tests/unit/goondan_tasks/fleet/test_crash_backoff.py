"""The crash back-off of agents' workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.contract.table_rows import report_row
from goondan_tasks.fleet.crash_backoff import BackoffRules, CrashBackoff, CrashBackoffs

BACKOFF = BackoffRules()
START_MS = 30_000


def begun(state: CrashBackoff, generation: str, now: int) -> CrashBackoff:
    after = state.begun(generation, now, START_MS)
    assert after is not None
    return after


def crashed_times(count: int, *, now: int = 0) -> CrashBackoff:
    state = CrashBackoff()
    for number in range(count):
        state = begun(state, f"g{number}", max(now, state.retry_at))
        state = state.crashed(f"g{number}", now, "no luck", BACKOFF)
    return state


def test_no_second_worker_is_started_while_one_starts() -> None:
    state = begun(CrashBackoff(), "mine", 1_000)

    assert state.begun("yours", 1_001, START_MS) is None
    assert state.is_starting(1_001)


def test_start_without_news_expires_after_its_time() -> None:
    state = begun(CrashBackoff(), "mine", 1_000)

    assert begun(state, "yours", 31_000).generation == "yours"


def test_slowly_starting_worker_gets_more_time() -> None:
    state = begun(CrashBackoff(), "mine", 1_000)

    assert state.kept("mine", 15_999, START_MS) == state
    assert state.kept("mine", 16_000, START_MS).starting_until == 46_000
    assert state.kept("other", 16_000, START_MS) == state


def test_another_worker_may_start_once_first_works() -> None:
    state = begun(CrashBackoff(), "first", 1_000).settled("first")

    assert begun(state, "second", 1_001).generation == "second"


def test_pause_after_five_crashes_doubles_up_to_five_minutes() -> None:
    pauses = [BACKOFF.pause_ms(crashes) for crashes in range(1, 16)]

    assert pauses[:8] == [0, 0, 0, 0, 1_000, 2_000, 4_000, 8_000]
    assert pauses[8:] == [16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000]


@given(st.integers(min_value=0, max_value=10**9))
def test_no_pause_is_longer_than_longest(crashes: int) -> None:
    assert 0 <= BACKOFF.pause_ms(crashes) <= 300_000


def test_crash_loop_forbids_start_until_pause_ends() -> None:
    state = crashed_times(5, now=10_000)

    assert state.is_pausing(10_999)
    assert state.begun("early", 10_999, START_MS) is None
    assert begun(state, "in time", 11_000).crashes == 5


def test_last_crash_tells_reason() -> None:
    state = crashed_times(2)

    assert (state.crashes, state.reason) == (2, "no luck")


def test_success_ends_loop() -> None:
    state = crashed_times(9).succeeded()

    assert (state.crashes, state.reason, state.is_pausing(0)) == (0, "", False)


@pytest.mark.parametrize("step", ["crashed", "settled"])
def test_report_of_older_worker_changes_nothing(step: str) -> None:
    state = begun(begun(CrashBackoff(), "old", 0), "new", 30_000)

    after = state.settled("old") if step == "settled" else state.crashed("old", 30_001, "late", BACKOFF)

    assert after == state


def test_same_crash_counts_once() -> None:
    state = begun(CrashBackoff(), "mine", 0)

    twice = state.crashed("mine", 1, "a", BACKOFF).crashed("mine", 2, "b", BACKOFF)

    assert (twice.crashes, twice.reason) == (1, "a")


@pytest.fixture
def store(redis: Redis) -> CrashBackoffs:
    return CrashBackoffs(redis, Keys())


def test_unknown_agent_has_initial_state(store: CrashBackoffs) -> None:
    assert store.read(["coder"]) == {"coder": CrashBackoff()}
    assert store.read([]) == {}


def test_step_is_kept_and_has_time_to_live(store: CrashBackoffs, redis: Redis) -> None:
    after = store.change("coder", lambda state, now: state.begun("mine", now, 1_000))

    assert after is not None
    assert after.started_at > 0
    assert store.read(["coder", "planner"]) == {"coder": after, "planner": CrashBackoff()}
    assert redis.ttl(Keys().crash_backoff("coder")) > 0


def test_step_that_is_not_allowed_changes_nothing(store: CrashBackoffs) -> None:
    first = store.change("coder", lambda state, now: state.begun("mine", now, 60_000))

    assert store.change("coder", lambda state, now: state.begun("yours", now, 60_000)) is None
    assert store.read(["coder"]) == {"coder": first}


def test_one_of_two_concurrent_starts_is_granted(store: CrashBackoffs) -> None:
    answers: list[CrashBackoff | None] = []

    def interrupted(state: CrashBackoff, now: int) -> CrashBackoff | None:
        if not answers:  # the other one comes between reading and writing
            answers.append(store.change("coder", lambda state, now: state.begun("yours", now, 60_000)))
        return state.begun("mine", now, 60_000)

    answers.append(store.change("coder", interrupted))

    assert [answer and answer.generation for answer in answers] == ["yours", None]
    assert store.read(["coder"])["coder"].generation == "yours"


def test_newer_version_state_is_reported_but_unchanged(store: CrashBackoffs, redis: Redis) -> None:
    redis.set(Keys().crash_backoff("coder"), '{"v": 99}')

    assert "another version of goondan" in store.read(["coder"])["coder"].reason
    with pytest.raises(ValueError, match="newer"):
        store.change("coder", lambda state, now: state.begun("mine", now, 1_000))
    assert redis.get(Keys().crash_backoff("coder")) == b'{"v": 99}'


@pytest.mark.parametrize("stored", ["", '{"v": 1, "cra', "[]", '{"v": 1, "crashes": "many"}', None])
def test_damaged_state_counts_as_none_and_is_replaced(
    store: CrashBackoffs, redis: Redis, stored: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    report_row.cache_clear()
    key = Keys().crash_backoff("coder")
    redis.rpush(key, "odd") if stored is None else redis.set(key, stored)

    assert store.read(["coder"]) == {"coder": CrashBackoff()}
    assert store.change("coder", lambda state, now: state.begun("mine", now, 1_000)) is not None

    assert store.read(["coder"])["coder"].generation == "mine"
    assert key in caplog.text

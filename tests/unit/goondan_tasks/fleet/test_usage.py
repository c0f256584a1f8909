"""What workers count by day, and how it is written, folded and read."""

from collections.abc import Iterator

import fakeredis
import pytest

from broker_config.connections import redis_time
from broker_config.keys import Keys
from goondan_tasks.contract.errors import RecordDamagedError, ToolInputValidationError
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.contract.names import DELEGATE_TOOL
from goondan_tasks.fleet.call_counts import CallCounts, CountedCall, CountStore
from goondan_tasks.fleet.usage import (
    FOLD_DAYS,
    LONGEST_USER,
    MOST_EDGES,
    MOST_FOLDED,
    MOST_ROWS,
    OTHER,
    DailyCounts,
    HandoffCount,
    Usage,
    UsageStore,
    day_of,
    groups_of,
)

DAY = 86_400_000
#: noon
NOW = 1_790_000_000_000 // DAY * DAY + DAY / 2


@pytest.fixture
def redis() -> Iterator[fakeredis.FakeRedis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


class Process:
    """A worker process that counts calls, and writes its totals at any time."""

    def __init__(self, redis: fakeredis.FakeRedis, name: str) -> None:
        self.redis, self.name, self.days = redis, name, DailyCounts()
        self.store = UsageStore(redis, Keys())

    def call(
        self, now: float, *, user: str = "", sender: str = "", tool: str = "a__b", error: bool = False
    ) -> None:
        tokens = {"input": 100, "cached": 60, "output": 20} if tool.startswith("goondan__model") else None
        self.days.add("coder", tool, iso_time(now), True, error, user, sender, tokens)

    def write(self, now: float, *, is_answer_lost: bool = False) -> None:
        written = self.days.unwritten()
        with self.redis.pipeline() as pipe:
            self.store.put(pipe, self.name, written, now, kept_days=90)
            pipe.execute()
        if not is_answer_lost:
            self.days.note_written(written, now)

    def used(self, now: float, by: str = "day", days: int = 9) -> dict[str, int]:
        rows = self.store.usage(now, days, groups_of(by))
        return {str(getattr(row, by)): row.calls for row in rows}


def test_usage_counts_by_day_agent_model_user(redis: fakeredis.FakeRedis) -> None:
    one, other = Process(redis, "p1"), Process(redis, "p2")
    one.call(NOW - DAY, user="u1")
    one.call(NOW, user="u1")
    other.call(NOW, user="u1", tool="goondan__model-large", error=True)
    other.call(NOW)
    other.call(NOW, tool="goondan__read-output")
    for process in (one, other):
        process.write(NOW)

    today = {"day": day_of(NOW), "agent": "coder"}
    tokens = {"requests": 1, "input": 100, "cached": 60, "output": 20}
    assert one.store.usage(NOW, 1, groups_of("user,day,agent,model")) == [
        Usage(**today, model="", user="", calls=2),
        Usage(**today, model="", user="u1", calls=1),
        Usage(**today, model="large", user="u1", **tokens),
    ]
    assert one.used(NOW) == {day_of(NOW - DAY): 1, day_of(NOW): 3}
    assert one.store.usage(NOW, 2, groups_of("model"))[1] == Usage(model="large", **tokens)
    assert redis.ttl(Keys().usage(day_of(NOW))) == 91 * 86_400


def test_write_that_is_repeated_or_lost_changes_nothing(redis: fakeredis.FakeRedis) -> None:
    process = Process(redis, "p1")
    process.call(NOW)
    process.write(NOW, is_answer_lost=True)
    process.write(NOW)
    assert process.used(NOW) == {day_of(NOW): 1}
    assert process.days.unwritten() == []
    process.call(NOW)
    process.days.unwritten()  # and Redis was away
    process.call(NOW)
    process.write(NOW)
    assert process.used(NOW) == {day_of(NOW): 3}


def test_killed_process_loses_only_unwritten_counts(
    redis: fakeredis.FakeRedis,
) -> None:
    killed, following = Process(redis, "p1"), Process(redis, "p2")
    killed.call(NOW)
    killed.write(NOW)
    killed.call(NOW)
    following.call(NOW)
    following.write(NOW)
    assert following.used(NOW) == {day_of(NOW): 2}


def test_past_days_fold_once_and_read_unchanged(redis: fakeredis.FakeRedis) -> None:
    processes = [Process(redis, f"p{number}") for number in range(3)]
    for process in processes:
        process.call(NOW, user="u1")
        process.call(NOW, tool=DELEGATE_TOOL, sender="planner")
        process.write(NOW)
    key, later = Keys().usage(day_of(NOW)), NOW + DAY * FOLD_DAYS
    processes[0].store.fold(later - DAY, 90)
    assert redis.hlen(key) == 3
    for _ in range(2):
        processes[0].store.fold(later, 90)
        assert redis.hlen(key) == 1
        assert processes[0].used(later) == {day_of(NOW): 3}
    assert 0 < redis.ttl(key) <= 91 * 86_400


def test_process_suspended_for_days_counts_once(redis: fakeredis.FakeRedis) -> None:
    process, later = Process(redis, "p1"), NOW + DAY * FOLD_DAYS
    process.call(NOW)
    process.write(NOW, is_answer_lost=True)
    Process(redis, "p2").store.fold(later, 90)
    process.write(later)
    process.call(NOW)  # Redis took a result whose end is as old: it counts today
    process.write(later)
    assert process.used(later) == {day_of(NOW): 1, day_of(later): 1}


def test_names_beyond_bounds_count_together(redis: fakeredis.FakeRedis) -> None:
    process = Process(redis, "p1")
    process.call(NOW, user="x" * 2 * LONGEST_USER)
    process.call(NOW, user="x" * 3 * LONGEST_USER)
    for number in range(MOST_ROWS + 9):
        process.call(NOW, user=f"u{number}")
    for number in range(MOST_EDGES + 9):
        process.call(NOW, sender=f"a{number}", tool=DELEGATE_TOOL)
    process.write(NOW)
    used = process.used(NOW, "user")
    assert (len(used), used["x" * LONGEST_USER], used[OTHER]) == (MOST_ROWS + 1, 2, 10)
    edges = process.store.handoffs(NOW, 1).edges
    assert (len(edges), edges[0]) == (
        MOST_EDGES + 1,
        HandoffCount(from_agent=OTHER, to=OTHER, count=9, errors=0),
    )


def test_folded_day_keeps_top_users_merging_others(redis: fakeredis.FakeRedis) -> None:
    processes = MOST_FOLDED // MOST_ROWS + 1
    for number in range(processes):
        process = Process(redis, f"p{number}")
        for user in range(MOST_ROWS):
            process.call(NOW, user=f"u{number}-{user}")
        process.call(NOW, user="u0-0")  # beyond the bound of the later processes
        process.write(NOW)
    later = NOW + DAY * FOLD_DAYS
    process.store.fold(later, 90)
    used = process.used(later, "user")
    assert (len(used), used["u0-0"]) == (MOST_FOLDED, 2)
    assert used[OTHER] == (processes - 1) + processes * MOST_ROWS - (MOST_FOLDED - 1)


def test_handoffs_are_counted_by_hour_with_failures(redis: fakeredis.FakeRedis) -> None:
    process, hour = Process(redis, "p1"), 3_600_000
    for age in (0, 1, 1.5, 30):
        process.call(NOW - age * hour, tool=DELEGATE_TOOL, sender="planner", error=age == 1)
    process.call(NOW, tool=DELEGATE_TOOL, sender="client")
    process.call(NOW, tool=DELEGATE_TOOL)  # an answer has no sender here
    process.write(NOW)

    def counted(hours: int) -> dict[str, tuple[int, int]]:
        edges = process.store.handoffs(NOW + 1, hours).edges
        return {one.from_agent: (one.count, one.errors) for one in edges}

    assert counted(1) == {"planner": (2, 1), "client": (1, 0)}
    assert counted(2) == {"planner": (3, 1), "client": (1, 0)}
    assert counted(31)["planner"] == (4, 1)
    assert process.store.handoffs(NOW, 1).since == iso_time(NOW - hour)
    assert process.store.handoffs(NOW, 1).seconds == 3_600
    assert process.store.usage(NOW, 3, ("day",)) == []


def test_damaged_field_stays_and_hides_no_other(redis: fakeredis.FakeRedis) -> None:
    process, key = Process(redis, "p1"), Keys().usage(day_of(NOW))
    process.call(NOW)
    process.write(NOW)
    redis.hset(key, "p2", '{"rows": [{"agent": "a", "model": "", "user": "", "counts": [1]}]}')
    later = NOW + DAY * FOLD_DAYS
    process.store.fold(later, 90)
    assert process.used(later) == {day_of(NOW): 1}
    assert redis.hkeys(key) == [b"p2", b""]


def test_damaged_day_is_named_and_totals_written(redis: fakeredis.FakeRedis) -> None:
    counts, store = CallCounts(lambda agent, tool: True), CountStore(redis, Keys())
    now = redis_time(redis)
    counts.add([CountedCall("coder", "a__b", "ok", None, 1.0, None, iso_time(now))])
    redis.set(Keys().usage(day_of(now)), "?")
    with pytest.raises(RecordDamagedError, match="usage"):
        store.publish(counts, "w1", "p1", usage_days=90)
    assert [one.process for one in store.workers()] == ["p1"]
    redis.delete(Keys().usage(day_of(now)))
    store.publish(counts, "w1", "p1", usage_days=90)
    assert [one.calls for one in UsageStore(redis, Keys()).usage(now, 1, ("day",))] == [1]


def test_calls_added_to_row_keep_day_agent_user() -> None:
    counts = CallCounts(lambda agent, tool: True)

    def call(agent: str, now: float, user: str = "") -> CountedCall:
        return CountedCall(agent, "a__b", "ok", None, 1.0, None, iso_time(now), user)

    def found() -> dict[tuple[str, ...], int]:
        rows = ((day.day, row) for day in counts.unwritten_days() for row in day.usage.rows)
        return {(day, row.agent, row.user): row.counts[0] for day, row in rows}

    for moment in (NOW, NOW, NOW - DAY, NOW, NOW - DAY):
        counts.add([call("coder", moment), call("clerk", moment, "u1"), call("clerk", moment)])
    before, today, later = (day_of(NOW + age * DAY) for age in (-1, 0, 3))
    names = (("coder", ""), ("clerk", "u1"), ("clerk", ""))
    assert found() == {(day, *name): n for day, n in ((before, 2), (today, 3)) for name in names}

    assert counts.note_written(counts.unwritten_days(), NOW + 3 * DAY)
    counts.add([call("coder", NOW)])  # its day is not written any more
    assert found() == {(later, "coder", ""): 1}


def test_usage_is_not_grouped_by_something_unknown() -> None:
    with pytest.raises(ToolInputValidationError, match="cannot be grouped by 'agents'") as caught:
        groups_of("day,agents")
    assert "'agent'" in (caught.value.suggestion or "")
    with pytest.raises(ToolInputValidationError, match="''"):
        groups_of("")

"""Schedules in Redis: kept, fired once by several workers, paused, and removed with their bundle."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import fakeredis
import pytest

from broker_config.connections import redis_time
from broker_config.settings import Settings
from goondan_tasks.client.schedules import Schedules
from goondan_tasks.contract.errors import RecordDamagedError, ScheduleNotFoundError
from goondan_tasks.contract.messages import ToolCallError
from goondan_tasks.contract.schedules import Schedule
from goondan_tasks.fleet.audit import AuditLog
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.schedules import Looked, ScheduleState, ScheduleStore
from tests.waiting import wait_until

QUEUE = "agent.coder.events"


class Station:
    """Schedules of one Redis, whose slots pass when the test says so."""

    def __init__(self) -> None:
        self.redis = fakeredis.FakeRedis()
        self.ledger = Ledger(self.redis, Settings.model_validate({}))
        self.store = ScheduleStore(self.ledger)
        self.reaper = Reaper(self.ledger, "https://help/")
        self.cancelled: list[str] = []

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled += self.reaper.cancel_many(ids, "schedule")

    def look(self, *owners: str) -> Looked:
        return self.store.fire_due(owners or ("w", ""), self.cancel)

    def pass_slot(self, one: Schedule, slots: int = 1) -> None:
        """Let the next slot be one that has just passed, as many hours ago as ``slots`` - 1."""
        now = self.redis.time()[0]
        slot = (now - now % 3_600 - 3_600 * (slots - 1)) * 1000
        key, keys = self.ledger.keys.schedule(one.full_name), self.ledger.keys
        assert self.redis.hget(key, "next"), "it has no next slot"
        self.redis.hset(key, mapping={"next": slot, "at": slot})
        self.redis.zadd(keys.schedules(one.owner), {one.full_name: slot})

    def state(self, name: str) -> ScheduleState:
        [found] = [one for one in self.store.all() if one.full_name == name]
        return found

    def end(self, call_id: str, error: ToolCallError | None = None) -> None:
        """Run an event to its end."""
        record = self.ledger.record(call_id)
        assert record is not None
        request = ClaimRequest(call_id, record.call, "w1", ClaimTerms())
        claim = self.ledger.claim_event(request, b"m", is_handled_here=True).run(self.redis)
        run = claim.run
        result = run.ok(None, 0.0) if error is None else run.failed(error, 0.0)
        self.ledger.finish(claim, result).run(self.redis)


@pytest.fixture
def station() -> Station:
    return Station()


def hourly(name: str = "hourly", owner: str = "w", **fields: Any) -> Schedule:
    return Schedule.from_wire(
        {"name": name, "owner": owner, "every": "1h", "agent": "coder", "catchUp": "all", **fields}
    )


def test_two_workers_looking_together_fire_slot_once(station: Station) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    station.pass_slot(one)
    first = station.store.fire_due(["w"], station.cancel)
    station.redis.zadd(station.ledger.keys.schedules("w"), {one.full_name: 1})  # what the other has seen
    second = station.look()

    assert [fired.word for fired in first.fired] == ["fired"]
    assert second.fired == []
    assert station.redis.llen(QUEUE) == 1
    assert station.state("w/hourly").fired == 1


def test_worker_that_is_too_late_changes_nothing(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    station.pass_slot(one, 3)
    steps = station.store._run
    seen: list[Any] = []

    def race(found: Any) -> Any:  # another worker acts between the look and the firing
        if not seen:
            seen.append(None)
            seen[0] = station.look()
        return steps(found)

    monkeypatch.setattr(station.store, "_run", race)
    late = station.look()

    assert [fired.word for fired in seen[0].fired] == ["fired"] * 3
    assert [fired.word for fired in late.fired] == ["stale"] * 3
    assert station.redis.llen(QUEUE) == 3
    assert station.state("w/hourly").fired == 3


def test_next_slot_is_due_in_time(station: Station) -> None:
    one = hourly(every="10s")
    station.store.keep("w", [one], 1.0)

    looked = station.look()

    assert looked.next_seconds is not None
    assert 0 < looked.next_seconds <= 10
    assert ScheduleStore(station.ledger).fire_due(["other"], station.cancel).next_seconds is None


def test_schedules_are_added_changed_removed_by_name(station: Station) -> None:
    station.store.keep("w", [hourly("a"), hourly("b")], 1.0)
    station.store.pause(hourly("b"), "why", "ann")
    next_of_a = station.state("w/a").next

    assert station.store.keep("w", [hourly("a", input=2), hourly("b", every="2h"), hourly("c")], 2.0)

    states = {one.full_name: one for one in station.store.all()}
    assert states.keys() == {"w/a", "w/b", "w/c"}
    assert (states["w/a"].schedule.input, states["w/a"].next) == (2, next_of_a)
    assert states["w/b"].paused is not None
    assert states["w/b"].next is None
    station.store.keep("w", [hourly("c")], 3.0)
    assert [one.full_name for one in station.store.all()] == ["w/c"]
    assert not station.redis.exists(station.ledger.keys.schedule("w/a"))


def test_older_worker_does_not_replace_newer_schedules(station: Station) -> None:
    station.store.keep("w", [hourly("new")], 2.0)

    assert not station.store.keep("w", [hourly("old")], 1.0)

    assert [one.full_name for one in station.store.all()] == ["w/new"]


def test_bundles_and_programs_keep_schedules_apart(station: Station) -> None:
    station.store.keep("w", [hourly()], 1.0)
    station.store.keep("v", [hourly(owner="v")], 1.0)
    station.store.put(hourly(owner=""))
    station.store.keep("v", [], 2.0)

    assert [one.full_name for one in station.store.all()] == ["hourly", "w/hourly"]
    station.pass_slot(hourly())
    assert station.look("v", "").fired == []
    assert len(station.look("w", "").fired) == 1


def test_bundle_without_schedules_leaves_no_key(station: Station) -> None:
    station.store.keep("w", [], 1.0)
    station.look()

    assert station.redis.keys("*") == []


def test_paused_schedule_skips_slots_and_resumes_with_next(station: Station) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    station.pass_slot(one, 3)

    assert station.store.pause(one, "", "")
    assert not station.store.pause(one, "again", "")
    assert station.look().fired == []
    assert station.store.resume(one)
    assert not station.store.resume(one)
    assert station.look().fired == []
    state = station.state("w/hourly")
    assert (state.paused, state.missed) == (None, 0)
    assert state.next is not None


def test_overlap_skip_counts_slot_during_open_run(station: Station) -> None:
    one = hourly(overlap="skip", catchUp="once")
    station.store.keep("w", [one], 1.0)
    words, ids = list[str](), list[str]()
    for _ in range(3):
        station.pass_slot(one)
        [fired] = station.look().fired
        words.append(fired.word)
        ids.append(fired.call_id)
        if words == ["fired", "skipped"]:
            station.end(ids[0])

    assert words == ["fired", "skipped", "fired"]
    assert station.state("w/hourly").skipped == 1


def test_overlap_cancel_ends_earlier_run_first(station: Station) -> None:
    one = hourly(overlap="cancel", catchUp="once", instanceKey="{{slot}}")
    station.store.keep("w", [one], 1.0)
    first = station.store.outside_slots(one)
    station.store.run(one, first, "")
    station.pass_slot(one)

    [fired] = station.look().fired

    assert (station.cancelled, fired.word) == ([first.id], "fired")
    result = station.ledger.result(first.id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_CANCELLED"


def test_list_has_last_run_and_its_error(station: Station) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    station.pass_slot(one)
    [fired] = station.look().fired
    assert station.state("w/hourly").open_runs == 1
    station.end(fired.call_id, ToolCallError(code="E_MODEL", name="ModelError", message="no answer"))
    station.redis.zadd(station.ledger.keys.schedules("w"), {one.full_name: 1})
    station.store.run(one, station.store.outside_slots(one), "")  # looks at the runs

    state = station.state("w/hourly")
    assert state.last_outcome == "error"
    assert state.last_error == "E_MODEL: no answer"
    assert state.last_id != fired.call_id


def test_list_shows_ended_run_with_outcome_immediately(station: Station) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    runs = [station.store.outside_slots(one) for _ in range(3)]
    for at, run in enumerate(runs, 1):
        station.store.run(one, run, "")
        # in a millisecond each, however fast this machine is
        station.redis.zadd(station.ledger.keys.schedule_runs(one.full_name), {run.id: at})
    before = station.state("w/hourly")

    station.end(runs[0].id)
    first = station.state("w/hourly")
    station.end(runs[1].id, ToolCallError(code="E_MODEL", name="ModelError", message="no answer"))
    second = station.state("w/hourly")

    assert (before.open_runs, before.last_outcome) == (3, None)
    assert (first.open_runs, first.last_outcome, first.last_error) == (2, "ok", None)
    assert (second.open_runs, second.last_outcome) == (1, "error")
    assert second.last_error == "E_MODEL: no answer"


def test_key_is_same_run_until_schedule_is_removed(station: Station) -> None:
    one = hourly()
    station.store.keep("w", [one], 1)
    run, again = station.store.outside_slots(one, "k"), station.store.outside_slots(one, "k")
    station.store.remove(one)
    added = redis_time(station.redis)
    wait_until(lambda: redis_time(station.redis) > added)
    station.store.keep("w", [one], 2)

    assert run.id == again.id != station.store.outside_slots(one, "k").id


def test_list_goes_on_without_record_of_run(station: Station) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    run = station.store.outside_slots(one)
    station.store.run(one, run, "")
    station.redis.delete(station.ledger.keys.call(run.id))

    state = station.state("w/hourly")

    assert (state.open_runs, state.last_outcome) == (0, None)


def test_run_outside_slots_counts_once_keeping_next_slot(station: Station) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    before = station.state("w/hourly").next
    submission = station.store.outside_slots(one)

    words = [station.store.run(one, submission, "p") for _ in range(2)]  # the second time its answer was lost

    state = station.state("w/hourly")
    assert words == ["fired", "fired"]
    assert (state.fired, state.next) == (1, before)
    assert station.redis.llen(QUEUE) == 1


def test_changed_schedule_is_not_run_as_before(station: Station) -> None:
    station.store.keep("w", [hourly()], 1.0)
    submission = station.store.outside_slots(hourly())
    station.store.keep("w", [hourly(input="new")], 2.0)

    assert station.store.run(hourly(), submission, "p") == "stale"
    assert station.redis.llen(QUEUE) == 0


def test_damaged_mailbox_does_not_stop_its_schedule(station: Station) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    station.redis.set(station.ledger.keys.mailbox("coder@default"), "x")
    station.pass_slot(one)

    [fired] = station.look().fired

    assert fired.word == "damaged"
    assert station.state("w/hourly").damaged == 1
    assert station.look().fired == []


def test_schedule_whose_key_is_damaged_leaves_others_alone(station: Station) -> None:
    station.store.keep("w", [hourly("a"), hourly("b")], 1.0)
    station.pass_slot(hourly("a"))
    station.pass_slot(hourly("b"))
    station.redis.set(station.ledger.keys.schedule("w/a"), "x")

    assert [fired.schedule.name for fired in station.look().fired] == ["b"]
    assert [one.full_name for one in station.store.all()] == ["w/b"]
    station.redis.set(station.ledger.keys.schedules(""), "x")
    with pytest.raises(RecordDamagedError, match="schedules"):
        station.store.put(hourly(owner=""))


@pytest.mark.parametrize("count", ["x", str(2**63 - 1)])
def test_damaged_count_begins_again(station: Station, count: str) -> None:
    one = hourly(catchUp="once")
    station.store.keep("w", [one], 1.0)
    station.pass_slot(one, 3)
    key = station.ledger.keys.schedule(one.full_name)
    station.redis.hset(key, mapping={"fired": count, "missed": count})

    assert [fired.word for fired in station.look().fired] == ["fired"]

    assert station.look().fired == []
    assert station.redis.llen(QUEUE) == 1
    assert (station.state("w/hourly").fired, station.state("w/hourly").missed) == (1, 2)


DAMAGED_SLOTS: list[dict[str, str | None]] = [
    {"at": "x"},
    {"at": None},
    {"at": ""},
    {"at": "1.5"},
    {"next": "x"},
    {"next": None},
    {"next": ""},
    {"next": "1.5"},
    {"next": "nan"},
    {"next": "900000000000000", "at": "900000000000000"},
    {"next": None, "at": None},
]


def damage(station: Station, one: Schedule, fields: dict[str, str | None]) -> None:
    key = station.ledger.keys.schedule(one.full_name)
    for field, value in fields.items():
        station.redis.hdel(key, field) if value is None else station.redis.hset(key, field, value)


@pytest.mark.parametrize("fields", DAMAGED_SLOTS)
def test_schedule_with_damaged_slot_takes_next_slot(station: Station, fields: dict[str, str | None]) -> None:
    ones = [hourly("a"), hourly("b")]
    station.store.keep("w", ones, 1.0)
    for one in ones:
        station.pass_slot(one)
    damage(station, ones[0], fields)
    assert [one.full_name for one in station.store.all()] == ["w/a", "w/b"]

    looked = station.look()

    assert [(one.schedule.name, one.word) for one in looked.fired if one.call_id] == [("b", "fired")]
    assert station.redis.llen(QUEUE) == 1
    assert station.state("w/a").next == station.state("w/a").due_at == station.state("w/b").next
    assert station.state("w/a").missed == 0
    station.pass_slot(ones[0])
    assert [one.schedule.name for one in station.look().fired] == ["a"]


def test_paused_schedule_with_damaged_slot_stays_paused(station: Station) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    station.pass_slot(one)
    station.store.pause(one, "", "ann")
    damage(station, one, {"next": "x", "at": "y"})
    station.redis.zadd(station.ledger.keys.schedules("w"), {one.full_name: 1})

    assert station.look().fired == []
    assert station.store.resume(one)
    assert station.state("w/hourly").next is not None


@pytest.mark.parametrize("fields", DAMAGED_SLOTS)
def test_damaged_slot_is_not_kept_with_equal_times(station: Station, fields: dict[str, str | None]) -> None:
    one = hourly()
    station.store.keep("w", [one], 1.0)
    sound = station.state("w/hourly")
    damage(station, one, fields)

    assert station.store.keep("w", [one], 2.0)

    assert station.state("w/hourly") == sound


def test_damaged_queue_does_not_stop_other_schedules(station: Station) -> None:
    ones = [hourly("a", agent="smith"), hourly("b")]
    station.store.keep("w", ones, 1.0)
    for one in ones:
        station.pass_slot(one)
    station.redis.set("agent.smith.events", "x")

    words = [(fired.schedule.name, fired.word) for fired in station.look().fired]

    assert words == [("a", "stale"), ("b", "fired")]
    assert station.redis.llen(QUEUE) == 1
    station.redis.delete("agent.smith.events")
    assert [(fired.schedule.name, fired.word) for fired in station.look().fired] == [("a", "fired")]
    assert station.redis.llen("agent.smith.events") == 1
    assert station.state("w/a").fired == 1


def test_named_schedule_is_read_without_others(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    station.store.keep("w", [hourly(f"hourly-{number}") for number in range(5)], 1.0)
    unused: Any = None
    audit = AuditLog(station.redis, station.ledger.keys)
    schedules = Schedules(station.store, unused, unused, unused, "p", audit, nullcontext)
    read, state_of = list[str](), station.store._state

    def read_one(name: str, *rows: Any) -> ScheduleState | None:
        read.append(name)
        return state_of(name, *rows)

    monkeypatch.setattr(station.store, "_state", read_one)
    assert schedules.pause("hourly-3").paused
    assert not schedules.resume("w/hourly-3").paused
    assert set(read) == {"w/hourly-3"}


def test_name_of_two_bundles_needs_bundle(station: Station) -> None:
    for owner in ("v", "w"):
        station.store.keep(owner, [hourly(owner=owner)], 1.0)
    unused: Any = None
    audit = AuditLog(station.redis, station.ledger.keys)
    schedules = Schedules(station.store, unused, unused, unused, "p", audit, nullcontext)

    with pytest.raises(ScheduleNotFoundError, match="Several schedules are called 'hourly'") as several:
        schedules.pause("hourly")
    assert several.value.suggestion == "Write 'v/hourly' and 'w/hourly'."
    with pytest.raises(ScheduleNotFoundError, match="Did you mean 'hourly'"):
        schedules.pause("hourli")

"""A worker that follows the revisions of its bundle: what it does about the record, and writes there."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from broker_config.keys import Keys
from goondan_tasks.agent_registry import WorkerRecord
from goondan_tasks.entry import EntryError
from goondan_tasks.errors import (
    ConfigError,
    ExtensionInitError,
    ToolNotFoundError,
)
from goondan_tasks.messages import iso_time, wall_clock
from goondan_tasks.revisions.active import (
    MOST_LOST_LOADINGS,
    ActiveRevision,
    RevisionChange,
    RevisionFailure,
    RevisionLoading,
    RevisionState,
)
from tests.unit.workers.revisions.fake_revisions import Factory
from tests.waiting import wait_until
from workers.process_identity import ProcessIdentity, this_process
from workers.revisions.revisions import AGAIN_SECONDS, Revisions
from workers.revisions.standby import StandBy
from workers.revisions.sync import (
    LONGEST_SECONDS,
    RESTART_SECONDS,
    START_SECONDS,
    TELLING_SECONDS,
    CrashLoopGuard,
    LoadedElsewhereError,
    LostLoadingsError,
    RevisionSync,
)


@pytest.fixture
def record() -> Iterator[ActiveRevision]:
    with fakeredis.FakeRedis() as redis:
        yield ActiveRevision(redis, Keys(), "den")


class Worker:
    """One worker process, without its thread unless it is started."""

    def __init__(self, record: ActiveRevision, ref: str = "r1", *, is_newer: bool = False) -> None:
        self.factory = Factory()
        self.record = record
        self.revisions: Revisions = self.factory.revisions(ref)
        self.told: list[RevisionChange] = []
        bundle: Any = SimpleNamespace(
            supersedes=lambda ours, active: is_newer,
            checkouts=SimpleNamespace(cache=Path("nowhere"), forget_fetched=lambda: None),
        )
        #: the workers that say that they live
        self.others: list[WorkerRecord] = []
        self.failures: list[RevisionFailure] = []
        self.stand_by = StandBy(self.revisions, record.state, lambda: self.others)
        news: Any = SimpleNamespace(tell=self.told.append, tell_failure=self.failures.append)
        self.following = RevisionSync(
            bundle,
            record,
            self.revisions,
            stand_by=self.stand_by,
            notes=CrashLoopGuard(record, lambda: self.others),
            news=news,
            clock=lambda: self.factory.now,
        )

    def begin(self, *agents: str) -> "Worker":
        """Agree with the others, and serve, lizard if nobody is named."""
        self.following._begin()
        self.following.serve(*(agents or ("lizard",)))
        return self

    @property
    def ref(self) -> str | None:
        return self.revisions.active.ref


def a_worker(ref: str, *agents: str) -> WorkerRecord:
    """Return the record of a worker on another machine."""
    return WorkerRecord(
        name="other",
        pid=1,
        host="elsewhere",
        agents=agents,
        concurrency=1,
        root_id="root",
        started_at="2026-01-01T00:00:00.000Z",
        bundle_ref=ref,
    )


def change(ref: str) -> RevisionChange:
    return RevisionChange(new_ref=ref, timestamp="2026-01-01T00:00:00.000Z")


def now(record: ActiveRevision) -> RevisionState:
    state = record.state()
    assert state is not None
    return state


def test_the_first_that_has_loaded_a_proposal_makes_it_active_and_the_others_follow(
    record: ActiveRevision,
) -> None:
    workers = [Worker(record).begin(), Worker(record).begin()]
    record.propose(change("r2"))
    for worker in workers:
        worker.following.look()
    assert [worker.ref for worker in workers] == ["r2", "r2"]
    assert (now(record).active, now(record).proposed) == ("r2", None)
    assert [[told.previous_ref for told in worker.told] for worker in workers] == [["r1"], ["r1"]]


def test_a_proposal_that_cannot_be_prepared_is_withdrawn_with_the_reason(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.factory.faults["r2"] = ExtensionInitError("no ear")
    record.propose(change("r2"))
    worker.following.look()
    failed = now(record).failed
    assert failed is not None
    assert (failed.ref, failed.code, failed.reason) == ("r2", "E_EXT_INIT", "no ear")
    assert (worker.ref, now(record).active, now(record).proposed, worker.told) == ("r1", "r1", None, [])
    assert worker.failures == [failed]
    assert failed.change is not None and failed.change.new_ref == "r2"


def test_a_proposal_with_a_tool_that_does_not_load_is_withdrawn(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.factory.tool_faults["r2"] = ToolNotFoundError("no skin")
    record.propose(change("r2"))
    worker.following.look()
    failed = now(record).failed
    assert failed is not None and (failed.ref, failed.reason) == ("r2", "no skin")
    assert (worker.ref, now(record).active, now(record).proposed) == ("r1", "r1", None)


def test_an_active_revision_with_a_tool_that_another_worker_cannot_load_gives_way(
    record: ActiveRevision,
) -> None:
    first, second = Worker(record).begin(), Worker(record).begin()
    second.factory.tool_faults["r2"] = ToolNotFoundError("no skin")
    record.propose(change("r2"))
    for worker in (first, second):
        worker.following.look()
    second.factory.now += TELLING_SECONDS
    for worker in (second, first):
        worker.following.look()
    assert (first.ref, second.ref, now(record).active) == ("r1", "r1", "r1")
    assert [told.new_ref for told in second.told] == []


def test_a_late_worker_follows_what_others_began_with_whatever_its_tools(record: ActiveRevision) -> None:
    Worker(record).begin()
    late = Worker(record, "r0")
    late.factory.tool_faults["r1"] = ToolNotFoundError("no skin")
    late.begin().following.look()
    assert (late.ref, now(record).active, now(record).failed) == ("r1", "r1", None)


def test_an_active_revision_that_another_worker_cannot_prepare_gives_way_everywhere(
    record: ActiveRevision,
) -> None:
    good, bad = Worker(record).begin(), Worker(record).begin()
    bad.factory.faults["r2"] = ExtensionInitError("no ear")
    record.propose(change("r2"))
    good.following.look()
    assert good.ref == "r2"
    bad.following.look()
    bad.factory.now += TELLING_SECONDS
    for worker in (bad, good):
        worker.following.look()
    assert (good.ref, bad.ref, now(record).active) == ("r1", "r1", "r1")


def test_trouble_of_one_worker_does_not_take_back_what_others_run(record: ActiveRevision) -> None:
    good, bad = Worker(record).begin(), Worker(record).begin()
    bad.factory.faults["r2"] = ExtensionInitError("no database here")
    record.propose(change("r2"))
    good.following.look()
    for _ in range(3):
        bad.following.look()  # the others have not said yet that they run it
    bad.factory.now += TELLING_SECONDS - 0.1
    bad.following.look()
    bad.others = [a_worker("r2", "lizard")]
    bad.following.look()
    bad.stand_by.look()
    assert (good.ref, bad.ref, now(record).active, now(record).failed) == ("r2", "r1", "r2", None)
    assert bad.stand_by.agents == {"lizard"}
    bad.factory.faults.clear()
    bad.factory.now += AGAIN_SECONDS
    bad.following.look()
    bad.stand_by.look()
    assert (bad.ref, bad.stand_by.agents) == ("r2", frozenset())


def test_a_revision_with_which_nobody_serves_one_of_the_agents_gives_way(record: ActiveRevision) -> None:
    good, bad = Worker(record).begin(), Worker(record).begin("lizard", "newt")
    bad.factory.faults["r2"] = ExtensionInitError("newt has no ear")
    record.propose(change("r2"))
    good.following.look()
    bad.others = [a_worker("r2", "lizard")]
    bad.following.look()
    bad.factory.now += TELLING_SECONDS
    for worker in (bad, good):
        worker.following.look()
    assert (good.ref, bad.ref, now(record).active) == ("r1", "r1", "r1")
    assert [failure.reason for failure in bad.failures] == ["newt has no ear"]


def test_a_worker_that_alone_serves_an_agent_brings_the_one_before_back(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.revisions.sync.TELLING_SECONDS", 0.0)
    first = Worker(record).begin()
    record.propose(change("r2"))
    first.following.look()
    late = Worker(record, "r2")
    late.revisions.active._error = ExtensionInitError("newt has no ear")  # type: ignore[attr-defined]
    late.others = [a_worker("r2", "lizard")]
    late.begin("lizard", "newt")
    assert (late.ref, now(record).active) == ("r1", "r1")


def test_a_worker_that_cannot_begin_hears_of_those_who_have_just_made_the_revision_active(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Worker(record).begin()
    record.propose(change("r2"))
    first.following.look()
    late = Worker(record, "r2")
    late.revisions.active._error = ExtensionInitError("no database here")  # type: ignore[attr-defined]
    tell = late.others.append
    monkeypatch.setattr("workers.revisions.sync.sleep", lambda _: tell(a_worker("r2", "lizard")))
    with pytest.raises(ConfigError, match="no database"):
        late.begin()
    assert (now(record).active, now(record).failed) == ("r2", None)


def test_a_worker_that_cannot_begin_with_what_others_run_is_refused_and_takes_nothing_back(
    record: ActiveRevision,
) -> None:
    Worker(record).begin()
    late = Worker(record)
    late.revisions.active._error = ExtensionInitError("no database here")  # type: ignore[attr-defined]
    late.others = [a_worker("r1", "lizard")]
    with pytest.raises(ConfigError, match="no database"):
        late.begin()
    assert now(record).failed is None


def test_a_proposal_that_is_not_here_yet_is_not_withdrawn(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.factory.missing = {"r2"}
    record.propose(change("r2"))
    worker.following.look()
    proposed = now(record).proposed
    assert (worker.ref, now(record).failed) == ("r1", None)
    assert proposed is not None and proposed.new_ref == "r2"
    worker.factory.missing = set()
    worker.factory.now += AGAIN_SECONDS
    worker.following.look()
    assert worker.ref == "r2"


def test_what_could_not_be_loaded_a_moment_ago_is_neither_tried_nor_noted(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Worker(record).begin(), Worker(record).begin()
    record.propose(change("r2"))
    good.following.look()
    bad.others = [a_worker("r2", "lizard")]
    bad.factory.tool_faults["r2"] = ToolNotFoundError("no skin")
    bad.following.look()
    monkeypatch.setattr(record, "begin_loading", lambda *_, **__: pytest.fail("noted"))
    bad.factory.tool_faults.clear()
    bad.factory.made[-1].tool_error = None
    bad.following.look()
    assert bad.ref == "r1"
    monkeypatch.undo()
    bad.factory.now += AGAIN_SECONDS
    bad.following.look()
    assert bad.ref == "r2"


def test_what_is_proposed_anew_is_tried_at_once(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.factory.faults["r2"] = ExtensionInitError("no ear")
    record.propose(change("r2"))
    worker.following.look()
    worker.factory.faults.clear()
    record.propose(change("r2").model_copy(update={"timestamp": "2026-01-01T00:00:01.000Z"}))
    worker.following.look()
    assert (worker.ref, now(record).active) == ("r2", "r2")


def test_a_step_does_not_wait_for_what_a_look_could_not_have(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(record).begin()
    worker.factory.missing = {"r2"}
    record.propose(change("r2"))
    worker.following.look()
    monkeypatch.setattr(worker.following._lookout, "looks_within", lambda _: pytest.fail("waited"))
    worker.following.reach_safe_point()
    assert worker.ref == "r1"


def test_a_safe_point_takes_what_was_proposed_just_before(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.following.start()
    record.propose(change("r2"))
    worker.revisions.reach_safe_point()
    assert worker.ref == "r2"


def test_many_safe_points_at_once_load_a_revision_once(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.following.start()
    record.propose(change("r2"))
    threads = [threading.Thread(target=worker.revisions.reach_safe_point) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (worker.ref, worker.factory.fetched, len(worker.told)) == ("r2", ["r2"], 1)


def test_a_swarm_without_steps_follows_too(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.following.start()
    record.propose(change("r2"))
    wait_until(lambda: worker.ref == "r2")


def test_a_step_begins_with_the_old_revision_if_the_new_one_takes_too_long(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.revisions.sync.PATIENCE_SECONDS", 0.05)
    worker = Worker(record).begin()
    record.propose(change("r2"))
    worker.following.reach_safe_point()
    assert worker.ref == "r1"


def test_one_step_at_most_loses_patience_with_a_revision_that_takes_too_long(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.revisions.sync.PATIENCE_SECONDS", 0.05)
    worker = Worker(record).begin()
    record.propose(change("r2"))
    with capture_logs() as logs:
        for _ in range(3):
            worker.following.reach_safe_point()  # there is no thread that could answer
    assert [entry["event"] for entry in logs] == ["revision.not_awaited"]
    worker.following.start()
    wait_until(lambda: worker.ref == "r2")
    record.propose(change("r3"))
    monkeypatch.setattr("workers.revisions.sync.PATIENCE_SECONDS", 60)
    worker.following.reach_safe_point()
    assert worker.ref == "r3"


def test_without_redis_the_worker_goes_on(record: ActiveRevision, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise RedisConnectionError("away")

    worker = Worker(record)
    with monkeypatch.context() as patch:
        patch.setattr(record, "begin", away)
        patch.setattr(record, "state", away)
        worker.following.start()
        worker.following.serve("lizard")
        worker.revisions.reach_safe_point()
    wait_until(lambda: record.state() is not None)
    assert now(record).active == "r1"


def test_a_pulled_commit_is_proposed_although_redis_goes_away_amid_it(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise RedisConnectionError("away")

    record.begin("r1")
    pulled = Worker(record, "r2", is_newer=True)
    with monkeypatch.context() as patch, pytest.raises(RedisConnectionError):
        patch.setattr(record, "propose", away)
        pulled.begin()
    pulled.following.serve("lizard")
    pulled.following.look()
    assert (pulled.ref, now(record).active) == ("r2", "r2")


def test_a_record_that_is_lost_is_made_again(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.end(now(record))
    worker.following.look()
    assert now(record).active == "r1"


def test_a_late_worker_begins_with_what_is_active(record: ActiveRevision) -> None:
    record.begin("r1")
    late = Worker(record, "r0").begin()
    assert (late.ref, now(record).active, now(record).proposed) == ("r1", "r1", None)


def test_a_worker_that_cannot_have_what_is_active_runs_its_own(record: ActiveRevision) -> None:
    record.begin("r1")
    late = Worker(record, "r0")
    late.factory.missing = {"r1"}
    late.begin()
    late.following.look()
    assert (late.ref, now(record).active) == ("r0", "r1")


def test_a_worker_with_a_later_revision_brings_the_others_along(record: ActiveRevision) -> None:
    others = Worker(record).begin()
    pulled = Worker(record, "r2", is_newer=True).begin()
    pulled.following.look()
    others.following.look()
    assert (pulled.ref, others.ref, now(record).active) == ("r2", "r2", "r2")


def test_a_worker_that_cannot_serve_with_what_is_active_brings_the_one_before_back(
    record: ActiveRevision,
) -> None:
    first = Worker(record).begin()
    record.propose(change("r2"))
    first.following.look()
    late = Worker(record, "r2")
    late.revisions.active._error = ExtensionInitError("no ear")  # type: ignore[attr-defined]
    late.begin()
    first.following.look()
    assert (late.ref, first.ref, now(record).active) == ("r1", "r1", "r1")


def test_a_worker_that_can_serve_with_nothing_is_refused(record: ActiveRevision) -> None:
    worker = Worker(record)
    worker.revisions.active._error = ExtensionInitError("no ear")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no ear"):
        worker.begin()
    failed = now(record).failed
    assert failed is not None and failed.ref == "r1"


def die_loading(record: ActiveRevision, ref: str, times: int = MOST_LOST_LOADINGS) -> None:
    """Leave what so many workers leave that end while they load a revision."""
    us = this_process()  # in a container that starts again its id is the same
    for _ in range(times):
        loading = RevisionLoading(
            ref=ref, worker=us.name, worker_id="dead", place=us.place, since="2026-01-01T00:00:00.000Z"
        )
        assert record.begin_loading(loading, is_lost=lambda _: True) == "ours"


def test_a_proposal_that_has_ended_workers_is_withdrawn_and_not_loaded(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.propose(change("r2"))
    die_loading(record, "r2")
    worker.following.look()
    failed = now(record).failed
    assert failed is not None and (failed.ref, failed.reason) == (
        "r2",
        "2 workers have ended while they loaded r2.",
    )
    assert (worker.ref, worker.factory.fetched, now(record).loading) == ("r1", [], ())


def test_a_worker_does_not_begin_with_a_folder_that_has_ended_workers(record: ActiveRevision) -> None:
    record.begin("r1")
    die_loading(record, "r2")
    first = Worker(record, "r2", is_newer=True).begin()
    next_one = Worker(record, "r2", is_newer=True).begin()
    for worker in (first, next_one):
        worker.following.look()
    assert (first.ref, next_one.ref) == ("r1", "r1")
    assert (now(record).active, now(record).proposed) == ("r1", None)


def test_one_loss_keeps_nobody_from_loading_and_an_end_is_noted(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.propose(change("r2"))
    die_loading(record, "r2", times=1)
    worker.following.look()
    assert (worker.ref, now(record).active, now(record).loading) == ("r2", "r2", ())


def test_the_loading_of_one_that_lives_or_has_just_begun_is_not_lost(record: ActiveRevision) -> None:
    record.begin("r1")
    since, there = 1_767_225_600_000.0, "7@elsewhere"
    loading = RevisionLoading(
        ref="r2", worker=there, worker_id="other", since="2026-01-01T00:00:00.000Z", times=2
    )
    record.begin_loading(loading, is_lost=lambda _: False)
    record.begin_loading(loading, is_lost=lambda _: True)
    alive = WorkerRecord(
        name="w", id="other", pid=7, host="elsewhere", agents=(), concurrency=1, root_id="r", started_at="x"
    )

    def load(seconds_later: float, *workers: WorkerRecord) -> None:
        later = since + seconds_later * 1_000
        with CrashLoopGuard(record, lambda: workers, clock=lambda: later).noted("r2"):
            assert [one.worker for one in now(record).loading] == [there]

    load(START_SECONDS - 1)
    load(START_SECONDS + 1, alive)
    with pytest.raises(LostLoadingsError):
        load(START_SECONDS + 1)


def containers(record: ActiveRevision, count: int, clock: Callable[[], float]) -> list[CrashLoopGuard]:
    """Return the notes of the first processes of so many containers with one name for their hosts."""
    processes = [ProcessIdentity(f"id-{number}", 1, "node", f"place-{number}") for number in range(count)]
    return [CrashLoopGuard(record, lambda: (), clock=clock, process=process) for process in processes]


def test_containers_with_one_name_load_at_once_and_none_counts_as_dead(record: ActiveRevision) -> None:
    record.begin("r1")
    first, *others = containers(record, 4, lambda: 0.0)
    with first.noted("r2"):
        for other in others:
            with other.noted("r2"):
                assert [one.times for one in now(record).loading] == [1]
    assert now(record).loading == ()


def test_a_container_that_starts_again_and_again_does_not_load_what_ends_it(record: ActiveRevision) -> None:
    record.begin("r1")
    times = iter(range(0, 100_000, int((RESTART_SECONDS + 1) * 1000)))
    lives = containers(record, MOST_LOST_LOADINGS + 1, lambda: next(times))
    with contextlib.ExitStack() as deaths:
        for life in lives[:MOST_LOST_LOADINGS]:
            deaths.enter_context(life.noted("r2"))  # and never left
        with pytest.raises(LostLoadingsError):
            deaths.enter_context(lives[-1].noted("r2"))


def test_what_a_worker_itself_could_not_take_back_is_no_death(record: ActiveRevision) -> None:
    record.begin("r1")
    [notes] = containers(record, 1, lambda: 0.0)
    with notes.noted("r2"), notes.noted("r2"):
        assert [one.times for one in now(record).loading] == [1]


def test_a_worker_that_starts_does_not_bring_back_what_a_person_has_abandoned(record: ActiveRevision) -> None:
    first = Worker(record).begin()
    for ref in ("r2", "r3", "r1"):
        record.propose(change(ref))
        first.following.look()
    late = Worker(record, "r3", is_newer=True).begin()
    late.following.look()
    assert (late.ref, now(record).active, now(record).proposed) == ("r1", "r1", None)
    record.propose(change("r3"))
    late.following.look()
    assert (late.ref, now(record).abandoned) == ("r3", ("r2", "r1"))


@pytest.mark.parametrize("activated", [(), ("git:c0",)], ids=["never left", "left for HEAD~1"])
def test_the_commit_runs_again_when_an_edit_is_undone(
    record: ActiveRevision, activated: tuple[str, ...]
) -> None:
    first = Worker(record, "git:c1").begin()
    for ref in activated:
        record.propose(change(ref))
        first.following.look()
    for folder in ("sha256:x", "git:c1"):
        late = Worker(record, folder, is_newer=True).begin()
        late.following.look()
        assert (late.ref, now(record).active) == (folder, folder)


@pytest.mark.parametrize(
    ("folder", "seconds", "is_told"), [("r2", 1, True), ("r1", 1, True), ("r2", 600, False)]
)
def test_a_change_whose_worker_died_before_it_told_of_it_is_told_by_the_next(
    record: ActiveRevision, folder: str, seconds: int, is_told: bool
) -> None:
    record.begin("r1")
    at = iso_time(wall_clock() - seconds * 1000)
    record.propose(RevisionChange(new_ref="r2", timestamp=at))
    record.activate("r2")  # and the worker was killed
    following = Worker(record, folder).begin()
    assert [told.new_ref for told in following.told] == (["r2"] if is_told else [])


def test_a_proposal_is_loaded_by_one_worker_while_the_others_wait(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, waits = Worker(record).begin(), list[float]()
    monkeypatch.setattr("workers.revisions.sync.sleep", waits.append)
    record.propose(change("r2"))
    us = this_process()
    other = CrashLoopGuard(record, lambda: (), process=ProcessIdentity("other", us.pid, us.host, "elsewhere"))
    looking = threading.Thread(target=worker.following.look)

    with other.noted("r2", is_alone=True):
        looking.start()
        wait_until(lambda: len(waits) > 2)
        assert worker.factory.fetched == []
        record.activate("r2")
    looking.join(10)

    assert (worker.ref, worker.factory.fetched) == ("r2", ["r2"])


def test_a_worker_takes_the_turn_of_one_that_has_ended(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.propose(change("r2"))
    die_loading(record, "r2", times=1)
    worker.following.look()
    assert (worker.ref, now(record).loading) == ("r2", ())


def test_the_files_of_all_agents_are_tried_out_before_a_proposal_is_active(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.propose(change("r2"))
    worker.factory.deadly = {"r2": EntryError(Path("newt.py"), "it ends the process", "Mend it.")}
    worker.following.look()
    failed = now(record).failed
    assert failed is not None and "it ends the process" in failed.reason
    assert (worker.ref, now(record).active) == ("r1", "r1")
    assert worker.factory.made[-1].tried_out == ["lizard", "newt"]


def test_a_folder_that_is_to_take_the_place_of_what_is_active_is_tried_out_first(
    record: ActiveRevision,
) -> None:
    record.begin("r1")
    newer = Worker(record, "r2", is_newer=True)
    newer.revisions.active.deadly = EntryError(Path("newt.py"), "it ends the process", "Mend it.")  # type: ignore[attr-defined]
    newer.begin("newt")
    assert (newer.ref, now(record).active, now(record).proposed) == ("r1", "r1", None)
    beginning = Worker(record, "r1")
    beginning.begin("lizard")
    assert beginning.factory.made[0].tried_out == []


def test_a_zombie_and_a_loading_without_end_are_lost(record: ActiveRevision) -> None:
    record.begin("r1")
    us = this_process()
    zombie = subprocess.Popen(["true"])
    since = "2026-01-01T00:00:00.000Z"

    def turn(pid: int, seconds_later: float) -> None:
        later = 1_767_225_600_000.0 + seconds_later * 1_000
        name = f"{pid}@{us.host}"
        loading = RevisionLoading(ref="r2", worker=name, worker_id="other", place=us.place, since=since)
        record.begin_loading(loading, is_lost=lambda _: True)
        with CrashLoopGuard(record, lambda: (), clock=lambda: later).noted("r2", is_alone=True):
            record.end_loading("r2", us.id)

    with pytest.raises(LoadedElsewhereError):
        turn(os.getppid(), 1)
    record.end_loading("r2", "other")
    turn(os.getppid(), LONGEST_SECONDS + 1)
    wait_until(lambda: Path(f"/proc/{zombie.pid}/stat").read_text(encoding="utf-8").split()[2] == "Z")
    turn(zombie.pid, 1)
    zombie.wait()

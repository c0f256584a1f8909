"""A worker that follows the revisions of its bundle: what it does about the record, and writes there."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from broker_config.keys import Keys
from goondan_tasks.authoring.entry import EntryError
from goondan_tasks.contract.errors import (
    ConfigError,
    ExtensionInitError,
    ToolNotFoundError,
)
from goondan_tasks.fleet.agent_registry import WorkerRecord
from goondan_tasks.revisions.active import (
    LOAD_LEASE_SECONDS,
    MOST_LOST_LOADS,
    ActiveRevision,
    RevisionChange,
    RevisionFailure,
    RevisionState,
)
from tests.unit.workers.revisions.fake_revisions import Factory
from tests.waiting import wait_until
from workers.revisions.revisions import AGAIN_SECONDS, Revisions
from workers.revisions.sync import (
    ANNOUNCE_SECONDS,
    LoadedElsewhereError,
    LostLoadsError,
    RevisionSync,
    Standby,
    guarded_load,
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
            checkouts=SimpleNamespace(cache=Path("nowhere")),
        )
        #: the workers that say that they live
        self.others: list[WorkerRecord] = []
        self.failures: list[RevisionFailure] = []
        self.standby = Standby(self.revisions, record.state, lambda: self.others)
        news: Any = SimpleNamespace(tell=self.told.append, tell_failure=self.failures.append)
        self.sync = RevisionSync(
            bundle,
            record,
            self.revisions,
            standby=self.standby,
            news=news,
            clock=lambda: self.factory.now,
        )

    def begin(self, *agents: str) -> "Worker":
        """Agree with the others, and serve the agents, by default lizard."""
        self.sync._begin()
        self.sync.serve(*(agents or ("lizard",)))
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


def test_first_loader_activates_proposal_and_others_follow(
    record: ActiveRevision,
) -> None:
    workers = [Worker(record).begin(), Worker(record).begin()]
    record.propose(change("r2"))
    for worker in workers:
        worker.sync.look()
    assert [worker.ref for worker in workers] == ["r2", "r2"]
    assert (now(record).active, now(record).proposed) == ("r2", None)
    assert [[told.previous_ref for told in worker.told] for worker in workers] == [["r1"], ["r1"]]


def test_unpreparable_proposal_is_withdrawn_with_reason(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.factory.faults["r2"] = ExtensionInitError("no ear")
    record.propose(change("r2"))
    worker.sync.look()
    failed = now(record).failed
    assert failed is not None
    assert (failed.ref, failed.code, failed.reason) == ("r2", "E_EXT_INIT", "no ear")
    assert (worker.ref, now(record).active, now(record).proposed, worker.told) == ("r1", "r1", None, [])
    assert worker.failures == [failed]
    assert failed.change is not None and failed.change.new_ref == "r2"


def test_proposal_with_unloadable_tool_is_withdrawn(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.factory.tool_faults["r2"] = ToolNotFoundError("no skin")
    record.propose(change("r2"))
    worker.sync.look()
    failed = now(record).failed
    assert failed is not None and (failed.ref, failed.reason) == ("r2", "no skin")
    assert (worker.ref, now(record).active, now(record).proposed) == ("r1", "r1", None)


def test_active_revision_with_tool_unloadable_elsewhere_gives_way(
    record: ActiveRevision,
) -> None:
    first, second = Worker(record).begin(), Worker(record).begin()
    second.factory.tool_faults["r2"] = ToolNotFoundError("no skin")
    record.propose(change("r2"))
    for worker in (first, second):
        worker.sync.look()
    second.factory.now += ANNOUNCE_SECONDS
    for worker in (second, first):
        worker.sync.look()
    assert (first.ref, second.ref, now(record).active) == ("r1", "r1", "r1")
    assert [told.new_ref for told in second.told] == []


def test_late_worker_follows_active_revision_despite_tools(record: ActiveRevision) -> None:
    Worker(record).begin()
    late = Worker(record, "r0")
    late.factory.tool_faults["r1"] = ToolNotFoundError("no skin")
    late.begin().sync.look()
    assert (late.ref, now(record).active, now(record).failed) == ("r1", "r1", None)


def test_active_revision_unpreparable_elsewhere_gives_way_everywhere(
    record: ActiveRevision,
) -> None:
    good, bad = Worker(record).begin(), Worker(record).begin()
    bad.factory.faults["r2"] = ExtensionInitError("no ear")
    record.propose(change("r2"))
    good.sync.look()
    assert good.ref == "r2"
    bad.sync.look()
    bad.factory.now += ANNOUNCE_SECONDS
    for worker in (bad, good):
        worker.sync.look()
    assert (good.ref, bad.ref, now(record).active) == ("r1", "r1", "r1")


def test_one_workers_trouble_leaves_others_revision_active(record: ActiveRevision) -> None:
    good, bad = Worker(record).begin(), Worker(record).begin()
    bad.factory.faults["r2"] = ExtensionInitError("no database here")
    record.propose(change("r2"))
    good.sync.look()
    for _ in range(3):
        bad.sync.look()  # the others have not said yet that they run it
    bad.factory.now += ANNOUNCE_SECONDS - 0.1
    bad.sync.look()
    bad.others = [a_worker("r2", "lizard")]
    bad.sync.look()
    bad.standby.look()
    assert (good.ref, bad.ref, now(record).active, now(record).failed) == ("r2", "r1", "r2", None)
    assert bad.standby.agents == {"lizard"}
    bad.factory.faults.clear()
    bad.factory.now += AGAIN_SECONDS
    bad.sync.look()
    bad.standby.look()
    assert (bad.ref, bad.standby.agents) == ("r2", frozenset())


def test_active_revision_leaving_agent_unserved_is_withdrawn(record: ActiveRevision) -> None:
    good, bad = Worker(record).begin(), Worker(record).begin("lizard", "newt")
    bad.factory.faults["r2"] = ExtensionInitError("newt has no ear")
    record.propose(change("r2"))
    good.sync.look()
    bad.others = [a_worker("r2", "lizard")]
    bad.sync.look()
    bad.factory.now += ANNOUNCE_SECONDS
    for worker in (bad, good):
        worker.sync.look()
    assert (good.ref, bad.ref, now(record).active) == ("r1", "r1", "r1")
    assert [failure.reason for failure in bad.failures] == ["newt has no ear"]


def test_sole_worker_of_agent_restores_previous_revision(record: ActiveRevision) -> None:
    first = Worker(record).begin()
    record.propose(change("r2"))
    first.sync.look()
    late = Worker(record, "r2")
    late.revisions.active._error = ExtensionInitError("newt has no ear")  # type: ignore[attr-defined]
    late.others = [a_worker("r2", "lizard")]
    late.begin("lizard", "newt")
    assert (late.ref, now(record).active) == ("r1", "r1")


def test_worker_failing_with_others_revision_is_refused_withdrawing_nothing(
    record: ActiveRevision,
) -> None:
    Worker(record).begin()
    late = Worker(record)
    late.revisions.active._error = ExtensionInitError("no database here")  # type: ignore[attr-defined]
    late.others = [a_worker("r1", "lizard")]
    with pytest.raises(ConfigError, match="no database"):
        late.begin()
    assert now(record).failed is None


def test_proposal_not_yet_here_is_not_withdrawn(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.factory.missing = {"r2"}
    record.propose(change("r2"))
    worker.sync.look()
    proposed = now(record).proposed
    assert (worker.ref, now(record).failed) == ("r1", None)
    assert proposed is not None and proposed.new_ref == "r2"
    worker.factory.missing = set()
    worker.factory.now += AGAIN_SECONDS
    worker.sync.look()
    assert worker.ref == "r2"


def test_just_failed_revision_is_neither_tried_nor_noted(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Worker(record).begin(), Worker(record).begin()
    record.propose(change("r2"))
    good.sync.look()
    bad.others = [a_worker("r2", "lizard")]
    bad.factory.tool_faults["r2"] = ToolNotFoundError("no skin")
    bad.sync.look()
    monkeypatch.setattr(record, "claim_load", lambda *_: pytest.fail("noted"))
    bad.factory.tool_faults.clear()
    bad.factory.made[-1].tool_error = None
    bad.sync.look()
    assert bad.ref == "r1"
    monkeypatch.undo()
    bad.factory.now += AGAIN_SECONDS
    bad.sync.look()
    assert bad.ref == "r2"


def test_revision_proposed_again_is_tried_at_once(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.factory.faults["r2"] = ExtensionInitError("no ear")
    record.propose(change("r2"))
    worker.sync.look()
    worker.factory.faults.clear()
    record.propose(change("r2").model_copy(update={"timestamp": "2026-01-01T00:00:01.000Z"}))
    worker.sync.look()
    assert (worker.ref, now(record).active) == ("r2", "r2")


def test_step_does_not_await_revision_found_unavailable(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(record).begin()
    worker.factory.missing = {"r2"}
    record.propose(change("r2"))
    worker.sync.look()
    monkeypatch.setattr(worker.sync._poller, "looks_within", lambda _: pytest.fail("waited"))
    worker.sync.reach_safe_point()
    assert worker.ref == "r1"


def test_safe_point_takes_revision_proposed_just_before(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.sync.start()
    record.propose(change("r2"))
    worker.revisions.reach_safe_point()
    assert worker.ref == "r2"


def test_many_safe_points_at_once_load_revision_once(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.sync.start()
    record.propose(change("r2"))
    threads = [threading.Thread(target=worker.revisions.reach_safe_point) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (worker.ref, worker.factory.fetched, len(worker.told)) == ("r2", ["r2"], 1)


def test_swarm_without_steps_follows_too(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.sync.start()
    record.propose(change("r2"))
    wait_until(lambda: worker.ref == "r2")


def test_slow_revision_lets_step_begin_with_old(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.revisions.sync.PATIENCE_SECONDS", 0.05)
    worker = Worker(record).begin()
    record.propose(change("r2"))
    worker.sync.reach_safe_point()
    assert worker.ref == "r1"


def test_only_one_step_loses_patience_with_slow_revision(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.revisions.sync.PATIENCE_SECONDS", 0.05)
    worker = Worker(record).begin()
    record.propose(change("r2"))
    with capture_logs() as logs:
        for _ in range(3):
            worker.sync.reach_safe_point()  # there is no thread that could answer
    assert [entry["event"] for entry in logs] == ["revision.not_awaited"]
    worker.sync.start()
    wait_until(lambda: worker.ref == "r2")
    record.propose(change("r3"))
    monkeypatch.setattr("workers.revisions.sync.PATIENCE_SECONDS", 60)
    worker.sync.reach_safe_point()
    assert worker.ref == "r3"


def test_without_redis_worker_goes_on(record: ActiveRevision, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise RedisConnectionError("away")

    worker = Worker(record)
    with monkeypatch.context() as patch:
        patch.setattr(record, "begin", away)
        patch.setattr(record, "state", away)
        worker.sync.start()
        worker.sync.serve("lizard")
        worker.revisions.reach_safe_point()
    wait_until(lambda: record.state() is not None)
    assert now(record).active == "r1"


def test_pulled_commit_is_proposed_despite_redis_outage(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise RedisConnectionError("away")

    record.begin("r1")
    pulled = Worker(record, "r2", is_newer=True)
    with monkeypatch.context() as patch, pytest.raises(RedisConnectionError):
        patch.setattr(record, "propose", away)
        pulled.begin()
    pulled.sync.serve("lizard")
    pulled.sync.look()
    assert (pulled.ref, now(record).active) == ("r2", "r2")


def test_record_that_is_lost_is_made_again(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.end(now(record))
    worker.sync.look()
    assert now(record).active == "r1"


def test_late_worker_begins_with_active_revision(record: ActiveRevision) -> None:
    record.begin("r1")
    late = Worker(record, "r0").begin()
    assert (late.ref, now(record).active, now(record).proposed) == ("r1", "r1", None)


def test_worker_lacking_active_revision_runs_its_own(record: ActiveRevision) -> None:
    record.begin("r1")
    late = Worker(record, "r0")
    late.factory.missing = {"r1"}
    late.begin()
    late.sync.look()
    assert (late.ref, now(record).active) == ("r0", "r1")


def test_worker_with_later_revision_brings_others_along(record: ActiveRevision) -> None:
    others = Worker(record).begin()
    pulled = Worker(record, "r2", is_newer=True).begin()
    pulled.sync.look()
    others.sync.look()
    assert (pulled.ref, others.ref, now(record).active) == ("r2", "r2", "r2")


def test_worker_failing_with_active_revision_restores_previous(
    record: ActiveRevision,
) -> None:
    first = Worker(record).begin()
    record.propose(change("r2"))
    first.sync.look()
    late = Worker(record, "r2")
    late.revisions.active._error = ExtensionInitError("no ear")  # type: ignore[attr-defined]
    late.begin()
    first.sync.look()
    assert (late.ref, first.ref, now(record).active) == ("r1", "r1", "r1")


def test_worker_that_can_serve_with_nothing_is_refused(record: ActiveRevision) -> None:
    worker = Worker(record)
    worker.revisions.active._error = ExtensionInitError("no ear")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no ear"):
        worker.begin()
    failed = now(record).failed
    assert failed is not None and failed.ref == "r1"


def die_loading(record: ActiveRevision, ref: str, times: int = MOST_LOST_LOADS) -> None:
    """Leave what so many workers leave that end while they load a revision."""
    for _ in range(times):
        assert record.claim_load(ref, "dead") is not None
        end_lease(record, ref)


def end_lease(record: ActiveRevision, ref: str) -> None:
    record._redis.delete(Keys().revision_load("den", ref))


def test_proposal_that_ended_workers_is_withdrawn_unloaded(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.propose(change("r2"))
    die_loading(record, "r2")
    worker.sync.look()
    failed = now(record).failed
    assert failed is not None and (failed.ref, failed.reason) == (
        "r2",
        "2 workers died while they loaded r2.",
    )
    assert (worker.ref, worker.factory.fetched) == ("r1", [])
    record.propose(change("r2"))
    end_lease(record, "r2")
    worker.factory.now += AGAIN_SECONDS
    worker.sync.look()  # a person has asked for it once more
    assert worker.ref == "r2"


def test_folder_that_ended_workers_begins_no_worker(record: ActiveRevision) -> None:
    record.begin("r1")
    die_loading(record, "r2")
    first = Worker(record, "r2", is_newer=True).begin()
    next_one = Worker(record, "r2", is_newer=True).begin()
    for worker in (first, next_one):
        worker.sync.look()
    assert (first.ref, next_one.ref) == ("r1", "r1")
    assert (now(record).active, now(record).proposed) == ("r1", None)


def test_exclusive_load_lets_others_follow_without_claim(record: ActiveRevision) -> None:
    with guarded_load(record, "r2"):
        with guarded_load(record, "r2"):
            assert record.is_loading("r2")
        assert record.is_loading("r2")
        with pytest.raises(LoadedElsewhereError), guarded_load(record, "r2", is_alone=True):
            pytest.fail("loaded twice")
    assert not record.is_loading("r2")


def test_load_claim_is_renewed_while_load_lasts(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = threading.Event()
    monkeypatch.setattr("workers.revisions.sync.LOAD_LEASE_SECONDS", 0.03)
    monkeypatch.setattr(record, "renew_load", lambda ref: renewed.set())
    with guarded_load(record, "r2"):
        assert renewed.wait(10)


def test_claim_of_dead_worker_ends_by_itself(record: ActiveRevision) -> None:
    record.claim_load("r2", "dead")
    assert 0 < record._redis.ttl(Keys().revision_load("den", "r2")) <= LOAD_LEASE_SECONDS


def test_failed_or_successful_load_is_no_death(record: ActiveRevision) -> None:
    for _ in range(MOST_LOST_LOADS + 1):
        with contextlib.suppress(ConfigError), guarded_load(record, "r2"):
            raise ConfigError("no ear")


def test_restarting_container_does_not_load_deadly_revision(record: ActiveRevision) -> None:
    die_loading(record, "r2")
    with pytest.raises(LostLoadsError), guarded_load(record, "r2"):
        pytest.fail("loaded")


def test_without_redis_revision_is_loaded_all_same(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise RedisConnectionError("away")

    monkeypatch.setattr(record, "claim_load", away)
    monkeypatch.setattr(record, "end_load", away)
    with guarded_load(record, "r2", is_alone=True):
        pass


def test_starting_worker_does_not_revive_abandoned_revision(record: ActiveRevision) -> None:
    first = Worker(record).begin()
    for ref in ("r2", "r3", "r1"):
        record.propose(change(ref))
        first.sync.look()
    late = Worker(record, "r3", is_newer=True).begin()
    late.sync.look()
    assert (late.ref, now(record).active, now(record).proposed) == ("r1", "r1", None)
    record.propose(change("r3"))
    late.sync.look()
    assert (late.ref, now(record).abandoned) == ("r3", ("r2", "r1"))


@pytest.mark.parametrize("activated", [(), ("git:c0",)], ids=["never left", "left for HEAD~1"])
def test_commit_runs_again_when_edit_is_undone(record: ActiveRevision, activated: tuple[str, ...]) -> None:
    first = Worker(record, "git:c1").begin()
    for ref in activated:
        record.propose(change(ref))
        first.sync.look()
    for folder in ("sha256:x", "git:c1"):
        late = Worker(record, folder, is_newer=True).begin()
        late.sync.look()
        assert (late.ref, now(record).active) == (folder, folder)


def test_one_worker_loads_proposal_while_others_wait(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, waits = Worker(record).begin(), list[float]()
    monkeypatch.setattr("workers.revisions.sync.sleep", waits.append)
    record.propose(change("r2"))
    looking = threading.Thread(target=worker.sync.look)

    with guarded_load(record, "r2", is_alone=True):
        looking.start()
        wait_until(lambda: len(waits) > 2)
        assert worker.factory.fetched == []
        record.activate("r2")
    looking.join(10)

    assert (worker.ref, worker.factory.fetched) == ("r2", ["r2"])


def test_worker_takes_turn_of_one_that_has_ended(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.propose(change("r2"))
    die_loading(record, "r2", times=1)
    worker.sync.look()
    assert (worker.ref, record.is_loading("r2")) == ("r2", False)


def test_all_agents_files_are_tried_before_activation(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.propose(change("r2"))
    worker.factory.deadly = {"r2": EntryError(Path("newt.py"), "it ends the process", "Correct it.")}
    worker.sync.look()
    failed = now(record).failed
    assert failed is not None and "it ends the process" in failed.reason
    assert (worker.ref, now(record).active) == ("r1", "r1")
    assert worker.factory.made[-1].tried_out == ["lizard", "newt"]


def test_folder_replacing_active_revision_is_tried_first(
    record: ActiveRevision,
) -> None:
    record.begin("r1")
    newer = Worker(record, "r2", is_newer=True)
    newer.revisions.active.deadly = EntryError(Path("newt.py"), "it ends the process", "Correct it.")  # type: ignore[attr-defined]
    newer.begin("newt")
    assert (newer.ref, now(record).active, now(record).proposed) == ("r1", "r1", None)
    beginning = Worker(record, "r1")
    beginning.begin("lizard")
    assert beginning.factory.made[0].tried_out == []

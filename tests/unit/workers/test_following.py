"""A worker that follows the revisions of its bundle: what it does about the record, and writes there."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.keys import Keys
from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, ExtensionInitError
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange, RevisionFailure, RevisionState
from tests.unit.workers.fake_revisions import Factory
from tests.waiting import wait_until
from workers.following import Following, not_followed
from workers.load_failures import AGAIN_SECONDS
from workers.revisions import Revisions


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
        bundle: Any = SimpleNamespace(supersedes=lambda ours, active: is_newer)
        self.failures: list[RevisionFailure] = []
        self.following = Following(
            bundle, record, self.revisions, told=self.told.append, told_failure=self.failures.append
        )

    def begin(self) -> "Worker":
        """Agree with the others, and serve."""
        self.following._begin()
        self.following.serve("lizard")
        return self

    @property
    def ref(self) -> str | None:
        return self.revisions.active.ref


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


def test_an_active_revision_that_another_worker_cannot_prepare_gives_way_everywhere(
    record: ActiveRevision,
) -> None:
    good, bad = Worker(record).begin(), Worker(record).begin()
    bad.factory.faults["r2"] = ExtensionInitError("no ear")
    record.propose(change("r2"))
    good.following.look()
    assert good.ref == "r2"
    bad.following.look()
    good.following.look()
    assert (good.ref, bad.ref, now(record).active) == ("r1", "r1", "r1")


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


def test_a_step_does_not_wait_for_what_a_look_could_not_have(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    worker.factory.missing = {"r2"}
    record.propose(change("r2"))
    worker.following.look()
    worker.following.reach_safe_point()  # there is no thread that could answer
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
    monkeypatch.setattr("workers.following.PATIENCE_SECONDS", 0.05)
    worker = Worker(record).begin()
    record.propose(change("r2"))
    worker.following.reach_safe_point()
    assert worker.ref == "r1"


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


def test_a_record_that_is_lost_is_made_again(record: ActiveRevision) -> None:
    worker = Worker(record).begin()
    record.end()
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


def test_who_follows_nothing_ends_the_record_and_has_no_other_revision(record: ActiveRevision) -> None:
    record.begin("r1")
    fetch = not_followed(record)
    assert record.state() is None
    with pytest.raises(BundleRevisionUnavailableError, match="does not follow"):
        fetch("r1")

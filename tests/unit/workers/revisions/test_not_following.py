"""A worker that follows no revisions: what it does where others do."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.messages import iso_time, wall_clock
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange, RevisionLoading
from goondan_tasks.revisions.bootstrap import UnfollowableError
from tests.unit.workers.revisions.fake_revisions import Factory, run
from tests.waiting import wait_until
from workers.revisions.revisions import UNUSED_SECONDS
from workers.revisions.sync import is_followed_elsewhere, not_followed


@pytest.fixture
def record() -> Iterator[ActiveRevision]:
    with fakeredis.FakeRedis() as redis:
        yield ActiveRevision(redis, Keys(), "den")


def worker(ref: str | None, *agents: str) -> Any:
    return SimpleNamespace(bundle_ref=ref, agents=agents)


def test_a_new_worker_follows_where_living_ones_do_and_leaves_their_record(record: ActiveRevision) -> None:
    record.begin("r1")
    assert is_followed_elsewhere(["lizard"], record, lambda: [worker("r1", "lizard", "newt")])
    assert record.state() is not None


@pytest.mark.parametrize("others", [(), (worker(None, "lizard"),), (worker("r1", "crab"),)])
def test_where_nobody_follows_the_record_is_ended(record: ActiveRevision, others: tuple[Any, ...]) -> None:
    record.begin("r1")
    assert not is_followed_elsewhere(["lizard"], record, lambda: others)
    assert record.state() is None


@pytest.mark.parametrize(("is_lost", "is_kept"), [(False, True), (True, False)])
def test_the_record_stays_while_a_worker_that_follows_loads_what_it_begins_with(
    record: ActiveRevision, is_lost: bool, is_kept: bool
) -> None:
    record.begin("r1")
    since = iso_time(0 if is_lost else wall_clock())
    loading = RevisionLoading(ref="r1", worker="7@elsewhere", since=since)
    record.begin_loading(loading, is_lost=lambda _: False)
    assert not is_followed_elsewhere(["lizard"], record, tuple)
    assert (record.state() is not None) is is_kept


def test_a_record_that_a_worker_changes_meanwhile_stays(record: ActiveRevision) -> None:
    def workers_while_one_begins() -> tuple[()]:
        record.propose(RevisionChange(new_ref="r2", timestamp="2026-01-01T00:00:00.000Z"))
        return ()

    record.begin("r1")
    assert not is_followed_elsewhere(["lizard"], record, workers_while_one_begins)
    assert record.state() is not None


def test_only_what_is_active_elsewhere_or_was_just_now_can_be_had(record: ActiveRevision) -> None:
    followed: Any = SimpleNamespace(load=lambda ref: ref)
    fetch: Any = not_followed(record, lambda: followed)
    with pytest.raises(BundleRevisionUnavailableError, match="does not follow"):
        fetch("r1")
    record.begin("r1")
    record.propose(RevisionChange(new_ref="r2", timestamp="2026-01-01T00:00:00.000Z"))
    record.activate("r2")
    assert [fetch(ref) for ref in ("r1", "r2")] == ["r1", "r2"]
    with pytest.raises(BundleRevisionUnavailableError, match="does not follow"):
        fetch("r0")


def test_without_a_usable_git_none_can_be_had(record: ActiveRevision) -> None:
    def unfollowable() -> Any:
        raise UnfollowableError("There is no git.")

    record.begin("r1")
    with pytest.raises(BundleRevisionUnavailableError, match="does not follow"):
        not_followed(record, unfollowable)("r1")


def test_a_call_that_names_a_revision_runs_with_it_where_none_is_followed() -> None:
    factory = Factory()
    revisions = factory.revisions(None)
    assert [run(revisions, ref).output for ref in ("r1", None, "r2")] == ["r1", None, "r2"]
    factory.now += 2 * UNUSED_SECONDS
    assert run(revisions, "r3").output == "r3"
    wait_until(lambda: factory.alive() == {None, "r3"})

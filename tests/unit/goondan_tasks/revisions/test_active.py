"""The record of the active revision: proposed, activated, withdrawn."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.revisions.active import (
    MOST_ABANDONED,
    ActiveRevision,
    RevisionChange,
    RevisionFailure,
    RevisionState,
    UnreadableRevisionsError,
)

OLD, NEW, NEWER = (f"git:{digit * 40}" for digit in "123")


@pytest.fixture
def active() -> Iterator[ActiveRevision]:
    with fakeredis.FakeRedis() as redis:
        yield ActiveRevision(redis, Keys(), "den")


def change(ref: str) -> RevisionChange:
    return RevisionChange(new_ref=ref, changeset_id="cs-1", timestamp="2026-01-01T00:00:00.000Z")


def failure(ref: str) -> RevisionFailure:
    return RevisionFailure(ref=ref, code="E_EXT_INIT", reason="no", worker="w", timestamp="now")


def now(active: ActiveRevision) -> RevisionState:
    state = active.state()
    assert state is not None
    return state


@pytest.mark.parametrize("stored", ["", "[]", '{"v": 99}', "\udcff".encode("utf-8", "surrogateescape")])
def test_unreadable_record_is_reported_and_stays(stored: str | bytes) -> None:
    with fakeredis.FakeRedis() as redis:
        redis.set(Keys().revision("den"), stored)
        active = ActiveRevision(redis, Keys(), "den")
        for ask in (active.state, lambda: active.propose(change(NEW)), lambda: active.begin(OLD)):
            with pytest.raises(UnreadableRevisionsError, match="cannot be read here"):
                ask()
        assert redis.exists(Keys().revision("den"))


def test_key_of_wrong_type_is_unreadable_record() -> None:
    with fakeredis.FakeRedis() as redis:
        key = Keys().revision("den")
        redis.rpush(key, "odd")
        active = ActiveRevision(redis, Keys(), "den")
        for ask in (active.state, lambda: active.propose(change(NEW)), lambda: active.begin(OLD)):
            with pytest.raises(UnreadableRevisionsError, match=re.escape(f"{key!r}, cannot be read here")):
                ask()
        assert redis.lrange(key, 0, -1) == [b"odd"]


def test_first_worker_decides_active_revision(active: ActiveRevision) -> None:
    assert active.state() is None
    assert active.begin(OLD).active == OLD
    assert active.begin(NEW).active == OLD


def test_proposal_is_active_once_worker_has_loaded_it(active: ActiveRevision) -> None:
    active.begin(OLD)
    active.propose(change(NEW))
    assert now(active).active == OLD
    activated = active.activate(NEW)
    assert activated is not None and activated.previous_ref == OLD
    assert activated.changeset_id == "cs-1"
    assert (now(active).active, now(active).proposed, now(active).change) == (NEW, None, activated)


def test_only_one_worker_makes_proposal_active(active: ActiveRevision) -> None:
    active.begin(OLD)
    active.propose(change(NEW))
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: active.activate(NEW), range(8)))
    assert sum(one is not None for one in done) == 1


def test_later_proposal_replaces_earlier_proposal(active: ActiveRevision) -> None:
    active.begin(OLD)
    active.propose(change(NEW))
    active.propose(change(NEWER))
    assert active.activate(NEW) is None
    assert active.activate(NEWER) is not None


def test_proposing_active_revision_cancels_earlier_proposal(active: ActiveRevision) -> None:
    active.begin(OLD)
    active.propose(change(NEW))
    active.propose(change(OLD))
    assert now(active) == RevisionState(active=OLD)


def test_proposal_without_following_workers_does_nothing(active: ActiveRevision) -> None:
    active.propose(change(NEW))
    assert active.activate(NEW) is None
    assert active.state() is None


def test_proposal_that_does_not_load_never_becomes_active(active: ActiveRevision) -> None:
    active.begin(OLD)
    active.propose(change(NEW))
    told = active.withdraw(failure(NEW))
    assert active.activate(NEW) is None
    assert (now(active).active, now(active).failed) == (OLD, told)
    assert told is not None and told.change is not None
    assert (told.ref, told.reason, told.change.previous_ref) == (NEW, "no", OLD)


def test_active_revision_unloadable_elsewhere_yields_to_previous(
    active: ActiveRevision,
) -> None:
    active.begin(OLD)
    active.propose(change(NEW))
    active.activate(NEW)
    told = active.withdraw(failure(NEW))
    assert (now(active).active, now(active).failed) == (OLD, told)
    assert told is not None and told.change is not None


def test_proposal_that_another_worker_activated_is_not_withdrawn(
    active: ActiveRevision,
) -> None:
    active.begin(OLD)
    active.propose(change(NEW))
    active.activate(NEW)
    active.withdraw(failure(NEW), is_proposed=True)
    assert (now(active).active, now(active).failed) == (NEW, None)


def test_abandoned_revisions_are_remembered_except_edited_files(
    active: ActiveRevision,
) -> None:
    refs = ["sha256:0", *(f"git:{number}" for number in range(MOST_ABANDONED + 2))]
    active.begin(refs[0])
    for ref in refs[1:]:
        active.propose(change(ref))
        active.activate(ref)
    assert now(active).abandoned == tuple(refs[2:-1])
    assert now(active).to_wire()["left"] == tuple(refs[2:-1])  # its name to other versions


@pytest.mark.parametrize(("failed", "is_told"), [(NEW, False), (NEWER, True)])
def test_revision_active_after_all_has_not_failed(active: ActiveRevision, failed: str, is_told: bool) -> None:
    active.begin(OLD)
    active.propose(change(failed))
    active.withdraw(failure(failed), is_proposed=True)
    active.propose(change(NEW))
    active.activate(NEW)
    assert (now(active).failed is not None) is is_told

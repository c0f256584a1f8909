"""Who is told of a commit."""

from functools import partial
from pathlib import Path

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.keys import Keys
from goondan_tasks.authoring.changesets_api import ChangesetError, ChangeSummary
from goondan_tasks.changesets.changesets import (
    MOST_CHARACTERS,
    Announce,
    Changesets,
    Committed,
    file_lock,
    propose_commit,
)
from goondan_tasks.changesets.policy import Principal
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.checkouts import RevisionSource
from tests.git_bundle import GitBundle, make_bundle

OLD = f"git:{'1' * 40}"


@pytest.fixture
def bundle(tmp_path: Path) -> GitBundle:
    """Make a bundle."""
    return make_bundle(tmp_path / "repo")


def changesets_of(bundle: GitBundle, announce: Announce) -> Changesets:
    return Changesets.of(RevisionSource.of(bundle.folder), announce=announce)


def edited(changesets: Changesets, principal: Principal) -> str:
    opened = changesets.open(principal)
    Path(opened.workdir, "prompts/coder.md").write_text("more\n", encoding="utf-8")
    return opened.changeset_id


def test_commit_is_proposed_with_its_author_and_changes(bundle: GitBundle, tmp_path: Path) -> None:
    active = ActiveRevision(fakeredis.FakeRedis(), Keys(), "den")
    active.begin(OLD)
    changesets = changesets_of(bundle, partial(propose_commit, active, clock=lambda: 0.0))
    principal = Principal(tmp_path / "work", agent="coder", instance_key="issue-42")
    changeset_id = edited(changesets, principal)

    result = changesets.commit(changeset_id, principal=principal)

    state = active.state()
    assert result.warning is None
    assert state is not None and state.proposed is not None
    assert state.proposed.to_wire() == {
        "type": "swarmBundle.revisionChanged",
        "previousRef": OLD,
        "newRef": result.new_ref,
        "changesetId": changeset_id,
        "summary": {"filesChanged": ["prompts/coder.md"], "filesAdded": [], "filesDeleted": []},
        "timestamp": "1970-01-01T00:00:00.000Z",
        "agentName": "coder",
        "instanceKey": "issue-42",
    }


def test_record_stays_small_however_many_files_commit_changes() -> None:
    active = ActiveRevision(fakeredis.FakeRedis(), Keys(), "den")
    active.begin(OLD)
    added = tuple(f"notes/{number:04}.md" for number in range(2000))
    summary = ChangeSummary(files_changed=("goondan.yaml",), files_added=added, files_deleted=("x" * 4000,))

    propose_commit(active, Committed(f"git:{'2' * 40}", summary, Principal()))

    state = active.state()
    assert state is not None and state.proposed is not None and state.proposed.summary is not None
    told = state.proposed.summary
    assert told == {
        "filesChanged": ["goondan.yaml"],
        "filesAdded": list(added[: MOST_CHARACTERS // len(added[0])]),
        "filesDeleted": [],
        "filesLeftOut": 2000 - MOST_CHARACTERS // len(added[0]) + 1,
    }


def test_next_commit_waits_until_commit_is_announced(bundle: GitBundle, tmp_path: Path) -> None:
    told: list[str] = []

    def announce(committed: Committed) -> None:
        lock = file_lock(bundle.root / ".git/goondan-commit.lock", 0.0)
        with pytest.raises(ChangesetError, match="in progress"), lock:
            pass
        told.append(committed.new_ref)

    changesets = changesets_of(bundle, announce)
    committed = changesets.commit(edited(changesets, Principal(tmp_path / "work")))
    rolled_back = changesets.roll_back("HEAD~1")

    assert told == [committed.new_ref, rolled_back.new_ref]


def test_commit_without_change_is_not_announced(bundle: GitBundle, tmp_path: Path) -> None:
    told: list[Committed] = []
    changesets = changesets_of(bundle, told.append)

    empty = changesets.commit(changesets.open(Principal(tmp_path / "work")).changeset_id)
    unknown = changesets.commit("cs-1-00000000")

    assert (empty.status, unknown.status, told) == ("ok", "failed", [])


def test_commit_killed_before_announcement_is_announced_on_retry(bundle: GitBundle, tmp_path: Path) -> None:
    class Killed(BaseException):
        """Ends the process."""

    told: list[str] = []

    def announce(committed: Committed) -> None:
        told.append(committed.new_ref)
        if len(told) == 1:
            raise Killed

    changesets = changesets_of(bundle, announce)
    changeset_id = edited(changesets, Principal(tmp_path / "work"))
    with pytest.raises(Killed):
        changesets.commit(changeset_id)

    again = changesets.commit(changeset_id)

    assert (again.status, again.new_ref) == ("ok", f"git:{bundle.head}")
    assert told == [again.new_ref, again.new_ref]
    assert changesets.all() == []


def test_rollback_to_current_commit_is_announced_too(bundle: GitBundle) -> None:
    told: list[str] = []

    changesets_of(bundle, lambda committed: told.append(committed.new_ref)).roll_back("HEAD")

    assert told == [f"git:{bundle.head}"]


def test_commit_stands_though_it_cannot_be_announced(bundle: GitBundle, tmp_path: Path) -> None:
    class Away(fakeredis.FakeRedis):
        """Answers nothing."""

        def transaction(self, *args: object, **options: object) -> object:
            raise RedisConnectionError("no route")

    away: Redis = Away()
    announce = partial(propose_commit, ActiveRevision(away, Keys(), "den"))
    changesets = changesets_of(bundle, announce)

    result = changesets.commit(edited(changesets, Principal(tmp_path / "work")))

    assert (result.status, result.new_ref) == ("ok", f"git:{bundle.head}")
    assert result.warning is not None and "no route" in result.warning
    with pytest.raises(BrokerUnreachableError):
        announce(Committed(OLD, result.summary or pytest.fail(), Principal()))


def test_commit_that_cannot_be_proposed_stands_with_warning(bundle: GitBundle, tmp_path: Path) -> None:
    with fakeredis.FakeRedis() as redis:
        redis.set(Keys().revision("den"), '{"v": 99}')
        changesets = changesets_of(bundle, partial(propose_commit, ActiveRevision(redis, Keys(), "den")))

        result = changesets.commit(edited(changesets, Principal(tmp_path / "work")))

    assert result.status == "ok"
    assert "cannot be read here" in (result.warning or "")
    assert changesets.all() == []

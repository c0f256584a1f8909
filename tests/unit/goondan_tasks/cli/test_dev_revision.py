"""Whether workers take a change of the bundle's folder by themselves."""

import threading
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.cli.dev_revision import is_followed
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange
from goondan_tasks.roster import AgentRecord
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import write

AGENT = AgentRecord(name="coder", swarm="default", workspace="den")


class Dev:
    """A bundle that dev watches, and the record of its workers."""

    def __init__(self, bundle: GitBundle, redis: fakeredis.FakeRedis) -> None:
        self.bundle = bundle
        self.redis = redis
        self.record = ActiveRevision(redis, Keys(), "den")
        self.stop = threading.Event()

    def follows(self) -> bool:
        return is_followed(self.bundle.folder, AGENT, Settings.load(), self.redis, stop=self.stop)


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dev]:
    monkeypatch.setattr("goondan_tasks.cli.dev_revision.COMMIT_SECONDS", 0.4)
    with fakeredis.FakeRedis() as redis:
        yield Dev(make_bundle(tmp_path / "bundle"), redis)


def test_where_no_revision_is_followed_workers_are_started_anew(dev: Dev) -> None:
    assert not dev.follows()


def test_what_is_active_or_proposed_is_followed(dev: Dev) -> None:
    dev.record.begin(f"git:{dev.bundle.head}")
    assert dev.follows()
    ref = f"git:{dev.bundle.commit({'prompts/coder.md': 'new'})}"
    dev.record.propose(RevisionChange(new_ref=ref, timestamp="2026-01-01T00:00:00.000Z"))
    assert dev.follows()


def test_a_commit_that_is_still_being_made_is_waited_for(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goondan_tasks.cli.dev_revision.COMMIT_SECONDS", 60)
    dev.record.begin(f"git:{'0' * 40}")
    change = RevisionChange(new_ref=f"git:{dev.bundle.head}", timestamp="2026-01-01T00:00:00.000Z")
    proposing = threading.Timer(0.1, dev.record.propose, [change])
    proposing.start()
    assert dev.follows()
    proposing.join()


def test_a_persons_edits_are_not_followed(dev: Dev) -> None:
    dev.record.begin(f"git:{dev.bundle.head}")
    write(dev.bundle.folder, {"prompts/coder.md": "by hand"})
    assert not dev.follows()


def test_who_stops_dev_does_not_wait(dev: Dev) -> None:
    dev.record.begin(f"git:{'0' * 40}")
    dev.stop.set()
    assert dev.follows()

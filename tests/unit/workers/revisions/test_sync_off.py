"""A worker that does not follow the revisions of its bundle."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from broker_config.keys import Keys
from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange
from tests.unit.workers.revisions.fake_revisions import Factory, run
from workers.revisions.revisions import Revisions
from workers.revisions.sync import forget_revisions, not_followed


@pytest.fixture
def record() -> Iterator[ActiveRevision]:
    with fakeredis.FakeRedis() as redis:
        yield ActiveRevision(redis, Keys(), "den")


def worker(ref: str | None, workspace: str = "den") -> Any:
    return SimpleNamespace(bundle_ref=ref, workspace=workspace)


@pytest.mark.parametrize("others", [(), (worker(None),), (worker("r1", "pond"),)])
def test_record_goes_when_no_workspace_worker_follows(
    record: ActiveRevision, others: tuple[Any, ...]
) -> None:
    record.begin("r1")
    forget_revisions(record, lambda: others, "den")
    assert record.state() is None


def test_record_stays_while_worker_of_workspace_follows(record: ActiveRevision) -> None:
    record.begin("r1")
    forget_revisions(record, lambda: [worker("r1")], "den")
    assert record.state() is not None


def test_record_that_worker_changes_meanwhile_stays(record: ActiveRevision) -> None:
    def workers_while_one_begins() -> tuple[()]:
        record.propose(RevisionChange(new_ref="r2", timestamp="2026-01-01T00:00:00.000Z"))
        return ()

    record.begin("r1")
    forget_revisions(record, workers_while_one_begins, "den")
    assert record.state() is not None


def test_without_redis_worker_starts_all_same(
    record: ActiveRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise RedisConnectionError("no route")

    monkeypatch.setattr(record, "state", away)
    with capture_logs() as logs:
        forget_revisions(record, tuple, "den")
    assert [entry["event"] for entry in logs] == ["revision.record_not_read"]


def test_only_call_naming_revision_is_refused() -> None:
    factory = Factory()
    any_: Any = factory
    revisions = Revisions(any_, any_, fetch=not_followed)
    assert run(revisions) is None
    with pytest.raises(BundleRevisionUnavailableError, match="does not follow revisions"):
        run(revisions, "r1")

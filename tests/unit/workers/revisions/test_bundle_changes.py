"""The bundle as an agent of a worker may change it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.settings import Settings
from goondan_tasks.authoring.changesets_api import ChangesetError
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.instances.table import Instances
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.revisions.active import ActiveRevision, RevisionFailure
from tests.git_bundle import FILES, GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import write
from workers.extensions.events import EventListeners
from workers.instances.workdirs import InstanceWorkdirs, Workdirs
from workers.revisions.bundle_changes import BundleChanges

SWARM = """\
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: den }
spec:
  entryAgent: Agent/coder
  agents: [Agent/coder]
  policy: { changesets: { enabled: true, allowed: { files: ["prompts/**", "echo.py"] } } }
"""
OLD = f"git:{'1' * 40}"


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def bundle(tmp_path: Path) -> GitBundle:
    """Make a bundle whose policy allows changesets."""
    return make_bundle(tmp_path / "repo", files={**FILES, "goondan.yaml": FILES["goondan.yaml"] + SWARM})


def call(agent: str = "coder", instance_key: str = "issue-42") -> ToolCall:
    return new_call(agent, "echo__run", {}, {"instance_key": instance_key})


def changes_of(
    folder: Path, tmp_path: Path, redis: Redis, events: EventListeners | None = None
) -> BundleChanges:
    settings = Settings(bundle=folder, state_root=tmp_path / "state")
    ledger = Ledger(redis, settings)
    workdirs = InstanceWorkdirs(Workdirs(settings.state_root_path, "den"), Instances(redis, ledger.keys))
    return BundleChanges(
        settings, ledger, load_bundle(folder), workdirs, lambda: events or EventListeners(_unused)
    )


def _unused(_coroutine: Any) -> Any:
    raise AssertionError("no listener is async")


@pytest.mark.requirement("changeset.outcome-visible")
def test_agents_change_inside_instance_is_announced_to_all(
    bundle: GitBundle, tmp_path: Path, redis: Redis
) -> None:
    heard: list[Any] = []
    events = EventListeners(_unused)
    for name in ("changeset.committed", "changeset.rejected"):
        events.on("coder", name, lambda event: heard.append(event["status"]), extension="x")
    changes = changes_of(bundle.folder, tmp_path, redis, events)
    active = ActiveRevision(redis, changes.ledger.keys, folder_workspace(bundle.folder))
    active.begin(OLD)
    mine = changes.of(call())

    opened = mine.open_changeset("Say more")
    workdir = Path(opened["workdir"])
    (workdir / "prompts/coder.md").write_text("more\n", encoding="utf-8")
    (workdir / "goondan.yaml").write_text("", encoding="utf-8")
    rejected = mine.commit_changeset(opened["changesetId"])
    (workdir / "goondan.yaml").write_text(bundle.committed("goondan.yaml") + "\n", encoding="utf-8")
    committed = mine.commit_changeset(opened["changesetId"], "Say more")

    state = active.state()
    assert workdir.parent == changes.workdirs.open("coder", "issue-42") / ".changesets"
    assert (rejected["status"], rejected["error"]["violatedFiles"]) == ("rejected", ("goondan.yaml",))
    assert (committed["status"], committed["newRef"]) == ("ok", f"git:{bundle.head}")
    assert heard == ["rejected", "ok"]
    assert state is not None and state.proposed is not None
    assert (state.proposed.new_ref, state.proposed.instance_key) == (committed["newRef"], "issue-42")


def test_active_ref_comes_from_record_revision_or_folder(
    bundle: GitBundle, tmp_path: Path, redis: Redis
) -> None:
    changes = changes_of(bundle.folder, tmp_path, redis)

    assert changes.of(call()).get_active_ref() == f"git:{bundle.head}"
    ActiveRevision(redis, changes.ledger.keys, folder_workspace(bundle.folder)).begin(OLD)
    assert changes.of(call()).get_active_ref() == OLD


def test_changeset_opened_on_unloadable_base_warns(bundle: GitBundle, tmp_path: Path, redis: Redis) -> None:
    changes = changes_of(bundle.folder, tmp_path, redis)
    active = ActiveRevision(redis, changes.ledger.keys, folder_workspace(bundle.folder))
    active.begin(OLD)
    head = f"git:{bundle.head}"

    before = changes.of(call()).open_changeset()
    active.withdraw(
        RevisionFailure(ref=head, code="E_EXT_INIT", reason="No ear.", worker="w", timestamp="2026-01-01")
    )
    after = changes.of(call()).open_changeset()

    assert (before["baseRef"], "warning" in before["hint"]) == (head, False)
    assert "E_EXT_INIT: No ear." in after["hint"]["warning"]


def test_bundle_outside_of_git_cannot_be_changed(tmp_path: Path, redis: Redis) -> None:
    folder = write(tmp_path / "plain", {"goondan.yaml": FILES["goondan.yaml"] + SWARM})

    with pytest.raises(ChangesetError, match="in no git repository"):
        changes_of(folder, tmp_path, redis).of(call())


def test_without_lock_in_redis_nothing_is_committed(bundle: GitBundle, tmp_path: Path) -> None:
    class Away(fakeredis.FakeRedis):
        """Has no lock, and no record."""

        def set(self, *args: Any, **options: Any) -> Any:
            raise RedisConnectionError("no route")

        def get(self, *args: Any, **options: Any) -> Any:
            raise RedisConnectionError("no route")

    mine = changes_of(bundle.folder, tmp_path, Away()).of(call())

    for ask in (mine.open_changeset, lambda: mine.commit_changeset("cs-1-00000000"), mine.get_active_ref):
        with pytest.raises(BrokerUnreachableError, match="no route"):
            ask()

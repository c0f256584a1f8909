"""What a worker begins with: its folder, or the active revision if the folder is not valid."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from broker_config.embedded import EmbeddedRedis
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import BundleError
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.bootstrap import Bootstrap, bootstrap_bundle
from tests.git_bundle import GitBundle, make_bundle

TEXT = """\
apiVersion: goondan.ai/v1
kind: Package
metadata: { name: den }
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: default }
spec: { entryAgent: Agent/bear, agents: [Agent/bear] }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: bear }
"""


@pytest.fixture
def redis_url() -> Iterator[str]:
    with EmbeddedRedis() as redis:
        yield redis.url


@pytest.fixture
def bundle(tmp_path: Path) -> GitBundle:
    return make_bundle(tmp_path / "den", files={"goondan.yaml": TEXT})


def settings(redis_url: str, tmp_path: Path) -> Settings:
    return Settings(redis_url=redis_url, cache_dir=tmp_path / "cache")


def spoil(bundle: GitBundle) -> None:
    (bundle.folder / "goondan.yaml").write_text(TEXT.replace("agents: [Agent/bear]", "agents: [Agent/fox]"))


def test_invalid_folder_gives_way_to_active_revision(
    redis_url: str, bundle: GitBundle, tmp_path: Path
) -> None:
    chosen, ref = settings(redis_url, tmp_path), f"git:{bundle.git('rev-parse', 'HEAD')}"
    assert Bootstrap.of(bundle.folder, chosen).ref is None
    spoil(bundle)
    with Redis.from_url(redis_url) as redis:
        ActiveRevision(redis, Keys(), "den").begin(ref)
    standing = Bootstrap.of(bundle.folder, chosen)
    assert (standing.ref, list(standing.bundle.agents)) == (ref, ["bear"])
    assert standing.checkout is not None
    standing.checkout.close()
    assert list(bootstrap_bundle(bundle.folder, chosen).agents) == ["bear"]


@pytest.mark.parametrize("active", [None, f"git:{'0' * 40}", "nonsense"])
def test_invalid_folder_without_available_revision_is_refused(
    redis_url: str, bundle: GitBundle, tmp_path: Path, active: str | None
) -> None:
    spoil(bundle)
    if active is not None:
        with Redis.from_url(redis_url) as redis:
            ActiveRevision(redis, Keys(), "den").begin(active)
    with pytest.raises(BundleError, match="Agent/fox"):
        Bootstrap.of(bundle.folder, settings(redis_url, tmp_path))


def test_without_redis_folder_is_refused(bundle: GitBundle, tmp_path: Path) -> None:
    spoil(bundle)
    with pytest.raises(BundleError, match="Agent/fox"):
        Bootstrap.of(bundle.folder, settings("redis://127.0.0.1:1/0", tmp_path))


def test_process_begins_once_with_handed_over_bundle(
    redis_url: str, bundle: GitBundle, tmp_path: Path
) -> None:
    chosen = settings(redis_url, tmp_path)
    read = Bootstrap.of(bundle.folder, chosen)

    read.hand_over(bundle.folder)

    assert bootstrap_bundle(bundle.folder, chosen) is read.bundle
    assert Bootstrap.of(bundle.folder, chosen) is read
    assert Bootstrap.of(bundle.folder, chosen) is not read

"""A bundle whose revisions are followed: what a process begins with, and what comes before what."""

from pathlib import Path

import pytest

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.bundle.findings import BundleError
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, ConfigError
from goondan_tasks.revisions.bootstrap import FollowedBundle, is_followed
from goondan_tasks.revisions.checkouts import clean_checkouts
from tests.git_bundle import FILES, GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import write

PACKAGE = "apiVersion: goondan.ai/v1\nkind: Package\nmetadata: { name: den }\nspec: {}\n"
SWARM = """\
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: default }
spec: { entryAgent: "Agent/coder", agents: ["Agent/coder"], policy: { changesets: { enabled: true } } }
"""


@pytest.fixture
def bundle(tmp_path: Path) -> GitBundle:
    return make_bundle(tmp_path / "bundle")


def followed(folder: Path, remote: str | None = None) -> FollowedBundle:
    settings = Settings.load(cache_dir=folder.parent / "cache", bundle_remote=remote)
    return FollowedBundle.of(folder, settings)


def commit(bundle: GitBundle, text: str) -> str:
    return f"git:{bundle.commit({'prompts/coder.md': text})}"


def test_committed_bundle_is_begun_with_from_checkout(bundle: GitBundle) -> None:
    ref, loaded, checkout = followed(bundle.folder).begin()
    with checkout:
        assert ref == f"git:{bundle.head}"
        assert not loaded.root.is_relative_to(bundle.root)
        commit(bundle, "changed")
        assert (loaded.root / "prompts/coder.md").read_text() == FILES["prompts/coder.md"]


def test_uncommitted_and_non_git_bundles_have_digest(bundle: GitBundle, tmp_path: Path) -> None:
    write(bundle.folder, {"prompts/coder.md": "mine"})
    plain = write(tmp_path / "plain", FILES)
    for folder in (bundle.folder, plain):
        ref, loaded, checkout = followed(folder).begin()
        with checkout:
            assert ref.startswith("sha256:")
            assert (loaded.root / "prompts/coder.md").is_file()


def test_broken_bundle_is_refused_leaving_checkout_unused(bundle: GitBundle) -> None:
    bundle.commit({"goondan.yaml": "kind: Nothing\n"})
    with pytest.raises(BundleError):
        followed(bundle.folder).begin()


def test_revision_of_other_workspace_is_not_loaded(bundle: GitBundle) -> None:
    before = f"git:{bundle.commit({'swarm.yaml': SWARM})}"
    after = f"git:{bundle.commit({'swarm.yaml': PACKAGE + SWARM})}"

    first, checkout = followed(bundle.folder).load(before)
    checkout.close()
    for ref, instead_of in ((before, first), (after, None)):
        followed(bundle.folder).load(ref, instead_of=instead_of)[1].close()
    with pytest.raises(ConfigError, match="in workspace 'den' instead of its folder's workspace"):
        followed(bundle.folder).load(after, instead_of=first)


def test_revision_with_second_swarm_is_not_loaded(bundle: GitBundle) -> None:
    before = f"git:{bundle.commit({'swarm.yaml': SWARM})}"
    after = f"git:{bundle.commit({'second.yaml': SWARM.replace('name: default', 'name: second')})}"
    first, checkout = followed(bundle.folder).load(before)
    checkout.close()

    with pytest.raises(ConfigError, match="a workspace of Swarm 'default' alone instead of its folder's"):
        followed(bundle.folder).load(after, instead_of=first)


def test_checkout_lives_in_workspace_of_bundles_own_folder(bundle: GitBundle) -> None:
    _, loaded, checkout = followed(bundle.folder).begin()
    with checkout:
        assert loaded.workspace_name() == load_bundle(bundle.folder).workspace_name()


def test_checkout_is_released_whatever_prevents_loading_bundle(
    bundle: GitBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: Path) -> Bundle:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("goondan_tasks.revisions.bootstrap.load_bundle", unreadable)
    with pytest.raises(PermissionError):
        followed(bundle.folder).load(f"git:{bundle.head}")
    assert len(clean_checkouts(bundle.folder.parent / "cache", -3600.0)) == 1


def test_revision_without_swarm_that_counts_is_not_loaded(bundle: GitBundle) -> None:
    first = load_bundle(bundle.folder)
    ref = f"git:{bundle.commit({'swarm.yaml': SWARM})}"
    here = FollowedBundle.of(
        bundle.folder, Settings.load(cache_dir=bundle.folder.parent / "cache", swarm="lair")
    )
    with pytest.raises(ConfigError, match=r"no Swarm 'lair'[.]$"):
        here.load(ref, instead_of=first)


def test_bundle_failing_checkout_is_configuration_error(bundle: GitBundle) -> None:
    bundle.root.parent.joinpath("cache").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be followed") as caught:
        followed(bundle.folder).begin()
    assert "GOONDAN_CACHE_DIR" in (caught.value.suggestion or "")


def test_repository_unusable_by_git_is_configuration_error(
    bundle: GitBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(bundle.root))
    with pytest.raises(ConfigError, match="no git command"):
        followed(bundle.folder)


def test_revision_that_is_nowhere_is_not_loaded(bundle: GitBundle) -> None:
    for ref in (f"git:{'0' * 40}", f"sha256:{'0' * 64}", "HEAD"):
        with pytest.raises(BundleRevisionUnavailableError):
            followed(bundle.folder).load(ref)


def test_later_commit_replaces_only_earlier_commit(
    bundle: GitBundle,
) -> None:
    first, second = f"git:{bundle.head}", commit(bundle, "second")
    here = followed(bundle.folder)
    assert here.supersedes(second, first)
    assert not here.supersedes(first, second)


def test_unrelated_commit_does_not_replace_active_commit(
    bundle: GitBundle,
) -> None:
    base = bundle.head
    one = commit(bundle, "one")
    bundle.git("reset", "--quiet", "--hard", base)
    other = commit(bundle, "other")
    here = followed(bundle.folder)
    assert not here.supersedes(other, one)
    assert not here.supersedes(other, f"git:{'0' * 40}")


def test_revision_of_one_machine_yields_to_any(bundle: GitBundle) -> None:
    here, digest = followed(bundle.folder), f"sha256:{'1' * 64}"
    assert here.supersedes(f"git:{bundle.head}", digest)
    assert here.supersedes(f"sha256:{'2' * 64}", digest)


def test_uncommitted_changes_replace_commit_on_sole_machine(
    bundle: GitBundle,
) -> None:
    digest, active = f"sha256:{'1' * 64}", f"git:{bundle.head}"
    assert followed(bundle.folder).supersedes(digest, active)
    assert not followed(bundle.folder, "origin").supersedes(digest, active)


def test_bundle_with_changesets_or_remote_is_followed(bundle: GitBundle) -> None:
    plain = load_bundle(bundle.folder)
    assert not is_followed(plain, Settings.load())
    assert is_followed(plain, Settings.load(bundle_remote="origin"))
    assert is_followed(plain, Settings.load(dev="on"))
    bundle.commit({"goondan.yaml": FILES["goondan.yaml"] + SWARM})
    assert is_followed(load_bundle(bundle.folder), Settings.load())

"""What a remote has."""

from pathlib import Path

from goondan_tasks.revisions.git import Remote, Repository
from tests.git_bundle import git, make_bundle


def test_ref_sharing_only_name_ending_is_ignored(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "repo")
    git(tmp_path, "clone", "--quiet", "--bare", str(bundle.root), "remote.git")
    mine = bundle.head
    other = bundle.commit({"prompts/coder.md": "other\n"})
    bundle.git("push", "--quiet", str(tmp_path / "remote.git"), "HEAD:refs/aaa/refs/heads/main")
    repository = Repository.find(bundle.folder)
    assert repository is not None
    remote = Remote(repository, str(tmp_path / "remote.git"))

    assert remote.commit_of("refs/heads/main") == mine
    assert remote.commit_of("refs/aaa/refs/heads/main") == other
    assert remote.commit_of("heads/main") is None

    git(tmp_path / "remote.git", "symbolic-ref", "HEAD", "refs/aaa/refs/heads/main")
    remote.delete("refs/heads/main")
    assert remote.commit_of("refs/heads/main") is None
    remote.delete("refs/heads/main")

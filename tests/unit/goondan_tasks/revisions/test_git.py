"""The git command: its time limit."""

from pathlib import Path

import pytest

from goondan_tasks.revisions.git import Git, GitError
from tests.git_bundle import git


def test_git_command_past_limit_leaves_no_lock(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "filter.slow.clean", "sleep 100")
    (tmp_path / ".gitattributes").write_text("*.txt filter=slow\n", encoding="utf-8")
    (tmp_path / "slow.txt").write_text("any", encoding="utf-8")

    with pytest.raises(GitError, match="git add did not end"):
        Git(folder=tmp_path).run("add", "slow.txt", seconds=0.5)

    assert not (tmp_path / ".git/index.lock").exists()

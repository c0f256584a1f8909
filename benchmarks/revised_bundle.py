"""``benchmarks/bundle`` in a git repository of its own, with revisions for a worker to switch to."""

import shutil
from pathlib import Path

from benchmarks.bundle_copy import BUNDLE
from goondan_tasks.revisions.git import Git

_SWARM = """\
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata:
  name: default
spec:
  entryAgent: Agent/bench
  agents: [Agent/bench]
  policy:
    changesets:
      enabled: true
"""
_IDENTITY = {
    f"GIT_{role}_{field}": text
    for role in ("AUTHOR", "COMMITTER")
    for field, text in (("NAME", "Benchmark"), ("EMAIL", "benchmark@example.invalid"))
}


def revised_bundle(folder: Path, count: int) -> Path:
    """Make the repository in a new folder: what a worker begins with, and ``count`` changes of its tool.

    Raises:
        GitError: git cannot.
    """
    shutil.copytree(BUNDLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "goondan.yaml").open("a", encoding="utf-8") as document:
        document.write(_SWARM)
    git = Git(folder=folder, environment=_IDENTITY)
    git.run("init", "--quiet")
    git.run("add", "--all")
    for number in range(count + 1):
        with (folder / "tools" / "bench.py").open("a", encoding="utf-8") as tool:
            tool.write(f"REVISION = {number}\n")
        git.run("commit", "--quiet", "--all", "--message", f"Revision {number}")
    return folder


def other_refs(bundle: Path) -> list[str]:
    """Return the refs of a bundle's revisions but for the one that stands in its folder.

    Raises:
        GitError: it is in no repository.
    """
    commits = Git(folder=bundle).run("rev-list", "--skip", "1", "HEAD").decode().split()
    return [f"git:{commit}" for commit in commits]

"""The bundle of a lane: ``benchmarks/bundle``, a copy with more agents, or a repository with revisions."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.systems import BUNDLED_QUEUES, Shape
from goondan_tasks.revisions.git import Git

BUNDLE = Path(__file__).parent / "bundle"
#: a file may not have more than 100 documents
AGENTS_PER_FILE = 50

_AGENT = """\
---
apiVersion: goondan.ai/v1
kind: Agent
metadata:
  name: {name}
spec:
  tools: [Tool/bench]
"""
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


def bundle_for(shape: Shape, folder: Path) -> Path:
    """Return the bundle that a worker of this shape runs; a copy is made in ``folder``, which must be new.

    Raises:
        GitError: git cannot make the repository.
    """
    if shape.revisions:
        return revised_bundle(folder, shape.revisions)
    if {*shape.queues} <= BUNDLED_QUEUES:
        return BUNDLE
    return bundle_with(shape.queues, folder)


def bundle_with(agents: Sequence[str], folder: Path) -> Path:
    """Copy the bundle and add these agents, all with the same tools."""
    _copy(folder)
    for start in range(0, len(agents), AGENTS_PER_FILE):
        text = "".join(_AGENT.format(name=name) for name in agents[start : start + AGENTS_PER_FILE])
        (folder / str(start)).mkdir()
        (folder / str(start) / "agents.yaml").write_text(text, "utf-8")
    return folder


def revised_bundle(folder: Path, count: int) -> Path:
    """Make a repository with the bundle and ``count`` later revisions of its tool.

    Raises:
        GitError: git cannot.
    """
    _copy(folder)
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
    """Return the refs of all revisions except the one that is checked out.

    Raises:
        GitError: the bundle is not in a repository.
    """
    commits = Git(folder=bundle).run("rev-list", "--skip", "1", "HEAD").decode().split()
    return [f"git:{commit}" for commit in commits]


def _copy(folder: Path) -> None:
    shutil.copytree(BUNDLE, folder, ignore=shutil.ignore_patterns("__pycache__"))

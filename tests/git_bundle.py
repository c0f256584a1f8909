"""A bundle in a real git repository, for tests."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.changesets.changesets import Changesets
from goondan_tasks.changesets.policy import UNRESTRICTED, ChangesetRules, Principal
from goondan_tasks.revisions.checkouts import RevisionSource
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, write

FILES = {"goondan.yaml": f"{TOOL}---\n{AGENT}", "prompts/coder.md": "one\ntwo\nthree\n"}

_IDENTITY = (
    "-c",
    "user.name=Tester",
    "-c",
    "user.email=tester@example.invalid",
    "-c",
    "commit.gpgsign=false",
)


def git(folder: Path, *arguments: str) -> str:
    """Run git as a person would, without configuration of the developer's own."""
    done = subprocess.run(
        ["git", *_IDENTITY, *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "LC_ALL": "C.UTF-8"},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class GitBundle:
    """A repository, and the folder of the bundle in it."""

    root: Path
    prefix: str = ""

    @property
    def folder(self) -> Path:
        """The bundle's folder."""
        return self.root / self.prefix

    @property
    def head(self) -> str:
        """The commit that is checked out."""
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        """Run git in the repository."""
        return git(self.root, *arguments)

    def commit(self, files: Mapping[str, str], message: str = "Change") -> str:
        """Write files of the bundle, commit everything, and return the commit."""
        write(self.folder, files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", message)
        return self.head

    def committed(self, path: str, commit: str = "HEAD") -> str:
        """Return what a file of the bundle says in a commit."""
        return self.git("show", f"{commit}:{self.prefix}{path}")

    def tracked(self) -> set[str]:
        """Return the files of the last commit, from the root of the repository."""
        return set(self.git("ls-tree", "-r", "--name-only", "HEAD").splitlines())

    def changesets(self, remote: str | None = None) -> Changesets:
        """Return the bundle's changesets."""
        return Changesets.of(RevisionSource.of(self.folder, remote))


def make_bundle(root: Path, *, prefix: str = "", files: Mapping[str, str] = FILES) -> GitBundle:
    """Make a repository with a bundle in it, committed."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    bundle = GitBundle(root.resolve(), prefix)
    bundle.folder.mkdir(parents=True, exist_ok=True)
    bundle.commit(files, "Begin")
    return bundle


@dataclass(frozen=True, slots=True)
class OpenChangeset:
    """A changeset that a test edits."""

    changesets: Changesets
    changeset_id: str
    folder: Path

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of the bundle in it."""
        for name, text in files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


def open_changeset(
    changesets: Changesets, parent: Path, rules: ChangesetRules = UNRESTRICTED, agent: str | None = None
) -> OpenChangeset:
    """Open a changeset below ``parent``."""
    opened = changesets.open(Principal(parent, rules, agent), "a test")
    return OpenChangeset(
        changesets, opened.changeset_id, Path(opened.workdir, opened.hint.bundle_root_in_workdir)
    )

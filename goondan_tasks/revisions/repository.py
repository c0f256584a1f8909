"""The git repository that a bundle is in, by paths from the bundle's folder."""

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from goondan_tasks.revisions.git import Git, GitError

FILE, PROGRAM, LINK, SUBMODULE = "100644", "100755", "120000", "160000"


class Entry(NamedTuple):
    """What a tree says of one path: its mode, and the id of its blob."""

    mode: str
    blob: str

    @property
    def is_file(self) -> bool:
        """Whether it is an ordinary file."""
        return self.mode in {FILE, PROGRAM}


Entries = Mapping[str, Entry]
#: new entries by path; ``None`` takes one away
Changes = Mapping[str, Entry | None]


class Author(NamedTuple):
    """Whose commit it is. Git's own configuration is not asked: a worker's user often has none."""

    name: str
    email: str

    @classmethod
    def of(cls, agent: str | None) -> "Author":
        """Return an agent's name, or this program's, with an address that is nobody's (RFC 6761 §6.4)."""
        name = agent or "goondan"
        return cls(name, f"{name}@goondan.invalid")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository and the folder of the bundle in it."""

    git: Git
    #: shared by all worktrees of the repository
    common_directory: Path
    work_tree: Path
    #: the bundle's folder from the root of the repository: empty, or with a ``/`` at its end
    prefix: str
    #: ``sha1``, or ``sha256``
    algorithm: str

    @classmethod
    def find(cls, folder: Path) -> "Repository | None":
        """Return the repository that ``folder`` is in, or ``None``.

        Raises:
            GitError: there is no git command, or git does not trust the repository's owner.
        """
        folder = folder.resolve()
        if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
            return None
        wanted = ("--absolute-git-dir", "--git-common-dir", "--show-toplevel", "--show-prefix")
        printed = Git(folder=folder).run("rev-parse", *wanted, "--show-object-format")
        directory, common, top, prefix, algorithm = os.fsdecode(printed).split("\n")[:5]
        git = Git(directory=Path(directory), folder=Path(top))
        return cls(git, (folder / common).resolve(), Path(top), prefix, algorithm)

    @property
    def inside(self) -> tuple[str, ...]:
        """The arguments that limit a command to the bundle's folder."""
        return ("--", f":(top,literal){self.prefix}") if self.prefix else ()

    def branch(self) -> str:
        """Return the full name of the branch that is checked out.

        Raises:
            GitError: none is.
        """
        status, name = self.git.status("symbolic-ref", "--quiet", "HEAD", accepted=(0, 1))
        if status:
            raise GitError(
                f"No branch is checked out in {self.work_tree} (its HEAD is detached).",
                suggestion="Check out the branch that the changes are to go to.",
            )
        return name.decode().strip()

    def tip(self) -> str:
        """Return the commit of that branch.

        Raises:
            GitError: there is no branch, or no commit on it.
        """
        branch = self.branch()
        commit = self.commit_of(branch)
        if commit is None:
            message = f"The branch {branch.removeprefix('refs/heads/')} has no commit."
            raise GitError(message, suggestion="Commit the bundle first.")
        return commit

    def commit_of(self, name: str) -> str | None:
        """Return the id of the commit that ``name`` (an id, a ref, ``HEAD~1``) means, if there is one."""
        return self._object_of(f"{name}^{{commit}}")

    def commits_beginning(self, digits: str) -> list[str]:
        """Return the ids of the commits that begin with four or more hexadecimal digits."""
        found = self.git.run("rev-parse", f"--disambiguate={digits}").split()
        kinds = self.git.run("cat-file", "--batch-check", stdin=b"".join(b"%b\n" % one for one in found))
        lines = (line.decode().split() for line in kinds.splitlines())
        return [name for name, kind, *_ in lines if kind == "commit"]

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Say whether ``older`` is in the history of ``newer``."""
        status, _ = self.git.status("merge-base", "--is-ancestor", older, newer, accepted=(0, 1))
        return status == 0

    def entries(self, commit: str) -> dict[str, Entry]:
        """Return the files of the bundle in a commit; none if the folder is not in it."""
        tree = self._object_of(f"{commit}:{self.prefix.rstrip('/')}")
        if tree is None:
            return {}
        listed = self.git.run("ls-tree", "-r", "-z", "--full-tree", tree)
        return {
            os.fsdecode(path): Entry(*about.decode().split()[::2])
            for about, _, path in (line.partition(b"\t") for line in listed.split(b"\0") if line)
        }

    def has_changes(self) -> bool:
        """Say whether files of the bundle differ from the commit that is checked out.

        What git ignores does not count.
        """
        options = ("--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=all")
        return bool(self.git.run("status", *options, *self.inside))

    def blob(self, blob: str) -> bytes:
        """Return the content of a blob."""
        return self.git.run("cat-file", "blob", blob)

    def size(self, blob: str) -> int:
        """Return how many bytes a blob has."""
        return int(self.git.run("cat-file", "-s", blob))

    def blobs(self, blobs: Iterable[str]) -> Iterator[bytes]:
        """Yield the content of many blobs, one at a time, in order."""
        with self.git.start("cat-file", "--batch", stdin=subprocess.PIPE) as process:
            if process.stdin is None or process.stdout is None:
                raise GitError("git cat-file has no pipes.")
            try:
                for blob in blobs:
                    process.stdin.write(f"{blob}\n".encode())
                    process.stdin.flush()
                    about = process.stdout.readline().split()
                    if len(about) != 3:
                        raise GitError(f"The repository lacks the blob {blob}.")
                    data = process.stdout.read(int(about[2]) + 1)
                    yield data[:-1]
            finally:
                process.kill()

    def write_blob(self, content: bytes | BinaryIO) -> str:
        """Store a blob exactly as it is, and return its id."""
        stdin = content if isinstance(content, bytes) else content.fileno()
        return self.git.run("hash-object", "-w", "--no-filters", "--stdin", stdin=stdin).decode().strip()

    def tree_with(self, commit: str, changes: Changes) -> str:
        """Store the tree of a commit with changes of the bundle's files, and return its id.

        Raises:
            GitError: git refuses a path.
        """
        gone = Entry("0", "0" * len(commit))
        lines = [
            _index_line(self.prefix + path, entry or gone)
            for path, entry in sorted(changes.items(), key=_is_addition)
        ]
        with tempfile.TemporaryDirectory(prefix="goondan-index-") as folder:
            git = replace(self.git, index=Path(folder, "index"))
            git.run("read-tree", commit)
            git.run("update-index", "-z", "--index-info", stdin=b"".join(lines))
            return git.run("write-tree").decode().strip()

    def commit(self, tree: str, parent: str, message: str, author: Author) -> str:
        """Store a commit and return its id; no branch moves."""
        roles = {
            f"GIT_{role}_{field.upper()}": value
            for role in ("AUTHOR", "COMMITTER")
            for field, value in author._asdict().items()
        }
        git = replace(self.git, environment=roles)
        text = message.encode("utf-8", "backslashreplace")
        return git.run("commit-tree", tree, "-p", parent, stdin=text).decode().strip()

    def set_ref(self, name: str, commit: str, *, expected: str) -> None:
        """Let a ref point to a commit, if it points to ``expected`` now (empty: to nothing).

        Raises:
            GitError: it does not.
        """
        self.git.run("update-ref", "-m", "goondan", name, commit, expected or "0" * len(commit))

    def delete_ref(self, name: str) -> None:
        """Delete a ref; nothing if there is none."""
        self.git.run("update-ref", "-d", name)

    def check_out(self, old: str, new: str, *, dry_run: bool = False) -> None:
        """Bring the files of the worktree from one commit to another, as a fast-forward does.

        Files that are the same in both keep what a person has changed in them.

        Raises:
            GitError: a person's uncommitted changes are in the way; nothing has been changed.
        """
        git = replace(self.git, work_tree=self.work_tree)
        git.run("update-index", "-q", "--refresh", accepted=(0, 1, 128))
        try:
            git.run("read-tree", "-m", "-u", *(["-n"] if dry_run else []), old, new)
        except GitError as error:
            raise GitError(
                f"The files in {self.work_tree} cannot follow: {error}",
                suggestion="Commit, stash or discard the changes there, and commit the changeset again.",
            ) from error

    def _object_of(self, name: str) -> str | None:
        wanted = ("rev-parse", "--verify", "--quiet", "--end-of-options", name)
        status, printed = self.git.status(*wanted, accepted=(0, 1, 128))
        # git before 2.30 repeats --end-of-options
        return None if status else printed.decode().split()[-1]


def _is_addition(change: tuple[str, Entry | None]) -> bool:
    """Sort what is taken away first: a directory may take the place of a file."""
    return change[1] is not None


def _index_line(path: str, entry: Entry) -> bytes:
    return f"{entry.mode} {entry.blob}\t".encode() + os.fsencode(path) + b"\0"

"""The directory of a changeset: its files are written, read and removed without following links.

An agent may put anything into the directory, and programs of its instance may replace it or its parents. So
it is opened component by component, and git, which opens files by their paths, works on a copy.
"""

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath

from goondan_tasks.authoring.changesets_api import ChangesetError
from goondan_tasks.changesets.policy import plain_name
from goondan_tasks.machine.atomic_file import make_private_directory
from goondan_tasks.machine.inner_path import InnerPath, unresolved
from goondan_tasks.machine.trees import remove_tree
from goondan_tasks.revisions.checkouts import Folder, Found
from goondan_tasks.revisions.git import (
    FILE,
    LINK,
    SUBMODULE,
    Entries,
    Entry,
    Repository,
    changes_between,
    parents,
)

#: bytes of one file, and of all changed files together
MAX_FILE_BYTES = 16_777_216
MAX_BYTES = 67_108_864
#: how many files a changeset may change, and how many its directory may have, ignored ones included
MAX_CHANGES = 2_000
MAX_FILES = 50_000

#: names of git's own directory, for git and for file systems that fold case or shorten names
_GIT_NAMES = {".git", "git~1"}
_IGNORE = ".gitignore"
_PARTS = re.compile(r"[/\\]")


@dataclass(slots=True)
class Proposal:
    """The changes that a changeset proposes."""

    #: new entries by path; ``None`` removes one
    changes: dict[str, Entry | None] = field(default_factory=dict)
    #: paths that cannot be part of a bundle, and why
    misfits: dict[str, str] = field(default_factory=dict)
    #: bytes of its new files
    size: int = 0


def no_objection(_path: str) -> None:
    """Let any path be changed."""


@dataclass(frozen=True, slots=True)
class WorkingFiles:
    """The files in the directory of one changeset. All methods raise OSError, or GitError."""

    repository: Repository
    directory: Path
    #: returns why a path may not be changed; such a file is not even stored
    objection: Callable[[str], str | None] = no_objection

    @property
    def place(self) -> InnerPath:
        """The directory, opened without following links: programs of its instance may replace its parent."""
        parts = (self.directory.parent.name, self.directory.name)
        return unresolved(self.directory.parents[1], parts, str(self.directory))

    @property
    def is_there(self) -> bool:
        """Whether the directory exists."""
        try:
            with self.place.open_directory():
                return True
        except FileNotFoundError:
            return False
        except OSError:  # a link, for example: reading its files says why they cannot be read
            return True

    def create(self, commit: str) -> None:
        """Make the directory, which must not exist, with the files of a commit.

        Besides the bundle it has the ``.gitignore`` files of the directories above the bundle's folder. Git
        writes into a directory of its own, since it opens files by their paths.
        """
        outer = ["", *(f"{parent}/" for parent in parents(self.repository.prefix.rstrip("/")))]
        ignores = [f":(top,literal){folder}.gitignore" for folder in outer]
        make_private_directory(self.place.base)
        self.place.make_workdir()
        with tempfile.TemporaryDirectory(prefix="goondan-files-") as staged:
            with self.repository.neutral(Path(staged)) as git:
                git.run("read-tree", commit)
                inside = f":(top,literal){self.repository.prefix}"
                wanted = git.run("ls-files", "-z", "--", inside, *ignores)
                git.run("checkout-index", "--quiet", "-z", "--stdin", stdin=wanted)
            with self.place.open_parent(make=True) as (parent, name):
                os.mkdir(name, 0o700, dir_fd=parent)
            with self.place.open_directory() as directory:
                for entry in Path(staged).iterdir():
                    _copy(entry, directory, entry.name)

    def remove(self) -> None:
        """Remove the directory, if it exists."""
        with contextlib.suppress(FileNotFoundError), self.place.open_parent() as (parent, name):
            _remove(parent, name)

    def bring(self, tree: str, wanted: str) -> None:
        """Change the files of the bundle's folder from one tree to another."""
        changes = changes_between(self.repository.entries(tree), self.repository.entries(wanted))
        folder = [part for part in self.repository.prefix.split("/") if part]
        with tempfile.TemporaryDirectory(prefix="goondan-files-") as staged:
            with self.repository.neutral(Path(staged)) as git:
                git.run("read-tree", wanted)
                git.run("checkout-index", "--quiet", "--all")
            # removals first: a directory may take a file's place
            for path, entry in sorted(changes.items(), key=lambda change: change[1] is not None):
                parts = (*self.place.parts, *folder, *path.split("/"))
                file = replace(self.place, parts=parts)
                with contextlib.suppress(FileNotFoundError), file.open_parent(make=entry is not None) as at:
                    _remove(*at)
                    if entry is not None and entry.mode != SUBMODULE:
                        _copy(Path(staged, path), *at)

    def proposal(self, base: Entries) -> Proposal:
        """Read the proposed changes of ``base``; new files are stored as blobs.

        Raises:
            ChangesetError: there are too many files.
        """
        found = self._found()
        # a submodule is never in the directory, and is kept
        gone = [path for path, entry in base.items() if path not in found and entry.mode != SUBMODULE]
        proposal = Proposal(changes=dict.fromkeys(gone))
        beside = theirs_suffix(self.directory.name)
        ignored = self._ignored(
            found, (path for path in found if path not in base and not path.endswith(beside))
        )
        for path, item in found.items():
            if path not in ignored:
                self._propose(proposal, item, path, base)
        return proposal

    def _found(self) -> dict[str, Found]:
        prefix = self.repository.prefix
        found: dict[str, Found] = {}
        for item in Folder(self.place).found(prefix):
            found[item.path.removeprefix(prefix)] = item
            if len(found) > MAX_FILES:
                message = f"The changeset's directory has more than {MAX_FILES} files."
                raise ChangesetError(
                    message, code="POLICY_VIOLATION", suggestion="Remove files that are not needed."
                )
        return found

    def _propose(self, proposal: Proposal, found: Found, path: str, base: Entries) -> None:
        reason = _misfit(found, path, base)
        if reason is not None:
            proposal.misfits[path] = reason
            return
        if path in base and self._is_same(found, base[path]):
            return
        reason = self._objection(proposal, found, path)
        if reason is not None:
            proposal.misfits[path] = reason
        elif found.mode == LINK:
            self._propose_link(proposal, found, path)
        else:
            proposal.size += found.size
            with Folder(self.place).reading(found.path) as file:
                proposal.changes[path] = Entry(found.mode or FILE, self.repository.write_blob(file))

    def _is_same(self, found: Found, entry: Entry) -> bool:
        # a file that is too large is read only if its size is the same
        size = partial(self.repository.git.run, "cat-file", "-s", entry.blob)
        if found.mode != entry.mode or (found.size > MAX_FILE_BYTES and found.size != int(size())):
            return False
        digest = Folder(self.place).digest(found, self.repository.algorithm, head="blob {size}\0")
        return digest == entry.blob

    def _objection(self, proposal: Proposal, found: Found, path: str) -> str | None:
        # checked before the blob is stored: git keeps unreferenced objects for a long time
        if len(proposal.changes) >= MAX_CHANGES:
            return f"more than {MAX_CHANGES} files are changed"
        if found.size > MAX_FILE_BYTES:
            return f"it is larger than {MAX_FILE_BYTES} bytes"
        if proposal.size + found.size > MAX_BYTES:
            return f"the files that are changed are larger than {MAX_BYTES} bytes together"
        # a file that a conflict has left is reported as a conflict
        return None if path.endswith(theirs_suffix(self.directory.name)) else self.objection(path)

    def _propose_link(self, proposal: Proposal, found: Found, path: str) -> None:
        target = Folder(self.place).link_target(found.path)
        if leads_out(path, os.fsdecode(target)):
            proposal.misfits[path] = "it is a link that leads out of the bundle"
        elif leads_into_git(os.fsdecode(target)):
            proposal.misfits[path] = "it is a link into git's own directory"
        else:
            proposal.changes[path] = Entry(LINK, self.repository.write_blob(target))

    def _ignored(self, found: Mapping[str, Found], paths: Iterable[str]) -> set[str]:
        # "./" prevents that a name with a leading colon is taken for a pattern
        start = f"./{self.repository.prefix}"
        asked = b"".join(os.fsencode(start + path) + b"\0" for path in paths)
        if not asked:
            return set()
        # git reads the patterns by their paths, so it gets a copy
        with tempfile.TemporaryDirectory(prefix="goondan-files-") as staged:
            above = (f"{parent}/" for parent in parents(self.repository.prefix.rstrip("/")))
            inside = (item.path for item in found.values() if item.path.rpartition("/")[2] == _IGNORE)
            for file in ("", *above):
                self._stage(f"{file}{_IGNORE}", Path(staged))
            for path in inside:
                self._stage(path, Path(staged))
            git = replace(self.repository.git, folder=Path(staged), work_tree=Path(staged))
            wanted = ("check-ignore", "-z", "--stdin", "--no-index")
            printed = git.run(*wanted, stdin=asked, accepted=(0, 1))
        return {name.removeprefix(start) for name in os.fsdecode(printed).split("\0") if name}

    def _stage(self, path: str, staged: Path) -> None:
        """Copy a file of the directory, if it is a regular one that is there."""
        with contextlib.suppress(OSError), Folder(self.place).reading(path) as file:
            (staged / path).parent.mkdir(parents=True, exist_ok=True)
            (staged / path).write_bytes(file.read(MAX_FILE_BYTES))


def _copy(source: Path, directory: int, name: str) -> None:
    """Copy a file, link or tree of ours into a directory, given by its descriptor, as a new entry."""
    status = source.lstat()
    if stat.S_ISLNK(status.st_mode):
        os.symlink(source.readlink(), name, dir_fd=directory)
    elif stat.S_ISDIR(status.st_mode):
        os.mkdir(name, dir_fd=directory)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            for entry in source.iterdir():
                _copy(entry, inner, entry.name)
        finally:
            os.close(inner)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, stat.S_IMODE(status.st_mode), dir_fd=directory)
        with os.fdopen(descriptor, "wb") as copy, source.open("rb") as file:
            shutil.copyfileobj(file, copy)


def _remove(directory: int, name: str) -> None:
    """Remove an entry of a directory, given by its descriptor, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            remove_tree(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)


def theirs_suffix(changeset_id: str) -> str:
    """Return the suffix for the others' version of a file in which no lines can be marked."""
    return f".{changeset_id}.theirs"


def leads_out(path: str, target: str) -> bool:
    """Return whether a link at ``path`` may lead out of the bundle.

    ``..`` is allowed only at the beginning: after another part it would start from that part's target.
    """
    parts = PurePosixPath(target).parts
    ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return target.startswith("/") or ups > path.count("/") or ".." in parts[ups:]


def leads_into_git(path: str) -> bool:
    """Return whether a path contains git's own directory, under any name that file systems have for it."""
    return any(plain_name(part) in _GIT_NAMES for part in _PARTS.split(path))


def _misfit(found: Found, path: str, base: Entries) -> str | None:
    if found.mode is None:
        return "it is not a regular file, or its directories are nested too deep"
    if leads_into_git(path):
        return "git keeps that name for itself"
    places = (path, *parents(path))
    if any(place in base and base[place].mode == SUBMODULE for place in places):
        return "a submodule is there"
    return None

"""The directory of a changeset: its files for an agent to edit, and what has become of them.

An agent may put anything there. So git never looks for a repository in it, nothing is run, no link is
followed; what is proposed is read file by file, by its raw content.

The directory has the layout of the repository, so that its ``.gitignore`` files mean what they mean there,
but only the bundle's folder is in it.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from goondan_tasks.changesets.changeset_error import ChangesetError
from goondan_tasks.changesets.merge import parents
from goondan_tasks.revisions.folder import Folder, Found
from goondan_tasks.revisions.repository import (
    FILE,
    LINK,
    PROGRAM,
    SUBMODULE,
    Entries,
    Entry,
    Repository,
)

#: what a file in a changeset may take
MAX_FILE_BYTES = 16_777_216
#: what the files that a changeset changes may take together
MAX_BYTES = 67_108_864
#: how many files a changeset may change
MAX_CHANGES = 2_000
#: how many files its directory may have, those that git ignores included
MAX_FILES = 50_000

#: names that git, or a file system that folds case or shortens names, takes for its own directory
_GIT_NAMES = {".git", "git~1"}
#: what a file system may leave out of a name, or git take for a part's end (git's own utf8.c and path.c)
_UNSEEN = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
_PARTS = re.compile(r"[/\\]")


@dataclass(slots=True)
class Proposal:
    """What is proposed: new entries by path (``None``: removed), and what cannot be part of a bundle."""

    changes: dict[str, Entry | None] = field(default_factory=dict)
    #: paths, and why not
    misfits: dict[str, str] = field(default_factory=dict)
    #: what its new files take together
    size: int = 0


def no_objection(_path: str) -> None:
    """Let any path be changed."""


@dataclass(frozen=True, slots=True)
class WorkingFiles:
    """The files in the directory of one changeset."""

    repository: Repository
    directory: Path
    #: says why a path may not be changed, if it may not: such a file is not stored
    objection: Callable[[str], str | None] = no_objection

    @property
    def _folder(self) -> Folder:
        return Folder(self.directory)

    def create(self, commit: str) -> None:
        """Make the directory, with the files of a commit.

        Raises:
            OSError: it cannot be made, or is there.
        """
        parent = self.directory.parent
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if parent.is_symlink():
            raise FileExistsError(f"{parent} is a link")
        self.directory.mkdir(mode=0o700)
        for path, data in self._outer_ignores(commit):
            self._folder.write(path, data)
        self.put(self.repository.entries(commit))

    def remove(self) -> None:
        """Remove the directory, if it is there.

        Raises:
            OSError: not all of it can be removed.
        """
        if self.directory.is_symlink():
            self.directory.unlink()
        elif self.directory.exists():
            shutil.rmtree(self.directory)

    def put(self, entries: Entries) -> None:
        """Write files, none for a submodule; raises :class:`OSError` as ``Folder.write`` does."""
        kept = {path: entry for path, entry in entries.items() if entry.mode != SUBMODULE}
        contents = self.repository.blobs(entry.blob for entry in kept.values())
        for (path, entry), data in zip(kept.items(), contents, strict=True):
            self.write(path, data, entry.mode)

    def write(self, path: str, data: bytes, mode: str = FILE) -> None:
        """Write one file; raises :class:`OSError` as ``Folder.write`` does."""
        place = self.repository.prefix + path
        self._folder.write(place, data, is_executable=mode == PROGRAM, is_link=mode == LINK)

    def take_away(self, path: str) -> None:
        """Remove one file; raises :class:`OSError` as ``Folder.remove`` does."""
        self._folder.remove(self.repository.prefix + path)

    def proposal(self, base: Entries) -> Proposal:
        """Read what is proposed as a change of ``base``; new files are stored as blobs.

        Raises:
            ChangesetError: there are too many files.
            GitError, OSError: they cannot be read.
        """
        found = self._found()
        proposal = Proposal(changes=dict.fromkeys(_removed(base, found)))
        beside = theirs_suffix(self.directory.name)
        ignored = self._ignored(path for path in found if path not in base and not path.endswith(beside))
        for path, item in found.items():
            if path not in ignored:
                self._propose(proposal, item, path, base)
        return proposal

    def _found(self) -> dict[str, Found]:
        prefix = self.repository.prefix
        found: dict[str, Found] = {}
        for item in self._folder.found(prefix):
            found[item.path.removeprefix(prefix)] = item
            if len(found) > MAX_FILES:
                message = f"The changeset's directory has more than {MAX_FILES} files."
                raise ChangesetError(
                    message, code="POLICY_VIOLATION", suggestion="Remove what is not needed."
                )
        return found

    def _propose(self, proposal: Proposal, found: Found, path: str, base: Entries) -> None:
        reason = _misfit(found, path, base)
        if reason is not None:
            proposal.misfits[path] = reason
            return
        mode = LINK if found.kind == "link" else PROGRAM if found.is_executable else FILE
        if path in base and self._is_same(found, mode, base[path]):
            return
        reason = self._objection(proposal, found, path)
        if reason is not None:
            proposal.misfits[path] = reason
        elif found.kind == "link":
            self._propose_link(proposal, found, path)
        else:
            proposal.size += found.size
            with self._folder.reading(found.path) as file:
                proposal.changes[path] = Entry(mode, self.repository.write_blob(file))

    def _is_same(self, found: Found, mode: str, entry: Entry) -> bool:
        """Say whether a file is as in the base; one too large is only read if its size is the same."""
        if mode != entry.mode:
            return False
        if found.size > MAX_FILE_BYTES and found.size != self.repository.size(entry.blob):
            return False
        digest = self._folder.digest(found, self.repository.algorithm, head="blob {size}\0")
        return digest == entry.blob

    def _objection(self, proposal: Proposal, found: Found, path: str) -> str | None:
        """Say why a change is not even stored, if it is not: what nobody refers to stays in git for long."""
        if len(proposal.changes) >= MAX_CHANGES:
            return f"more than {MAX_CHANGES} files are changed"
        if found.size > MAX_FILE_BYTES:
            return f"it is larger than {MAX_FILE_BYTES} bytes"
        if proposal.size + found.size > MAX_BYTES:
            return f"the files that are changed are larger than {MAX_BYTES} bytes together"
        # what a conflict has left beside a file is told as that
        return None if path.endswith(theirs_suffix(self.directory.name)) else self.objection(path)

    def _propose_link(self, proposal: Proposal, found: Found, path: str) -> None:
        target = self._folder.link_target(found.path)
        if leads_out(path, os.fsdecode(target)):
            proposal.misfits[path] = "it is a link that leads out of the bundle"
        elif leads_into_git(os.fsdecode(target)):
            proposal.misfits[path] = "it is a link into git's own directory"
        else:
            proposal.changes[path] = Entry(LINK, self.repository.write_blob(target))

    def _ignored(self, paths: Iterable[str]) -> set[str]:
        """Return those of the paths that git ignores."""
        # "./" keeps a name that begins with a colon from being a pattern
        start = f"./{self.repository.prefix}"
        git = replace(self.repository.git, folder=self.directory, work_tree=self.directory)
        asked = b"".join(os.fsencode(start + path) + b"\0" for path in paths)
        if not asked:
            return set()
        printed = git.run("check-ignore", "-z", "--stdin", "--no-index", stdin=asked, accepted=(0, 1))
        return {name.removeprefix(start) for name in os.fsdecode(printed).split("\0") if name}

    def _outer_ignores(self, commit: str) -> Iterator[tuple[str, bytes]]:
        """Yield the ``.gitignore`` files of the directories that the bundle's folder is in."""
        root = replace(self.repository, prefix="")
        outer = [f"{parent}/" for parent in parents(self.repository.prefix.rstrip("/"))]
        for folder in ["", *outer] if self.repository.prefix else []:
            name = f"{folder}.gitignore"
            listed = root.git.run("ls-tree", "-z", "--full-tree", commit, "--", name)
            if listed.startswith((b"100644 ", b"100755 ")):
                yield name, root.blob(listed.split()[2].decode())


def theirs_suffix(changeset_id: str) -> str:
    """Return the end of the name of the others' version, where there are no lines to be marked."""
    return f".{changeset_id}.theirs"


def leads_out(path: str, target: str) -> bool:
    """Say whether a link at ``path`` may lead out of the bundle.

    ``..`` counts only at the beginning: behind another part it could step out of wherever that part leads.
    """
    parts = PurePosixPath(target).parts
    ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return target.startswith("/") or ups > path.count("/") or ".." in parts[ups:]


def leads_into_git(path: str) -> bool:
    """Say whether git's own directory is on a path, under any name that some file system has for it."""
    return any(plain_name(part) in _GIT_NAMES for part in _PARTS.split(path))


def plain_name(name: str) -> str:
    """Return a name as the most forgiving file system sees it: HFS+ and NTFS leave out what is not seen."""
    return name.translate(_UNSEEN).partition(":")[0].rstrip(" .").casefold()


def _misfit(found: Found, path: str, base: Entries) -> str | None:
    if found.kind == "other":
        return "it is no regular file, or its directories are nested too deep"
    if leads_into_git(path):
        return "git keeps that name for itself"
    places = (path, *parents(path))
    if any(place in base and base[place].mode == SUBMODULE for place in places):
        return "a submodule is there"
    return None


def _removed(base: Entries, found: dict[str, Found]) -> list[str]:
    """Return what is not there any more; a submodule never is, and stays."""
    return [path for path, entry in base.items() if path not in found and entry.mode != SUBMODULE]

"""An open changeset: the ref that keeps it, and the directory in which an agent edits its files.

``refs/goondan/changesets/<id>`` points to a commit without changes on top of the base, whose message says who
opened the changeset, why and where. The ref keeps the base from being collected as garbage, and reaches other
machines by the remote. There is no other record of it (000 §12.4).

An agent may put anything into the directory. So git never looks for a repository in it, nothing is run, no
link is followed; what is proposed is read file by file, by its raw content. The directory has the layout of
the repository, so that its ``.gitignore`` files mean what they mean there, but only the bundle's folder is
in it.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Self

from goondan_tasks.changesets.api import ChangesetError
from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.messages import WireModel
from goondan_tasks.revisions.content import BundleRef, Folder, Found
from goondan_tasks.revisions.git import (
    FILE,
    LINK,
    PROGRAM,
    SUBMODULE,
    Author,
    Entries,
    Entry,
    Remote,
    Repository,
)

#: bytes of one file, and of all changed files together
MAX_FILE_BYTES = 16_777_216
MAX_BYTES = 67_108_864
#: how many files a changeset may change, and how many its directory may have, ignored ones included
MAX_CHANGES = 2_000
MAX_FILES = 50_000

#: names that git, or a file system that folds case or shortens names, takes for its own directory
_GIT_NAMES = {".git", "git~1"}
#: what a file system may leave out of a name, or git take for a part's end (git's own utf8.c and path.c)
_UNSEEN = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
_PARTS = re.compile(r"[/\\]")


_REFS = "refs/goondan/changesets/"
_ID = re.compile(r"cs-\d{1,15}-[0-9a-f]{8}")


class Changeset(WireModel):
    """A proposed change of the bundle, as ``goondan changeset list --json`` prints it."""

    changeset_id: str
    #: the revision that it changes
    base_ref: str
    #: its directory: the root of the repository, of which only the bundle's folder is there
    workdir: Path
    opened_at: str
    reason: str = ""
    agent_name: str | None = None
    instance_key: str | None = None

    @property
    def base(self) -> str:
        """The commit of the base."""
        return BundleRef.parse(self.base_ref).digest

    def rebased(self, commit: str) -> Self:
        """Return the changeset with another base."""
        return self.model_copy(update={"base_ref": str(BundleRef("git", commit))})


def new_changeset_id(milliseconds: float) -> str:
    """Make an id: the time, and eight random hex digits."""
    return f"cs-{milliseconds:.0f}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class OpenChangesets:
    """The open changesets of a repository, or of its remote if there is one. All methods raise GitError."""

    repository: Repository
    remote: Remote | None = None

    def find(self, changeset_id: str) -> Changeset | None:
        """Return an open changeset, or ``None``."""
        if _ID.fullmatch(changeset_id) is None:
            return None
        return next((item for item in self.all() if item.changeset_id == changeset_id), None)

    def all(self) -> list[Changeset]:
        """Return all of them, the oldest first."""
        if self.remote is not None:
            self.remote.mirror(_REFS)
        form = "%(refname:lstrip=3)%00%(parent)%00%(contents:body)%00"
        listed = self.repository.git.run("for-each-ref", f"--format={form}", _REFS).decode("utf-8", "replace")
        fields = listed.replace("\0\n", "\0").split("\0")[:-1]
        parsed = [_parsed(*fields[at : at + 3]) for at in range(0, len(fields), 3)]
        return [changeset for changeset in parsed if changeset is not None]

    def save(self, changeset: Changeset) -> None:
        """Store a changeset, new or with another base."""
        repository = self.repository
        message = f"Open a changeset\n\n{changeset.model_dump_json(by_alias=True)}\n"
        commit = repository.commit(
            f"{changeset.base}^{{tree}}", changeset.base, message, Author.of(changeset.agent_name)
        )
        ref = _REFS + changeset.changeset_id
        repository.set_ref(ref, commit, expected=repository.commit_of(ref) or "")
        if self.remote is not None:
            self.remote.push(commit, ref, force=True)

    def delete(self, changeset: Changeset) -> None:
        """Delete the ref of a changeset."""
        ref = _REFS + changeset.changeset_id
        if self.remote is not None:
            self.remote.delete(ref)
        self.repository.delete_ref(ref)


def _parsed(changeset_id: str, base: str, body: str) -> Changeset | None:
    """Read a ref; ``None`` if it is not one of ours: others may write into the remote, too."""
    if _ID.fullmatch(changeset_id) is None:
        return None
    try:
        told = Changeset.model_validate_json(body)
        # whatever it says, no directory of another name is ever removed
        place = {"changeset_id": changeset_id, "workdir": told.workdir.with_name(changeset_id)}
        return told.model_copy(update={**place, "base_ref": str(BundleRef.parse(f"git:{base}"))})
    except (ValueError, BundleRevisionUnavailableError):
        return None


@dataclass(slots=True)
class Proposal:
    """What a changeset proposes."""

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
    #: returns why a path may not be changed: such a file is not even stored
    objection: Callable[[str], str | None] = no_objection

    @property
    def _folder(self) -> Folder:
        return Folder(self.directory)

    def create(self, commit: str) -> None:
        """Make the directory, which must not exist, with the files of a commit."""
        parent = self.directory.parent
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if parent.is_symlink():
            raise FileExistsError(f"{parent} is a link")
        self.directory.mkdir(mode=0o700)
        for path, data in self._outer_ignores(commit):
            self._folder.write(path, data)
        self.put(self.repository.entries(commit))

    def remove(self) -> None:
        """Remove the directory, if it exists."""
        if self.directory.is_symlink():
            self.directory.unlink()
        elif self.directory.exists():
            shutil.rmtree(self.directory)

    def put(self, entries: Entries) -> None:
        """Write files; a submodule has none."""
        kept = {path: entry for path, entry in entries.items() if entry.mode != SUBMODULE}
        contents = self.repository.blobs(entry.blob for entry in kept.values())
        for (path, entry), data in zip(kept.items(), contents, strict=True):
            self.write(path, data, entry.mode)

    def write(self, path: str, data: bytes, mode: str = FILE) -> None:
        """Write one file."""
        place = self.repository.prefix + path
        self._folder.write(place, data, is_executable=mode == PROGRAM, is_link=mode == LINK)

    def take_away(self, path: str) -> None:
        """Remove one file."""
        self._folder.remove(self.repository.prefix + path)

    def proposal(self, base: Entries) -> Proposal:
        """Read what is proposed as a change of ``base``; new files are stored as blobs.

        Raises:
            ChangesetError: there are too many files.
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
        if path in base and self._is_same(found, base[path]):
            return
        reason = self._objection(proposal, found, path)
        if reason is not None:
            proposal.misfits[path] = reason
        elif found.kind == "link":
            self._propose_link(proposal, found, path)
        else:
            proposal.size += found.size
            with self._folder.reading(found.path) as file:
                proposal.changes[path] = Entry(found.mode, self.repository.write_blob(file))

    def _is_same(self, found: Found, entry: Entry) -> bool:
        # a file that is too large is only read if its size is the same
        if found.mode != entry.mode:
            return False
        if found.size > MAX_FILE_BYTES and found.size != self.repository.size(entry.blob):
            return False
        digest = self._folder.digest(found, self.repository.algorithm, head="blob {size}\0")
        return digest == entry.blob

    def _objection(self, proposal: Proposal, found: Found, path: str) -> str | None:
        # checked before the blob is stored: git keeps unreferenced objects for a long time
        if len(proposal.changes) >= MAX_CHANGES:
            return f"more than {MAX_CHANGES} files are changed"
        if found.size > MAX_FILE_BYTES:
            return f"it is larger than {MAX_FILE_BYTES} bytes"
        if proposal.size + found.size > MAX_BYTES:
            return f"the files that are changed are larger than {MAX_BYTES} bytes together"
        # what a conflict has left beside a file is reported as a conflict
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
        # "./" keeps a name that begins with a colon from being a pattern
        start = f"./{self.repository.prefix}"
        git = replace(self.repository.git, folder=self.directory, work_tree=self.directory)
        asked = b"".join(os.fsencode(start + path) + b"\0" for path in paths)
        if not asked:
            return set()
        printed = git.run("check-ignore", "-z", "--stdin", "--no-index", stdin=asked, accepted=(0, 1))
        return {name.removeprefix(start) for name in os.fsdecode(printed).split("\0") if name}

    def _outer_ignores(self, commit: str) -> Iterator[tuple[str, bytes]]:
        # of the directories that the bundle's folder is in
        root = replace(self.repository, prefix="")
        outer = [f"{parent}/" for parent in parents(self.repository.prefix.rstrip("/"))]
        for folder in ["", *outer] if self.repository.prefix else []:
            name = f"{folder}.gitignore"
            listed = root.git.run("ls-tree", "-z", "--full-tree", commit, "--", name)
            if listed.startswith((b"100644 ", b"100755 ")):
                yield name, root.blob(listed.split()[2].decode())


def theirs_suffix(changeset_id: str) -> str:
    """Return what the others' version of a file has added to its name, if there are no lines to mark."""
    return f".{changeset_id}.theirs"


def leads_out(path: str, target: str) -> bool:
    """Return whether a link at ``path`` may lead out of the bundle.

    ``..`` is allowed only at the beginning: behind another part it would start from where that part leads.
    """
    parts = PurePosixPath(target).parts
    ups = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return target.startswith("/") or ups > path.count("/") or ".." in parts[ups:]


def leads_into_git(path: str) -> bool:
    """Return whether git's own directory is on a path, under any name that a file system has for it."""
    return any(plain_name(part) in _GIT_NAMES for part in _PARTS.split(path))


def plain_name(name: str) -> str:
    """Return a name as the most lenient file system reads it: HFS+ and NTFS ignore invisible characters."""
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
    # a submodule is never in the directory, and stays
    return [path for path, entry in base.items() if path not in found and entry.mode != SUBMODULE]


def parents(path: str) -> Iterator[str]:
    """Yield the directories that a path is in, the innermost first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path

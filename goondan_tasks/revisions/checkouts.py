"""Where the revisions of a bundle come from, and their checkouts in ``GOONDAN_CACHE_DIR``.

A checkout is made under another name and renamed when it is complete, so that a process that dies leaves
nothing half made. A process that uses one holds a shared lock (flock) on its directory, which the kernel
releases at the process's death; only an unlocked one is removed.
"""

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.content import BundleRef, Folder, content_files, content_ref
from goondan_tasks.revisions.git import (
    LINK,
    PROGRAM,
    Branch,
    GitError,
    Remote,
    Repository,
    forget_fetched,
)

#: how long a directory may be in the making, or in removal, before it counts as left over
ASIDE_SECONDS = 3600.0
_ASIDE = ".aside-"
_FOLDER = "revisions"


class SourceFile(NamedTuple):
    """A file of a revision; ``data`` of a link is its target."""

    path: str
    data: bytes
    is_executable: bool
    is_link: bool


@dataclass(frozen=True, slots=True)
class RevisionSource:
    """The revisions of the bundle at ``bundle``, a directory or a file, with its repository if it has one."""

    bundle: Path
    repository: Repository | None = None
    remote: Remote | None = None

    @classmethod
    def of(cls, bundle: Path, remote: str | None = None) -> "RevisionSource":
        """Find the repository of a bundle; raises GitError if there is one that git cannot use."""
        bundle = bundle.resolve()
        repository = Repository.find(_folder(bundle))
        if repository is None:
            return cls(bundle)
        return cls(bundle, repository, Remote(repository, remote) if remote else None)

    @property
    def folder(self) -> Path:
        """The bundle's folder."""
        return _folder(self.bundle)

    @property
    def inside(self) -> str:
        """The bundle from its folder: a file's name, or ``.``."""
        return "." if self.bundle.is_dir() else self.bundle.name

    def current(self) -> BundleRef:
        """Return the ref of the bundle as it is on disk now.

        With uncommitted changes, or outside of git, that is the digest of its content.

        Raises:
            BundleRevisionUnavailableError, GitError: it cannot be read.
        """
        repository = self.repository
        commit = repository.commit_of("HEAD") if repository else None
        if repository and commit and repository.entries(commit) and not repository.has_changes():
            return BundleRef("git", commit)
        return content_ref(self.folder)

    def named(self, name: str | None) -> BundleRef:
        """Return the revision of a ref, or of any name that git has for a commit.

        Without a name it is the last commit of the branch; outside of git, the files as they are.

        Raises:
            BundleRevisionUnavailableError: there is no such revision.
            GitError: the remote, from which other machines would fetch it, does not have it; or git fails.
        """
        repository = self.repository
        if repository is None or (name is not None and name.startswith("sha256:")):
            current = self.current()
            if name not in {None, str(current)}:
                raise unknown_revision(name)
            return current
        branch = Branch(repository, self.remote)
        commit = branch.tip() if name is None else repository.commit_of(name.removeprefix("git:"))
        if commit is None or not repository.entries(commit):
            raise unknown_revision(name)
        if self.remote is not None:
            there = self.remote.commit_of(repository.branch())
            if there is None or not repository.is_ancestor(commit, there):
                message = f"The remote {self.remote.name} does not have {commit}."
                raise GitError(message, suggestion="Push it: other machines fetch it from there.")
        return BundleRef("git", commit)

    def files(self, ref: BundleRef) -> Iterator[SourceFile]:
        """Yield the files of a revision, fetched from the remote if they are missing.

        For a ``sha256:`` ref these are the present files; the caller compares their digest.

        Raises:
            BundleRevisionUnavailableError: they cannot be read or fetched.
        """
        return self._committed(ref) if ref.scheme == "git" else self._present()

    def tree_files(self, tree: str) -> Iterator[SourceFile]:
        """Yield the files of a local commit or tree.

        Raises:
            BundleRevisionUnavailableError: the bundle is not in it.
            GitError: it cannot be read.
        """
        repository = self._require_repository()
        listed = repository.entries(tree).items()
        entries = [(path, entry) for path, entry in listed if entry.is_file or entry.mode == LINK]
        if not entries:
            raise BundleRevisionUnavailableError(f"The bundle is not in {tree}.")
        contents = repository.blobs(entry.blob for _, entry in entries)
        for (path, entry), data in zip(entries, contents, strict=True):
            yield SourceFile(path, data, entry.mode == PROGRAM, entry.mode == LINK)

    def _require_repository(self) -> Repository:
        if self.repository is None:
            raise BundleRevisionUnavailableError(f"The bundle {self.bundle} is in no git repository.")
        return self.repository

    def _committed(self, ref: BundleRef) -> Iterator[SourceFile]:
        repository = self._require_repository()
        try:
            self._fetch_missing(repository, ref)
            yield from self.tree_files(ref.digest)
        except GitError as error:
            raise BundleRevisionUnavailableError(f"The revision {ref} cannot be had: {error}") from error

    def _fetch_missing(self, repository: Repository, ref: BundleRef) -> None:
        if repository.commit_of(ref.digest):
            return
        if self.remote is None:
            raise BundleRevisionUnavailableError(f"The revision {ref} is not on this machine.")
        try:
            self.remote.fetch(ref.digest)
        except GitError:  # not every server gives single commits
            self.remote.fetch_branches()
        if repository.commit_of(ref.digest) is None:
            raise BundleRevisionUnavailableError(f"The remote {self.remote.name} has no revision {ref}.")

    def _present(self) -> Iterator[SourceFile]:
        folder = Folder(self.folder)
        try:
            for found in content_files(self.folder):
                if found.kind == "link":
                    yield SourceFile(found.path, folder.link_target(found.path), False, True)
                    continue
                with folder.reading(found.path) as file:
                    yield SourceFile(found.path, file.read(), found.is_executable, False)
        except OSError as error:
            raise BundleRevisionUnavailableError(f"The bundle cannot be read: {error}") from error


def unknown_revision(name: str | None) -> BundleRevisionUnavailableError:
    """Return the error for a name that git takes for no commit, or for more than one."""
    message = "The bundle is not committed." if name is None else f"There is no revision {name[:100]!r} here."
    suggestion = "`goondan changeset log` shows the revisions. If it is the beginning of several, add digits."
    return BundleRevisionUnavailableError(message, suggestion=suggestion)


def write_revision(files: Iterable[SourceFile], folder: Folder) -> None:
    """Write the files of a revision into an empty folder; raises OSError if that fails."""
    for file in files:
        folder.write(file.path, file.data, is_executable=file.is_executable, is_link=file.is_link)


def _folder(bundle: Path) -> Path:
    return bundle if bundle.is_dir() else bundle.parent


@dataclass(slots=True)
class Checkout(contextlib.AbstractContextManager["Checkout"]):
    """The files of one revision, which are kept until it is closed."""

    ref: BundleRef
    #: what ``load_bundle`` takes: a directory or a file
    path: Path
    _descriptor: int | None

    def close(self) -> None:
        """Release the files; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Checkouts:
    """The checkouts of one bundle's revisions on this machine."""

    cache: Path
    source: RevisionSource
    clock: Callable[[], float] = time.time

    @property
    def directory(self) -> Path:
        """The directory of all checkouts, of any bundle."""
        return self.cache / _FOLDER

    def open(self, ref: BundleRef) -> Checkout:
        """Return the checkout of a revision, made if it is missing.

        Raises:
            BundleRevisionUnavailableError: the revision cannot be fetched or written.
        """
        place = self.directory / self._name(ref)
        try:
            while (descriptor := _locked(place, fcntl.LOCK_SH)) is None:
                self._make(place, ref)
            with contextlib.ExitStack() as undo:
                undo.callback(os.close, descriptor)  # else it stays locked as long as this process lives
                os.utime(descriptor, (self.clock(), self.clock()))
                undo.pop_all()
        except OSError as error:
            message = f"The revision {ref} cannot be checked out: {error}"
            raise BundleRevisionUnavailableError(
                message, suggestion="Make room, or set GOONDAN_CACHE_DIR to a directory that can be written."
            ) from error
        return Checkout(ref, place / self.source.inside, descriptor)

    def _name(self, ref: BundleRef) -> str:
        """Return a name made of the ref and the bundle's folder: a repository may hold several bundles."""
        repository = self.source.repository
        prefix = repository.prefix if repository and ref.scheme == "git" else ""
        folder = uuid.uuid5(uuid.NAMESPACE_URL, prefix).hex[:12] if prefix else "root"
        return f"{ref.scheme}-{ref.digest}-{folder}"

    def _make(self, place: Path, ref: BundleRef) -> None:
        _require_content(self.source.folder, ref)  # before all of it is copied in vain
        aside = self.directory / f"{_ASIDE}{uuid.uuid4().hex}"
        aside.mkdir(mode=0o700, parents=True)
        try:
            write_revision(self.source.files(ref), Folder(aside))
            _require_content(aside, ref)
            try:
                aside.rename(place)
            except OSError:
                if not place.is_dir():  # else another process has made it meanwhile
                    raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def forget_fetched(self) -> None:
        """Let git collect the revisions that were fetched and have no checkout any more.

        Raises:
            GitError, OSError: the refs or the checkouts cannot be listed.
        """
        repository = self.source.repository
        if repository is not None and self.source.remote is not None:
            names = {place.name.split("-")[1] for place in self.directory.glob("git-*")}
            forget_fetched(repository, kept=names)


def _require_content(folder: Path, ref: BundleRef) -> None:
    if ref.scheme == "sha256" and content_ref(folder) != ref:
        raise BundleRevisionUnavailableError(f"The files of the bundle are not those of {ref} any more.")


def clean_checkouts(
    cache: Path, older_than_seconds: float, *, clock: Callable[[], float] = time.time
) -> list[str]:
    """Remove the checkouts, of any bundle, not opened for so long and not in use; return their names.

    Raises:
        OSError: one cannot be removed; the others are.
    """
    directory, now = cache / _FOLDER, clock()
    removed: list[str] = []
    faults: list[OSError] = []
    for place in sorted(directory.glob("*")) if directory.is_dir() else ():
        age = ASIDE_SECONDS if place.name.startswith(_ASIDE) else older_than_seconds
        try:
            if place.stat().st_mtime < now - age and _remove_unused(place):
                removed.append(place.name)
        except FileNotFoundError:  # another process has removed it
            continue
        except OSError as error:
            faults.append(error)
    if faults:
        raise faults[0]
    return removed


def _locked(place: Path, operation: int) -> int | None:
    """Open and lock a checkout; ``None`` if it does not exist, or was removed before it was locked."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, descriptor)
        fcntl.flock(descriptor, operation)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), place.stat()):
                undo.pop_all()
                return descriptor
    return None


def _remove_unused(place: Path) -> bool:
    try:
        descriptor = _locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if descriptor is None:
        return False
    try:
        # a process that opens it now finds nothing under its name, and makes another one
        aside = place.with_name(f"{_ASIDE}{uuid.uuid4().hex}")
        place.rename(aside)
        shutil.rmtree(aside)
    finally:
        os.close(descriptor)
    return True

"""Checkouts of revisions in ``GOONDAN_CACHE_DIR``: made at once or not at all, shared by processes.

A checkout is made under another name and renamed when it is complete, so that a process that dies leaves
nothing half made. Whoever uses one holds a shared lock (flock) on its directory, which the kernel takes
back from the dead; only one that nobody holds is removed.
"""

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.bundle_ref import BundleRef
from goondan_tasks.revisions.content import content_ref
from goondan_tasks.revisions.folder import Folder
from goondan_tasks.revisions.remote import forget_fetched
from goondan_tasks.revisions.source import RevisionSource, write_revision

#: what somebody makes or removes is waste only after this time
ASIDE_SECONDS = 3600.0
_ASIDE = ".aside-"
_FOLDER = "revisions"


@dataclass(slots=True)
class Checkout:
    """The files of one revision, which stay until it is closed."""

    ref: BundleRef
    #: what ``load_bundle`` takes: a directory or a file
    path: Path
    _descriptor: int | None

    def close(self) -> None:
        """Let the files go; a second time does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Checkouts:
    """The checkouts of one bundle's revisions on this machine."""

    cache: Path
    source: RevisionSource
    clock: Callable[[], float] = time.time

    @property
    def directory(self) -> Path:
        """Where they are. Bundles with equal refs have equal files, but not always the same folder in git."""
        return self.cache / _FOLDER

    def open(self, ref: BundleRef) -> Checkout:
        """Return the checkout of a revision, made if it is missing.

        Raises:
            BundleRevisionUnavailableError: the revision cannot be got, or there is no room for it.
        """
        place = self.directory / self._name(ref)
        try:
            while (descriptor := _locked(place, fcntl.LOCK_SH)) is None:
                self._make(place, ref)
            with contextlib.ExitStack() as undo:
                undo.callback(os.close, descriptor)  # else nobody could remove it as long as we live
                os.utime(descriptor, (self.clock(), self.clock()))
                undo.pop_all()
        except OSError as error:
            message = f"The revision {ref} cannot be checked out: {error}"
            raise BundleRevisionUnavailableError(
                message, suggestion="Make room, or set GOONDAN_CACHE_DIR to a directory that can be written."
            ) from error
        return Checkout(ref, place / self.source.inside, descriptor)

    def _name(self, ref: BundleRef) -> str:
        """Name a checkout by its ref, and by the folder in the repository, of which one may have several."""
        repository = self.source.repository
        prefix = repository.prefix if repository and ref.scheme == "git" else ""
        folder = uuid.uuid5(uuid.NAMESPACE_URL, prefix).hex[:12] if prefix else "root"
        return f"{ref.scheme}-{ref.digest}-{folder}"

    def _make(self, place: Path, ref: BundleRef) -> None:
        _require_content(self.source.folder, ref)  # else whoever asks in vain has all of it copied each time
        aside = self.directory / f"{_ASIDE}{uuid.uuid4().hex}"
        aside.mkdir(mode=0o700, parents=True)
        try:
            write_revision(self.source.files(ref), Folder(aside))
            _require_content(aside, ref)
            _put(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def forget_fetched(self) -> None:
        """Let git collect the revisions that were fetched and have no checkout any more.

        Raises:
            GitError: git refuses.
            OSError: the checkouts cannot be listed.
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
    """Remove what nobody has opened for so long, and nobody uses, of any bundle; return the names.

    Raises:
        OSError: something cannot be removed; the rest is.
    """
    directory, now = cache / _FOLDER, clock()
    removed: list[str] = []
    faults: list[OSError] = []
    for place in sorted(directory.glob("*")) if directory.is_dir() else ():
        age = ASIDE_SECONDS if place.name.startswith(_ASIDE) else older_than_seconds
        try:
            if _is_older(place, now - age) and _remove_unused(place):
                removed.append(place.name)
        except OSError as error:
            faults.append(error)
    if faults:
        raise faults[0]
    return removed


def _is_older(place: Path, moment: float) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return place.stat().st_mtime < moment
    return False


def _locked(place: Path, operation: int) -> int | None:
    """Open and lock a checkout; ``None`` if it is not there, or was removed before it was locked."""
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


def _put(aside: Path, place: Path) -> None:
    try:
        aside.rename(place)
    except OSError:
        if not place.is_dir():  # else another process has made it meanwhile
            raise


def _remove_unused(place: Path) -> bool:
    try:
        descriptor = _locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if descriptor is None:
        return False
    try:
        # whoever opens it now finds nothing under its name, and makes it anew
        aside = place.with_name(f"{_ASIDE}{uuid.uuid4().hex}")
        place.rename(aside)
        shutil.rmtree(aside)
    finally:
        os.close(descriptor)
    return True

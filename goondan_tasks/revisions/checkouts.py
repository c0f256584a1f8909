"""The revisions of a bundle: refs, the sources of their files, and checkouts in ``GOONDAN_CACHE_DIR``.

A ref always means the same files: ``git:<40 hex>`` is a commit, for a bundle inside a git repository, and
``sha256:<64 hex>`` a digest of the content, for any other. (A repository of git's newer object format has
64 hex digits after ``git:``, too.) Sources: the SwarmBundleRef of 000 §12.4, DESIGN §3.

A checkout is made under a temporary name and renamed when it is complete, so a process that dies leaves no
partial checkout. A process that uses a checkout holds a shared lock (flock) on its directory, which the
kernel releases when the process dies; only unlocked checkouts are removed.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Literal, Self, cast

from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.machine.inner_path import InnerPath
from goondan_tasks.machine.trees import remove_tree
from goondan_tasks.revisions.git import FILE, LINK, PROGRAM, Branch, GitError, Remote, Repository

Scheme = Literal["git", "sha256"]

_PACKAGES = "node_modules"
#: files of other programs, which are not part of a bundle
NO_CONTENT = frozenset(
    {".DS_Store", ".changesets", ".env", ".git", ".goondan", ".hg", ".idea", ".mypy_cache", ".pytest_cache"}
    | {".ruff_cache", ".svn", ".venv", ".vscode", "__pycache__", _PACKAGES}
)
#: a log in the folder would change the bundle with every line
LOG_SUFFIX = ".log"
#: a bundle may be a single file in a home directory, which must not be read as a whole
MAX_FILES = 20_000
#: levels of directories that a bundle may have
MAX_DEPTH = 64

_REF = re.compile(r"(?P<scheme>git):(?P<digest>[0-9a-f]{40}|[0-9a-f]{64})|sha256:(?P<content>[0-9a-f]{64})")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# a pipe would block without O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: how long a directory may be in the making, or in removal, before it counts as left over
ASIDE_SECONDS = 3600.0
_ASIDE = ".aside-"
_FOLDER = "revisions"


@dataclass(frozen=True, slots=True)
class BundleRef:
    """The name of one revision."""

    scheme: Scheme
    digest: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what :meth:`__str__` wrote; raises BundleRevisionUnavailableError if it is not a ref."""
        match = _REF.fullmatch(text)
        if match is None:
            raise BundleRevisionUnavailableError(f"{text[:100]!r} names no revision of a bundle.")
        return cls(cast(Scheme, match["scheme"] or "sha256"), match["digest"] or match["content"])

    def __str__(self) -> str:
        return f"{self.scheme}:{self.digest}"


@dataclass(frozen=True, slots=True)
class Found:
    """An item of a folder that is not a directory, or is a directory nested too deep."""

    #: from the folder, with ``/``
    path: str
    #: git's mode of a file or link; ``None`` for anything else
    mode: str | None
    size: int = 0


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory on disk that others, such as an agent, may write at the same time; paths start from it.

    No link is followed: every directory is opened from its parent's descriptor with O_NOFOLLOW, and only
    opened files are read. All methods raise OSError.
    """

    root: Path | InnerPath

    def found(self, start: str = "", *, skipped: frozenset[str] = frozenset({".git"})) -> Iterator[Found]:
        """Yield the items below ``start``, except for the names in ``skipped``."""
        parts = _parts(start)
        with self._directory(parts) as directory:
            yield from _below(directory, "".join(f"{part}/" for part in parts), skipped, MAX_DEPTH)

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[FileIO]:
        """Open a regular file; anything else is an OSError."""
        *parents, name = _parts(path)
        with self._directory(parents) as directory:
            descriptor = os.open(name, _FILE, dir_fd=directory)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{path} is not a regular file")
            yield file

    def link_target(self, path: str) -> bytes:
        *parents, name = _parts(path)
        with self._directory(parents) as directory:
            return os.fsencode(os.readlink(name, dir_fd=directory))

    def digest(self, found: Found, algorithm: str, *, head: str = "") -> str:
        """Return the digest of a file's content, or of a link's target.

        ``head`` is put before it, with ``{size}`` filled in.
        """
        if found.mode == LINK:
            target = self.link_target(found.path)
            return hashlib.new(algorithm, head.format(size=len(target)).encode() + target).hexdigest()
        with self.reading(found.path) as file:
            start = head.format(size=os.fstat(file.fileno()).st_size).encode()
            return hashlib.file_digest(file, lambda: hashlib.new(algorithm, start)).hexdigest()

    @contextlib.contextmanager
    def _directory(self, parts: list[str]) -> Iterator[int]:
        with contextlib.ExitStack() as opened:
            if isinstance(self.root, InnerPath):
                directory = opened.enter_context(self.root.open_directory())
            else:
                directory = _opened(opened, str(self.root), None)
            for part in parts:
                directory = _opened(opened, part, directory)
            yield directory


def content_files(folder: Path) -> list[Found]:
    """Return the files and links that make up the content of a bundle's folder, in order of paths.

    Raises:
        BundleRevisionUnavailableError: there are too many, or they cannot be read.
    """
    files: list[Found] = []
    try:
        for found in Folder(folder).found(skipped=NO_CONTENT):
            files.append(found)
            if len(files) > MAX_FILES:
                message = f"The folder of the bundle, {folder}, has more than {MAX_FILES} files."
                raise BundleRevisionUnavailableError(message, suggestion="Give it a folder of its own.")
    except OSError as error:
        raise BundleRevisionUnavailableError(f"The bundle in {folder} cannot be read: {error}") from error
    content = (file for file in files if file.mode and not file.path.endswith(LOG_SUFFIX))
    return sorted(content, key=lambda file: os.fsencode(file.path))


def content_ref(folder: Path) -> BundleRef:
    """Return the ref of a folder's content; raises as :func:`content_files` does.

    It is the SHA-256 over one line for each file, in order of paths: ``<mode> <path> NUL <SHA-256 of the
    content> LF``, with git's mode. So it is the same on every machine, whatever the owners, times and other
    permissions.
    """
    source, digest = Folder(folder), hashlib.sha256()
    try:
        for found in content_files(folder):
            line = f"{found.mode} ".encode() + os.fsencode(found.path) + b"\0"
            digest.update(line + source.digest(found, "sha256").encode() + b"\n")
    except OSError as error:
        raise BundleRevisionUnavailableError(f"The bundle in {folder} cannot be read: {error}") from error
    return BundleRef("sha256", digest.hexdigest())


def copy_content(folder: Path, target: Path) -> None:
    """Copy the content of a bundle's folder into an empty one; raises as content_files, or OSError."""
    source = Folder(folder)
    for found in content_files(folder):
        place = target / found.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if found.mode == LINK:
            place.symlink_to(os.fsdecode(source.link_target(found.path)))
            continue
        with source.reading(found.path) as file, place.open("xb") as copy:
            shutil.copyfileobj(file, copy)
        place.chmod(0o755 if found.mode == PROGRAM else 0o644)


def _opened(opened: contextlib.ExitStack, name: str, parent: int | None) -> int:
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    opened.callback(os.close, descriptor)
    return descriptor


def _below(directory: int, prefix: str, skipped: frozenset[str], depth: int) -> Iterator[Found]:
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.name not in skipped)
    for name in names:
        status = os.lstat(name, dir_fd=directory)
        path = f"{prefix}{name}"
        if not stat.S_ISDIR(status.st_mode):
            yield Found(path, _mode(status.st_mode), status.st_size)
        elif depth == 0:
            yield Found(path, None)
        else:
            with contextlib.ExitStack() as opened:
                inner = _opened(opened, name, directory)
                yield from _below(inner, f"{path}/", skipped, depth - 1)


def _mode(mode: int) -> str | None:
    if stat.S_ISREG(mode):
        return PROGRAM if mode & 0o100 else FILE
    return LINK if stat.S_ISLNK(mode) else None


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        raise OSError(f"{path} leads out of the folder")
    return parts


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
        repository = Repository.find(cls(bundle).folder)
        return cls(bundle, repository, Remote(repository, remote) if repository and remote else None)

    @property
    def folder(self) -> Path:
        """The bundle's folder."""
        return self.bundle if self.bundle.is_dir() else self.bundle.parent

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
        if repository and commit and repository.bundle_tree(commit) and not repository.has_changes():
            return BundleRef("git", commit)
        return content_ref(self.folder)

    def named(self, name: str | None) -> BundleRef:
        """Return the revision of a ref, or of any name that git has for a commit.

        Without a name it is the last commit of the branch; outside of git, the current files.

        Raises:
            BundleRevisionUnavailableError: there is no such revision.
            GitError: the remote, from which other machines fetch, does not have it; or git fails.
        """
        repository = self.repository
        if repository is None or (name is not None and name.startswith("sha256:")):
            current = self.current()
            if name not in {None, str(current)}:
                raise unknown_revision(name)
            return current
        branch = Branch(repository, self.remote)
        commit = branch.tip() if name is None else repository.commit_of(name.removeprefix("git:"))
        if commit is None or repository.bundle_tree(commit) is None:
            raise unknown_revision(name)
        if self.remote is not None:
            there = self.remote.commit_of(repository.branch())
            if there is None or not repository.is_ancestor(commit, there):
                message = f"The remote {self.remote.name} does not have {commit}."
                raise GitError(message, suggestion="Push it: other machines fetch it from there.")
        return BundleRef("git", commit)

    def write_files(self, ref: BundleRef, folder: Path) -> None:
        """Write the files of a revision into an empty folder, fetched from the remote if they are missing.

        Raises:
            BundleRevisionUnavailableError: they cannot be read or fetched.
            OSError: they cannot be written.
        """
        if ref.scheme == "sha256":
            copy_content(self.folder, folder)
            if content_ref(folder) != ref:
                raise BundleRevisionUnavailableError(
                    f"The files of the bundle are not those of {ref} any more."
                )
            return
        if self.repository is None:
            raise BundleRevisionUnavailableError(f"The bundle {self.bundle} is in no git repository.")
        try:
            self._fetch_missing(self.repository, ref)
            tree = self.repository.bundle_tree(ref.digest)
            if tree is None:
                raise BundleRevisionUnavailableError(f"The bundle is not in {ref}.")
            self.repository.write_files(tree, folder)
        except GitError as error:
            raise BundleRevisionUnavailableError(f"The revision {ref} cannot be had: {error}") from error

    def _fetch_missing(self, repository: Repository, ref: BundleRef) -> None:
        if repository.commit_of(ref.digest):
            return
        if self.remote is None:
            raise BundleRevisionUnavailableError(f"The revision {ref} is not on this machine.")
        try:
            self.remote.fetch(ref.digest)
        except GitError:  # not every server allows fetching single commits
            self.remote.fetch_branches()
        if repository.commit_of(ref.digest) is None:
            raise BundleRevisionUnavailableError(f"The remote {self.remote.name} has no revision {ref}.")


def unknown_revision(name: str | None) -> BundleRevisionUnavailableError:
    """Return the error for a name that matches no commit, or more than one."""
    message = "The bundle is not committed." if name is None else f"There is no revision {name[:100]!r} here."
    suggestion = "`goondan changeset log` shows the revisions. If it is the beginning of several, add digits."
    return BundleRevisionUnavailableError(message, suggestion=suggestion)


@dataclass(slots=True)
class Checkout(contextlib.AbstractContextManager["Checkout"]):
    """The files of one revision, which stay in place until it is closed."""

    ref: BundleRef
    #: the argument of ``load_bundle``: a directory or a file
    path: Path
    _descriptor: int | None

    @property
    def folder(self) -> Path:
        """The folder of the files, without links."""
        return (self.path if self.path.is_dir() else self.path.parent).resolve()

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
                undo.callback(os.close, descriptor)  # otherwise it stays locked until this process ends
                os.utime(descriptor, (self.clock(), self.clock()))
                self._link_packages(place)
                undo.pop_all()
        except OSError as error:
            message = f"The revision {ref} cannot be checked out: {error}"
            raise BundleRevisionUnavailableError(
                message, suggestion="Make room, or set GOONDAN_CACHE_DIR to a directory that can be written."
            ) from error
        return Checkout(ref, place / self.source.inside, descriptor)

    def _link_packages(self, place: Path) -> None:
        """Let files import the npm packages that are installed at the bundle's original place."""
        folder = self.source.folder
        places = (parent / _PACKAGES for parent in (folder, *folder.parents))
        packages = next((packages for packages in places if packages.is_dir()), None)
        if packages is not None:
            with contextlib.suppress(FileExistsError):
                (place / _PACKAGES).symlink_to(packages)

    def discard(self, ref: BundleRef) -> None:
        """Remove the checkout of a revision unless it is in use; raises OSError."""
        _remove_unused(self.directory / self._name(ref))

    def _name(self, ref: BundleRef) -> str:
        """Return a name made of the ref and the bundle's folder: a repository may hold several bundles."""
        repository = self.source.repository
        prefix = repository.prefix if repository and ref.scheme == "git" else ""
        folder = uuid.uuid5(uuid.NAMESPACE_URL, prefix).hex[:12] if prefix else "root"
        return f"{ref.scheme}-{ref.digest}-{folder}"

    def _make(self, place: Path, ref: BundleRef) -> None:
        aside = self.directory / f"{_ASIDE}{uuid.uuid4().hex}"
        aside.mkdir(mode=0o700, parents=True)
        try:
            self.source.write_files(ref, aside)
            try:
                aside.rename(place)
            except OSError:
                if not place.is_dir():  # otherwise another process has made it meanwhile
                    raise
        finally:
            with contextlib.suppress(OSError):
                remove_tree(aside)


def clean_checkouts(
    cache: Path, older_than_seconds: float, *, clock: Callable[[], float] = time.time
) -> list[str]:
    """Remove unused checkouts of any bundle that were not opened for that time; return their names.

    Raises:
        OSError: one cannot be removed; the others are removed.
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
        # a process that opens it now does not find it under its name, and makes a new one
        aside = place.with_name(f"{_ASIDE}{uuid.uuid4().hex}")
        place.rename(aside)
        remove_tree(aside)
    finally:
        os.close(descriptor)
    return True

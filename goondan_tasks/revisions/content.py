"""The files of a bundle: the ref that names a revision of them, and safe access to their folder.

A ref always means the same files: ``git:<40 hex>`` is a commit, for a bundle inside a git repository, and
``sha256:<64 hex>`` a digest of the content, for any other. (A repository of git's newer object format has
64 hex digits after ``git:``, too.) Sources: the SwarmBundleRef of 000 §12.4, DESIGN §3.
"""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Self, cast

from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.git import FILE, LINK, PROGRAM

Scheme = Literal["git", "sha256"]
Kind = Literal["file", "link", "other"]

#: what programs leave beside a bundle, and no bundle needs
NO_CONTENT = frozenset(
    {
        ".DS_Store",
        ".changesets",
        ".git",
        ".goondan",
        ".hg",
        ".idea",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".venv",
        ".vscode",
        "__pycache__",
        "node_modules",
    }
)
#: a bundle that is one file in a home directory must not have all of it read
MAX_FILES = 20_000
#: levels of directories that a bundle may have
MAX_DEPTH = 64

_REF = re.compile(r"(?P<scheme>git):(?P<digest>[0-9a-f]{40}|[0-9a-f]{64})|sha256:(?P<content>[0-9a-f]{64})")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# a pipe would block without O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: bytes that a digest reads at once
_CHUNK = 1_048_576


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
    """Something in a folder that is not a directory, or a directory that is too deep, as ``other``."""

    #: from the folder, with ``/``
    path: str
    kind: Kind
    is_executable: bool = False
    size: int = 0

    @property
    def mode(self) -> str:
        """Git's mode of a file or link."""
        return LINK if self.kind == "link" else PROGRAM if self.is_executable else FILE


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory on disk that others, such as an agent, may write meanwhile; paths start from it.

    No link is followed on the way to a file: every directory is opened from its parent's descriptor with
    O_NOFOLLOW, and only an opened file is read. All methods raise OSError.
    """

    root: Path

    def found(self, start: str = "", *, skipped: frozenset[str] = frozenset({".git"})) -> Iterator[Found]:
        """Yield what is below ``start``, except for the names in ``skipped``."""
        parts = _parts(start)
        with self._directory(parts) as directory:
            yield from _below(directory, "".join(f"{part}/" for part in parts), skipped, MAX_DEPTH)

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[BinaryIO]:
        """Open a regular file; anything else is an OSError."""
        *parents, name = _parts(path)
        with self._directory(parents) as directory:
            descriptor = os.open(name, _FILE, dir_fd=directory)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{path} is no regular file")
            yield file

    def link_target(self, path: str) -> bytes:
        """Return where a link leads."""
        *parents, name = _parts(path)
        with self._directory(parents) as directory:
            return os.fsencode(os.readlink(name, dir_fd=directory))

    def digest(self, found: Found, algorithm: str, *, head: str = "") -> str:
        """Return the digest of a file's content, or of a link's target.

        ``head`` is put before it, its ``{size}`` filled in. A file that changes meanwhile is an OSError.
        """
        if found.kind == "link":
            target = self.link_target(found.path)
            return hashlib.new(algorithm, head.format(size=len(target)).encode() + target).hexdigest()
        with self.reading(found.path) as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.new(algorithm, head.format(size=size).encode())
            seen = 0
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                seen += len(chunk)
        if seen != size:
            raise OSError(f"{found.path} changes while it is read")
        return digest.hexdigest()

    def write(self, path: str, data: bytes, *, is_executable: bool = False, is_link: bool = False) -> None:
        """Write a file or a link, and the directories on the way to it; none of these may be a link."""
        *parents, name = _parts(path)
        with self._directory(parents, make=True) as directory:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            if is_link:
                os.symlink(data, os.fsencode(name), dir_fd=directory)
                return
            descriptor = os.open(name, _NEW_FILE, 0o755 if is_executable else 0o644, dir_fd=directory)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)

    def remove(self, path: str) -> None:
        """Remove a file or a link, if it exists, and the directories that are empty then."""
        *parents, name = _parts(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with self._directory(parents) as directory:
                os.unlink(name, dir_fd=directory)
            while parents:
                *parents, name = parents
                with self._directory(parents) as directory:
                    try:
                        os.rmdir(name, dir_fd=directory)
                    except OSError:  # it is not empty
                        return

    @contextlib.contextmanager
    def _directory(self, parts: list[str], *, make: bool = False) -> Iterator[int]:
        with contextlib.ExitStack() as opened:
            directory = _opened(opened, str(self.root), None)
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=directory)
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
    return sorted((file for file in files if file.kind != "other"), key=lambda file: os.fsencode(file.path))


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
            yield Found(path, _kind(status.st_mode), bool(status.st_mode & 0o100), status.st_size)
        elif depth == 0:
            yield Found(path, "other")
        else:
            with contextlib.ExitStack() as opened:
                inner = _opened(opened, name, directory)
                yield from _below(inner, f"{path}/", skipped, depth - 1)


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    return "link" if stat.S_ISLNK(mode) else "other"


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        raise OSError(f"{path} leads out of the folder")
    return parts

"""A folder that others write while we read and change it, an agent for one.

No link is followed on the way to a file: every directory is opened from its parent's descriptor with
O_NOFOLLOW, and of a file only what has been opened is read.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

Kind = Literal["file", "link", "other"]

#: levels of directories that a bundle may have
MAX_DEPTH = 64

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# a pipe would block without O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: what ``hash-object`` and a content digest read at once
_CHUNK = 1_048_576


@dataclass(frozen=True, slots=True)
class Found:
    """Something in a folder that is no directory; also a directory that is too deep, as ``other``."""

    #: from the folder, with ``/``
    path: str
    kind: Kind
    is_executable: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory on disk, by paths from it."""

    root: Path

    def found(self, start: str = "", *, skipped: frozenset[str] = frozenset({".git"})) -> Iterator[Found]:
        """Yield what is below ``start``, by paths from the folder; nothing of the names in ``skipped``.

        Raises:
            OSError: a directory cannot be read, or a link is on the way to ``start``.
        """
        parts = _parts(start)
        with self._directory(parts) as directory:
            yield from _below(directory, "".join(f"{part}/" for part in parts), skipped, MAX_DEPTH)

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[BinaryIO]:
        """Open a regular file.

        Raises:
            OSError: it is none, or it cannot be read.
        """
        *parents, name = _parts(path)
        with self._directory(parents) as directory:
            descriptor = os.open(name, _FILE, dir_fd=directory)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{path} is no regular file")
            yield file

    def link_target(self, path: str) -> bytes:
        """Return where a link leads.

        Raises:
            OSError: it is no link.
        """
        *parents, name = _parts(path)
        with self._directory(parents) as directory:
            return os.fsencode(os.readlink(name, dir_fd=directory))

    def digest(self, found: Found, algorithm: str, *, head: str = "") -> str:
        """Return the digest of a file's content, or of where a link leads.

        ``head`` is put before it, its ``{size}`` filled in.

        Raises:
            OSError: it cannot be read, or changes meanwhile.
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
        """Put a file or a link in place, with the directories on the way to it.

        Raises:
            OSError: it cannot be written, or a directory or a link is in its way.
        """
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
        """Remove a file or a link, and the directories that are empty then; nothing if it is not there.

        Raises:
            OSError: it cannot be removed.
        """
        *parents, name = _parts(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with self._directory(parents) as directory:
                os.unlink(name, dir_fd=directory)
            while parents:
                *parents, name = parents
                with self._directory(parents) as directory, contextlib.suppress(FileNotFoundError):
                    if not _remove_empty(name, directory):
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


def _remove_empty(name: str, directory: int) -> bool:
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError:
        return False
    return True

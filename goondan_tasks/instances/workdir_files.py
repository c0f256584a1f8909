"""The files of an instance's workdir, for readers outside the worker; nothing is followed out of it.

Programs of the instance may change the tree meanwhile, so every path is opened component by component
(:mod:`goondan_tasks.machine.inner_path`), and only regular files are read.
"""

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from goondan_tasks.contract.errors import InstanceFileError
from goondan_tasks.contract.messages import WireModel, iso_time
from goondan_tasks.machine.inner_path import unresolved

#: how many files of a workdir are listed, and from how many directories deep: each level is an open file
MOST_FILES = 10_000
MOST_LEVELS = 100
#: how many bytes are read at once
MOST_BYTES = 1024 * 1024
#: a FIFO has no writer to wait for, and a link is none of these
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class InstanceFile(WireModel):
    """A file of a workdir: its path from there, in bytes its size, and when it was changed."""

    path: str
    size: int
    modified_at: str


class FilePart(NamedTuple):
    """A part of a file: its bytes, where they begin, the size of the file, and when it was changed (ns)."""

    data: bytes
    offset: int
    size: int
    changed_at: int
    #: the number of the file in its file system
    inode: int

    def is_of(self, earlier: "FilePart") -> bool:
        """Return whether the file is that of an earlier part: unchanged, or only longer."""
        has_grown = self.size > earlier.size
        return self.inode == earlier.inode and (has_grown or self.changed_at == earlier.changed_at)

    @property
    def next_offset(self) -> int | None:
        """Where the next part begins; ``None`` after the last one."""
        end = self.offset + len(self.data)
        return end if self.data and end < self.size else None


def list_files(workdir: Path) -> list[InstanceFile]:
    """Return the regular files of a workdir by path; a missing workdir has none.

    There are MOST_FILES at most, and none from deeper than MOST_LEVELS directories: programs of the instance
    may make trees that exhaust the stack, or the open files, of their reader. A path that is not UTF-8 has no
    form in JSON or in an address, and is left out.
    """
    try:
        with unresolved(workdir, (), ".").open_directory() as descriptor:
            return sorted(islice(_files(descriptor), MOST_FILES), key=lambda file: file.path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(".", error) from error


def _files(descriptor: int) -> Iterator[InstanceFile]:
    for folder, folders, names, inner in os.fwalk(".", dir_fd=descriptor, follow_symlinks=False):
        if folder.count("/") >= MOST_LEVELS:
            folders.clear()
        for name in names:
            try:
                found = os.stat(name, dir_fd=inner, follow_symlinks=False)
            except OSError:  # it has gone
                continue
            path = Path(folder, name).as_posix()
            if stat.S_ISREG(found.st_mode) and _is_text(path):
                yield InstanceFile(
                    path=path, size=found.st_size, modified_at=iso_time(found.st_mtime_ns / 1_000_000)
                )


def _is_text(path: str) -> bool:
    try:
        return bool(path.encode())
    except UnicodeEncodeError:
        return False


def read_file(workdir: Path, path: str, offset: int, limit: int | None) -> FilePart:
    """Read a part of a file of a workdir, MOST_BYTES at most.

    Raises:
        InstanceFileError: there is no such file, it cannot be read, or the path leads elsewhere.
    """
    parts = tuple(path.split("/"))
    if {"", ".", ".."} & set(parts) or "\0" in path:
        raise InstanceFileError(f"{path[:200]!r} is no path inside a workdir.")
    try:
        with unresolved(workdir, parts, path).open_parent() as (parent, name):
            descriptor = os.open(name, _READING, dir_fd=parent)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise InstanceFileError(f"{path[:200]!r} is not a file.")
            most = MOST_BYTES if limit is None else min(limit, MOST_BYTES)
            data = os.pread(descriptor, most, offset)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: the name has no form in the file system
        raise _unreadable(path, error) from error
    return FilePart(data, offset, found.st_size, found.st_mtime_ns, found.st_ino)


def _unreadable(path: str, error: Exception) -> InstanceFileError:
    reason = error.strerror if isinstance(error, OSError) else error
    return InstanceFileError(f"{path[:200]!r} cannot be read: {reason}.")

"""Paths that stay inside a workdir, also while others change links and directories in it.

A path is first followed to its end, links included, and refused if that is outside. Then the end is opened
component by component, from the workdir's descriptor and without following any link: one that was put there
meanwhile is an error, never a way out. Rule: DESIGN §6, "paths"; O_NOFOLLOW and openat(2).
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.errors import PathOutsideWorkdirError, ToolError

__all__ = ["InnerPath", "locate", "open_file", "replace_file"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that was put there meanwhile must not wait for its other end
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class InnerPath:
    """A place inside a workdir: its components below ``root``, none of them a link when it was located."""

    #: the path as the caller gave it, for messages
    given: str
    root: Path
    parts: tuple[str, ...]

    @property
    def absolute(self) -> Path:
        """The place as an absolute path."""
        return self.root.joinpath(*self.parts)

    @contextmanager
    def open_directory(self, *, make: bool = False) -> Iterator[int]:
        """Open the place as a directory and give its descriptor; ``make`` makes what is missing.

        Raises:
            OSError: there is none, or a link was put on the way.
        """
        with self._naming_the_path():
            descriptor = _descend(self.root, self.parts, make=make)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def open_parent(self, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the directory that holds the place; give its descriptor and the place's name in it.

        Raises:
            OSError: there is none, or the place is the workdir itself.
        """
        if not self.parts:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.given)
        parent = InnerPath(self.given, self.root, self.parts[:-1])
        with parent.open_directory(make=make) as descriptor, self._naming_the_path():
            yield descriptor, self.parts[-1]

    @contextmanager
    def _naming_the_path(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.given) from error


def locate(workdir: Path, path: str) -> InnerPath:
    """Follow ``path``, absolute or relative to ``workdir``, to its end, which need not exist.

    Raises:
        PathOutsideWorkdirError: it ends outside the workdir.
        ToolError: no file can have such a name.
        OSError: there is no workdir.
    """
    _check_is_a_name(path)
    root = workdir.resolve(strict=True)
    place = Path(os.path.realpath(root / path))
    if not place.is_relative_to(root):
        raise PathOutsideWorkdirError(f"The path leads outside the workdir: {path!r}")
    return InnerPath(path, root, place.relative_to(root).parts)


def _check_is_a_name(path: str) -> None:
    try:
        has_nul = b"\0" in os.fsencode(path)
    except UnicodeEncodeError:  # a lone surrogate
        has_nul = True
    if has_nul:
        raise ToolError(f"No file can have this name: {path!r}")


def open_file(directory: int, name: str, flags: int) -> int:
    """Open a regular file in a directory, given by its descriptor, without following a link.

    Raises:
        ToolError: it is no regular file.
        OSError: it is a directory, or cannot be opened.
    """
    with suppress(FileNotFoundError):
        _check_is_file(os.stat(name, dir_fd=directory, follow_symlinks=False), name)
    descriptor = os.open(name, flags | _FILE, 0o666, dir_fd=directory)
    with ExitStack() as closing:
        closing.callback(os.close, descriptor)
        _check_is_file(os.fstat(descriptor), name)
        closing.pop_all()
    return descriptor


def replace_file(directory: int, name: str, data: bytes, *, mode: int | None = None) -> None:
    """Put a new file in the place of ``name``; who reads meanwhile sees the old content or the new.

    Other names of the old file (hard links) keep its content. Without ``mode`` the umask decides.

    Raises:
        OSError: it cannot be written; the old file is as it was, and nothing is left behind.
    """
    fresh = f".{secrets.token_hex(8)}.tmp"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(data)
        os.replace(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.unlink(fresh, dir_fd=directory)
        raise


def _check_is_file(found: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"Not a regular file: {name!r}", suggestion="Name a file, no device, socket or pipe.")


def _descend(root: Path, parts: Sequence[str], *, make: bool) -> int:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor

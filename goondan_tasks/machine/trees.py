"""Directory trees of any depth. ``shutil.rmtree`` and ``os.walk`` of Python 3.11 recurse.

Agents and tools make such trees: 1,500 levels need no more than a loop. No symbolic link is followed.
"""

import itertools
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_PATH (Linux) opens a directory that may not be read
_UNREADABLE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str | Path, *, dir_fd: int | None = None) -> None:
    """Remove a directory, read-only parts included; ``path`` may be relative to the directory ``dir_fd``.

    Directories in it are moved to its top before they are emptied, so neither the stack nor the number of
    open files grows with the depth.

    Raises:
        OSError: something in it cannot be removed; everything else is.
    """
    _permit(path, dir_fd)
    root = os.open(path, _DIRECTORY, dir_fd=dir_fd)
    try:
        names = (f".{uuid.uuid4().hex}-{number}" for number in itertools.count())
        while sum(_removed(root, entry, names) for entry in _entries(root)):
            pass
    finally:
        os.close(root)
    os.rmdir(path, dir_fd=dir_fd)


def walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each directory of a tree with the names of its directories and files, as ``os.walk`` does.

    Names that the caller removes from the directories are not visited.
    """
    pending = [os.fspath(root)]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as found:
                entries = list(found)
        except OSError:
            continue
        folders = [entry.name for entry in entries if _is_directory(entry)]
        links = {entry.name for entry in entries if entry.is_symlink()}
        yield folder, folders, [entry.name for entry in entries if not _is_directory(entry)]
        pending += [os.path.join(folder, name) for name in reversed(folders) if name not in links]  # noqa: PTH118


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _entries(directory: int) -> list[tuple[str, bool]]:
    """Return the names in a directory, and whether each is a directory."""
    with os.scandir(directory) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def _removed(root: int, entry: tuple[str, bool], names: Iterator[str]) -> bool:
    """Remove an entry of ``root``, and move the directories in it there; return whether something changed."""
    name, is_directory = entry
    try:
        if not is_directory:
            os.unlink(name, dir_fd=root)
            return True
        _permit(name, root)
        has_changed = False
        directory = os.open(name, _DIRECTORY, dir_fd=root)
        try:
            for inner, is_inner_directory in _entries(directory):
                with suppress(OSError):
                    if is_inner_directory:
                        _permit(inner, directory)
                        os.rename(inner, next(names), src_dir_fd=directory, dst_dir_fd=root)
                    else:
                        os.unlink(inner, dir_fd=directory)
                    has_changed = True
        finally:
            os.close(directory)
        with suppress(OSError):
            os.rmdir(name, dir_fd=root)
            has_changed = True
    except OSError:
        return False
    return has_changed


def _permit(path: str | Path, dir_fd: int | None) -> None:
    """Make a directory readable and writable for its owner; package caches, for example, are read-only."""
    if os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode & stat.S_IRWXU == stat.S_IRWXU:
        return
    directory = os.open(path, _UNREADABLE, dir_fd=dir_fd)
    try:
        if hasattr(os, "O_PATH"):  # no fchmod for these, but no link can change this path
            Path(f"/proc/self/fd/{directory}").chmod(0o700)
        else:
            os.fchmod(directory, 0o700)
    finally:
        os.close(directory)

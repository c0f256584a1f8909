"""Paths that stay inside a workdir, even while other processes change links and directories in it.

A path is resolved, links included, and refused if it ends outside. The result is an
:class:`~goondan_tasks.machine.inner_path.InnerPath`. Rule: DESIGN §6, "paths".
"""

import errno
import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from goondan_tasks.contract.errors import PathOutsideWorkdirError, ToolError
from goondan_tasks.machine.inner_path import InnerPath, unresolved

# O_NONBLOCK: a FIFO that was created in between must not block the opening until its other end is opened
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def locate(workdir: Path, path: str) -> InnerPath:
    """Resolve ``path``, absolute or relative to ``workdir``; it need not exist.

    Raises:
        PathOutsideWorkdirError: it ends outside the workdir.
        ToolError: no file can have such a name.
        OSError: the workdir does not exist.
    """
    _check_is_a_name(path)
    top = unresolved(workdir, (), path)
    root = top.base.resolve(strict=True).joinpath(*top.workdir)
    root.lstat()
    place = Path(os.path.realpath(root / path))
    if not place.is_relative_to(root):  # also if a link has taken the workdir's place
        raise PathOutsideWorkdirError(f"The path leads outside the workdir: {path!r}")
    return replace(top, parts=place.relative_to(root).parts)


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
        ToolError: it is not a regular file.
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


def _check_is_file(found: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"Not a regular file: {name!r}", suggestion="Name a file, no device, socket or pipe.")

"""Atomic writes, whose concurrent readers see the old content of a file or the new; private directories."""

import itertools
import os
import secrets
from contextlib import ExitStack
from pathlib import Path

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_whole(
    path: Path | str,
    data: bytes,
    *,
    directory: int | None = None,
    mode: int | None = None,
    replaces: bool = True,
    is_durable: bool = False,
) -> None:
    """Write a temporary file in the same directory and rename it; hard links to an old file keep its content.

    ``path`` may be relative to ``directory``, a descriptor. Without ``mode`` the umask decides. With
    ``is_durable`` the file and its name are on the disk when this returns.

    Raises:
        FileExistsError: the file exists, and ``replaces`` is false.
        OSError: the file cannot be written; an old file is unchanged, and the temporary one is removed.
    """
    target = Path(path)
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, _NEW_FILE, 0o666 if mode is None else mode, dir_fd=directory)
    with ExitStack() as undo:
        undo.callback(os.unlink, temporary, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(descriptor)
        if replaces:
            os.replace(temporary, target, src_dir_fd=directory, dst_dir_fd=directory)
            undo.pop_all()
        else:
            os.link(temporary, target, src_dir_fd=directory, dst_dir_fd=directory)
    if is_durable:
        sync_directory(target.parent, directory)


def make_private_directory(path: Path) -> None:
    """Create a directory and the missing ones above it, each for its owner alone; others stay as they are.

    ``Path.mkdir(mode=0o700, parents=True)`` leaves the parents to the umask.

    Raises:
        OSError: a directory cannot be created, or a part of the path is a file.
    """
    missing = [path, *itertools.takewhile(lambda parent: not parent.is_dir(), path.parents)]
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)


def sync_directory(path: Path, directory: int | None = None) -> None:
    """Write a directory's entries to the disk; ``path`` may be relative to ``directory``, a descriptor."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

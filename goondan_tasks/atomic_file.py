"""Files that are written as a whole: concurrent readers see the old content or the new, never a part."""

import os
import secrets
from contextlib import ExitStack
from pathlib import Path

_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_whole(
    path: Path | str,
    data: bytes,
    *,
    directory: int | None = None,
    mode: int | None = None,
    replaces: bool = True,
    is_durable: bool = False,
) -> None:
    """Write a file beside its place, and move it there; hard links to an old file keep its content.

    ``path`` is relative to ``directory``, a descriptor, if there is one. Without ``mode`` the umask decides.
    If it ``is_durable``, the file and its name are on the disk when this returns.

    Raises:
        FileExistsError: it exists, and this one ``replaces`` none.
        OSError: it cannot be written; an old file is unchanged, and nothing is left of the new one.
    """
    place = Path(path)
    fresh = place.with_name(f".{secrets.token_hex(8)}.tmp")
    descriptor = os.open(fresh, _FRESH, 0o666 if mode is None else mode, dir_fd=directory)
    with ExitStack() as undo:
        undo.callback(os.unlink, fresh, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(descriptor)
        if replaces:
            os.replace(fresh, place, src_dir_fd=directory, dst_dir_fd=directory)
            undo.pop_all()
        else:
            os.link(fresh, place, src_dir_fd=directory, dst_dir_fd=directory)
    if is_durable:
        sync_directory(place.parent, directory)


def sync_directory(path: Path, directory: int | None = None) -> None:
    """Write the names in a directory to the disk; ``path`` is relative to ``directory``, if there is one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

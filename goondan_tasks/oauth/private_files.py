"""Files that only their owner may read, replaced whole or not at all."""

import contextlib
import fcntl
import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from goondan_tasks.oauth.oauth_errors import OAuthStoreError

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_POLL_SECONDS = 0.01
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """Say what keeps files below ``path`` from being used in the ``with`` block.

    Raises:
        OAuthStoreError: something does.
    """
    try:
        yield
    except OSError as error:
        raise OAuthStoreError(
            f"{error.filename or path} cannot be used: {error.strerror or error}.",
            suggestion="Let this user write below GOONDAN_STATE_ROOT, and see that the disk has room.",
        ) from error


def make_private_directory(path: Path) -> None:
    """Make a directory, and the one above it if it is missing (the state root), for its owner alone.

    Raises:
        OAuthStoreError: it is there, and others may look into it.
    """
    path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    path.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
    require_private(path)


def require_private(path: Path) -> None:
    """Refuse what is there and open to others.

    Raises:
        OAuthStoreError: it is.
    """
    mode = path.stat().st_mode
    if mode & _OTHERS:
        right = _DIRECTORY_MODE if stat.S_ISDIR(mode) else _FILE_MODE
        raise OAuthStoreError(
            f"{path} is open to others (mode {stat.S_IMODE(mode):04o}).",
            suggestion=f"Close it: chmod {right:o} {path}. If others could read it, rotate the key.",
        )


def write_private(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of the file at ``path``; it is on the disk when this returns."""
    fresh = _written_beside(path, data)
    try:
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def create_private(path: Path, data: bytes) -> bool:
    """Make the file at ``path``; False if there is one, which is left alone."""
    fresh = _written_beside(path, data)
    try:
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    sync_directory(path.parent)
    return True


@contextlib.contextmanager
def lock_file(path: Path, *, wait_seconds: float) -> Iterator[bool]:
    """Hold the lock of a file, made if it is missing; False if it is held for too long.

    It is the descriptor's own (flock(2)): it keeps threads apart too, and ends with the process.
    """
    deadline = time.monotonic() + wait_seconds
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _FILE_MODE)
    try:
        yield _is_locked(descriptor, deadline)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """See to it that the names in a directory are on the disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _is_locked(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True


def _written_beside(path: Path, data: bytes) -> Path:
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    return fresh

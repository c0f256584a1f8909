"""Files that only their owner may read, replaced whole or not at all, several in one step."""

import contextlib
import fcntl
import json
import os
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
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


_NAME = "journal"


def write_together(root: Path, files: Mapping[str, str]) -> None:
    """Write files, named from ``root``; who dies on the way has it done by :func:`finish`."""
    if len(files) > 1:
        write_private(root / _NAME, json.dumps(files).encode())
    _write(root, files)


def finish(root: Path) -> None:
    """Do what somebody has begun and not ended.

    Raises:
        OAuthStoreError: it cannot be read.
    """
    try:
        files = json.loads((root / _NAME).read_bytes())
    except FileNotFoundError:
        return
    except ValueError:
        raise OAuthStoreError(
            f"{root / _NAME} is damaged.", suggestion="Remove it: the consent that it was about is lost."
        ) from None
    _write(root, files)


def _write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        write_private(root / name, text.encode())
    if (root / _NAME).exists():
        (root / _NAME).unlink()
        sync_directory(root)

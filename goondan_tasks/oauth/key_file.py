"""The keys of a machine whose operator has set none: a file with one key a line, the first encrypts."""

import base64
import contextlib
import os
from pathlib import Path

import structlog

from goondan_tasks.errors import ConfigError
from goondan_tasks.oauth.keyring import KEY_BYTES, Key, Keyring
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.private_files import (
    create_private,
    lock_file,
    make_private_directory,
    require_private,
    usable,
    write_private,
)

_log = structlog.get_logger(__name__)

_LOCK_SECONDS = 10.0

#: what tells a file from the one that took its place
_Mark = tuple[int, int, int]


class KeyFile:
    """Keys in a file, which is made with a new key if it is missing; safe in threads and processes.

    A rotation adds a key and keeps the one that encrypted until then. A file without that was changed by
    something else: this process goes on with the keys that it has, and says so in the log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: the file that was read
        self._read: _Mark | None = None
        with usable(path):
            if not path.exists():
                make_private_directory(path.parent)
                create_private(path, _new_key())
        self._ring = self._load()

    @property
    def current(self) -> Key:
        """The key that encrypts; that of a rotation by another process at once, for the old one may go."""
        with contextlib.suppress(OSError):  # without its file what was read goes on
            if _mark(self._path) != self._read:
                self._follow()
        return self._ring.current

    def find(self, key_id: str) -> Key | None:
        """Return the key of that name; one that is not known may have been added by a rotation."""
        known = self._ring.find(key_id)
        if known is None:
            self._follow()
            known = self._ring.find(key_id)
        return known

    def rotate(self) -> Key:
        """Put a new key before the others, so that it encrypts from now on.

        Raises:
            OAuthStoreError: somebody else has been changing the file for long.
        """
        lock = lock_file(self._path.with_name("keys.lock"), wait_seconds=_LOCK_SECONDS)
        with usable(self._path), lock as is_mine:
            if not is_mine:
                raise OAuthStoreError(f"{self._path} is being changed by another process.")
            write_private(self._path, _new_key() + self._path.read_bytes())
        self._follow()
        return self.current

    def _follow(self) -> None:
        """Take the keys that the file has now, if it is still ours."""
        before = self._read
        try:
            ring = self._load()
        except (ConfigError, OAuthStoreError) as error:
            reason = error.message
        else:
            if ring.find(self._ring.current.id) is not None:
                self._ring = ring
                return
            reason = f"{self._path} no longer holds the key {self._ring.current.id}."
        if self._read != before:
            _log.error(
                "oauth.key_file_changed",
                error=reason,
                what_to_do="This process goes on with its keys; the next one cannot read the store. Put the "
                "file back from a backup, and find out who may write there; or set GOONDAN_OAUTH_KEY.",
            )

    def _load(self) -> Keyring:
        """Read the keys.

        Raises:
            ConfigError: a line holds no key.
            OAuthStoreError: others may read the file, or nobody can.
        """
        with usable(self._path):
            self._read = _mark(self._path)  # before its text: a file that comes meanwhile is seen next time
            require_private(self._path)
            lines = self._path.read_text("ascii", errors="replace").splitlines()
        return Keyring.of(line for line in lines if line.strip())


def _mark(path: Path) -> _Mark:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _new_key() -> bytes:
    return base64.b64encode(os.urandom(KEY_BYTES)) + b"\n"

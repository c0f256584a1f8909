"""The OAuth store and its keys in files below the state root, for one machine (000 §10.3, §12.5.3).

``grants/<hash>.json`` and ``sessions/<id>.json`` hold the records, ``asked/<hash>`` the ids of a subject's
sessions. Files in ``locks/`` are locked during a refresh, or name a refresh that is in doubt. Only the owner
may access the files. They are replaced as a whole, by one process at a time. Times are this machine's.
"""

import base64
import contextlib
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import structlog

from goondan_tasks.contract.errors import ConfigError, OAuthStoreError
from goondan_tasks.contract.messages import Clock, JsonObject, epoch_milliseconds
from goondan_tasks.machine.atomic_file import make_private_directory, sync_directory, write_whole
from goondan_tasks.oauth.crypto import KEY_BYTES, Cipher, Key, Keyring
from goondan_tasks.oauth.records import (
    AuthSession,
    OAuthGrant,
    SessionStatus,
    SessionSummary,
    as_of,
    grant_name,
    read_grant,
    read_session,
    read_session_summary,
    write_grant,
    write_session,
)
from goondan_tasks.oauth.store import KEPT_AFTER_SECONDS, ExtendLock, OAuthStore

_log = structlog.get_logger(__name__)

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_POLL_SECONDS = 0.01
_KEY_FILE_WAIT_SECONDS = 10.0
#: writers hold the lock for milliseconds
_WRITE_WAIT_SECONDS = 30.0
_RECORD_NAME = re.compile(r"(sha256:)?[A-Za-z0-9-]{1,80}")


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Turn OSErrors of the ``with`` block into OAuthStoreErrors; ``path`` is named if they name no file."""
    try:
        yield
    except OSError as error:
        raise OAuthStoreError(
            f"{error.filename or path} cannot be used: {error.strerror or error}.",
            suggestion="Let this user write below GOONDAN_STATE_ROOT, and check that the disk has room.",
        ) from error


def _make_private_directory(path: Path) -> None:
    """Create a directory, and the state root above it if that is missing, for their owner alone."""
    make_private_directory(path)
    _require_private(path)


def _require_private(path: Path) -> None:
    """Raise an OAuthStoreError if other users may access a file."""
    mode = path.stat().st_mode
    if mode & _OTHERS:
        private = _DIRECTORY_MODE if stat.S_ISDIR(mode) else _FILE_MODE
        raise OAuthStoreError(
            f"{path} is open to others (mode {stat.S_IMODE(mode):04o}).",
            suggestion=f"Close it: chmod {private:o} {path}. If others could read it, rotate the key.",
        )


def write_private(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file as a whole; it is on disk when this returns.

    Raises:
        FileExistsError: the file exists, and ``replace`` is false.
    """
    write_whole(path, data, mode=_FILE_MODE, replaces=replace, is_durable=True)


@contextlib.contextmanager
def _lock_file(path: Path, *, wait_seconds: float) -> Iterator[bool]:
    """Hold the lock of a file, created if missing; yield False if another holder keeps it too long.

    The lock belongs to the descriptor (flock(2)): it also excludes other threads, and ends with the process.
    """
    deadline = time.monotonic() + wait_seconds
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, _FILE_MODE)) as file:
        is_mine = False
        while not is_mine:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_mine = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(_POLL_SECONDS)
        yield is_mine


class KeyFile(Keyring):
    """The keys of a machine without ``GOONDAN_OAUTH_KEY``, one per line; the first encrypts; thread-safe.

    The file is created with a new key if it is missing. A rotation adds a key and keeps the previous ones. If
    the current key is gone, it was not a rotation that changed the file: this process keeps its keys, and
    logs an error.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: a line is not a key.
            OAuthStoreError: other users may read the file, or it cannot be used.
        """
        self._path = path
        with _usable(path):
            if not path.exists():
                _make_private_directory(path.parent)
                with contextlib.suppress(FileExistsError):
                    write_private(path, _new_key(), replace=False)
        super().__init__(self._load())

    @property
    def current(self) -> Key:
        """The key that encrypts; a rotation by another process changes it."""
        with contextlib.suppress(OSError):  # if the file is gone, the keys that were read stay in use
            if _version(self._path) != self._loaded:
                self._reload()
        return super().current

    def find(self, key_id: str) -> Key | None:
        """Return the key with that id; the file is read again for an unknown one."""
        if super().find(key_id) is None:
            self._reload()
        return super().find(key_id)

    def rotate(self) -> Key:
        """Put a new key before the others, so that it encrypts from now on.

        Raises:
            OAuthStoreError: another process keeps the file locked.
        """
        lock = _lock_file(self._path.with_name("keys.lock"), wait_seconds=_KEY_FILE_WAIT_SECONDS)
        with _usable(self._path), lock as is_mine:
            if not is_mine:
                raise OAuthStoreError(f"{self._path} is being changed by another process.")
            write_private(self._path, _new_key() + self._path.read_bytes())
        self._reload()
        return self.current

    def _reload(self) -> None:
        """Use the keys in the file, if the current one is still among them."""
        before = self._loaded
        try:
            keys = self._load()
        except (ConfigError, OAuthStoreError) as error:
            reason = error.message
        else:
            if self.keys[0].id in {key.id for key in keys}:
                self.keys = keys
                return
            reason = f"{self._path} no longer holds the key {self.keys[0].id}."
        if self._loaded != before:
            _log.error(
                "oauth.key_file_changed",
                error=reason,
                what_to_do="This process keeps its keys; the next one cannot read the store. Restore the "
                "file from a backup, and find out what may write there; or set GOONDAN_OAUTH_KEY.",
            )

    def _load(self) -> tuple[Key, ...]:
        with _usable(self._path):
            self._loaded = _version(self._path)  # before reading: a file replaced meanwhile is read next time
            _require_private(self._path)
            lines = self._path.read_text("ascii", errors="replace").splitlines()
        return Keyring.of(line for line in lines if line.strip()).keys


def _version(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _new_key() -> bytes:
    return base64.b64encode(os.urandom(KEY_BYTES)) + b"\n"


class FileStore(OAuthStore):
    def __init__(self, root: Path, cipher: Cipher, clock: Clock) -> None:
        """Open the store; its directories are created for their owner alone.

        Raises:
            OAuthStoreError: the directories cannot be created, or other users may access them.
        """
        self._root = root
        self._cipher = cipher
        self._clock = clock
        with _usable(root):
            for directory in (root, *(root / name for name in ("grants", "sessions", "asked", "locks"))):
                _make_private_directory(directory)

    def grant(self, oauth_app: str, subject: str) -> OAuthGrant | None:
        name = grant_name(oauth_app, subject)
        document = self._read(_record_file(name))
        return None if document is None else read_grant(document, name, self._cipher)

    def replace_grant(self, grant: OAuthGrant, *, generation: int) -> bool:
        with self._writing():
            if self._generation(grant) != generation:
                return False
            self._write(self._grant_file(grant, generation))
        return True

    def open_session(self, session: AuthSession) -> AuthSession:
        with self._writing():
            pending = self.pending_sessions(session.oauth_app, session.subject)
            live = next((one for one in pending if one.request == session.request), None)
            if live is not None:
                if session.resume and session.resume.target not in {one.target for one in live.resumes}:
                    live = live.model_copy(update={"also_resume": (*live.also_resume, session.resume)})
                    self._write(self._session_file(live))
                return live
            self._remove_expired()
            asked = _asked_file(session.oauth_app, session.subject)
            ids = (*self._session_ids_of(session.oauth_app, session.subject), session.id)
            self._write({asked: "\n".join(ids), **self._session_file(session)})
        return session

    def advance(self, session_id: str, *, status: SessionStatus, to: SessionStatus, reason: str = "") -> bool:
        with self._writing():
            stored = self._stored_session(session_id)
            if stored is None or stored.status != status:
                return False
            if as_of(stored, self._clock()).status == "expired" and to not in {"failed", "expired"}:
                return False
            self._write(
                self._session_file(stored.model_copy(update={"status": to, "reason": reason or None}))
            )
        return True

    def complete(self, session: AuthSession, grant: OAuthGrant) -> bool:
        with self._writing():
            stored = self._stored_session(session.id)
            if stored is None or stored.status != "exchanging":
                return False
            completed = self._session_file(stored.model_copy(update={"status": "completed"}))
            self._write({**completed, **self._grant_file(grant, self._generation(grant))})
        return True

    @contextlib.contextmanager
    def lock(self, oauth_app: str, subject: str, *, wait_seconds: float) -> Iterator[ExtendLock | None]:
        """Lock a grant for a refresh; see OAuthStore.

        This lock does not run out: the system releases it when its holder dies, not while it is frozen.
        """
        path = self._root / "locks" / grant_name(oauth_app, subject).removeprefix("sha256:")
        with contextlib.ExitStack() as held:
            with _usable(self._root):
                is_mine = held.enter_context(_lock_file(path, wait_seconds=wait_seconds))
            yield (lambda _seconds: True) if is_mine else None

    def doubt(self, grant: OAuthGrant, *, seconds: float) -> None:
        until = round(self._clock() + seconds * 1000)
        path = self._root / _doubt_file(grant)
        with _usable(path):
            write_private(path, f"{grant.generation} {until}".encode())

    def is_doubted(self, grant: OAuthGrant) -> bool:
        generation, _, until = (self._read(_doubt_file(grant)) or b"").partition(b" ")
        is_this = generation == str(grant.generation).encode() and until.isdigit()
        return is_this and self._clock() < int(until)

    def _now(self) -> float:
        return self._clock()

    def _grant_names(self) -> list[str]:
        return [f"sha256:{path.stem}" for path in sorted((self._root / "grants").glob("[!.]*.json"))]

    def _session_ids(self) -> list[str]:
        return sorted(path.stem for path in (self._root / "sessions").glob("[!.]*.json"))

    def _session_ids_of(self, oauth_app: str, subject: str) -> list[str]:
        return (self._read(_asked_file(oauth_app, subject)) or b"").decode("ascii", "replace").split()

    def _documents(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | OAuthStoreError, JsonObject]]:
        for name in names:
            try:
                document = self._read(_record_file(name))
            except OAuthStoreError as error:
                yield name, error, {}
            else:
                if document is not None and self._finished(document, name) is None:
                    yield name, document, {}

    def _finished(self, document: bytes, name: str) -> SessionSummary | None:
        """Return the summary of a session whose time is over; a damaged session is kept to be looked at."""
        if name.startswith("as-"):
            with contextlib.suppress(OAuthStoreError):
                session = read_session_summary(document, name)
                end = epoch_milliseconds(session.expires_at) + KEPT_AFTER_SECONDS * 1000
                return session if end <= self._clock() else None
        return None

    def forget(self, name: str) -> bool:
        with self._writing():
            try:
                (self._root / _record_file(name)).unlink()
            except FileNotFoundError:
                return False
        return True

    def _rewrite(self, name: str, change: Callable[[bytes], str | None]) -> bool:
        with self._writing():
            document = self._read(_record_file(name))
            text = None if document is None else change(document)
            if text is not None:
                self._write({_record_file(name): text})
        return text is not None

    def _remove_expired(self) -> None:
        for session_id in self._session_ids():
            document = self._read(_record_file(session_id))
            session = None if document is None else self._finished(document, session_id)
            if session is not None:
                (self._root / _record_file(session_id)).unlink()
                asked = _asked_file(session.oauth_app, session.subject)
                ids = self._session_ids_of(session.oauth_app, session.subject)
                others = [one for one in ids if one != session_id]
                if others:
                    self._write({asked: "\n".join(others)})
                else:
                    (self._root / asked).unlink(missing_ok=True)

    def _generation(self, grant: OAuthGrant) -> int:
        """Return the generation of the stored grant; 0 if there is none."""
        stored = self.grant(grant.oauth_app, grant.subject)
        return 0 if stored is None else stored.generation

    def _grant_file(self, grant: OAuthGrant, replaced_generation: int) -> dict[str, str]:
        stored = grant.model_copy(update={"generation": replaced_generation + 1})
        return {_record_file(grant.name): write_grant(stored, self._cipher)}

    def _session_file(self, session: AuthSession) -> dict[str, str]:
        return {_record_file(session.id): write_session(session, self._cipher)}

    def _stored_session(self, session_id: str) -> AuthSession | None:
        document = self._read(_record_file(session_id))
        return None if document is None else read_session(document, session_id, self._cipher)

    def _read(self, name: str) -> bytes | None:
        path = self._root / name
        with _usable(path), contextlib.suppress(FileNotFoundError):
            _require_private(path)
            return path.read_bytes()
        return None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Be the only writer; a write that a dead process left unfinished is finished first."""
        lock = _lock_file(self._root / "lock", wait_seconds=_WRITE_WAIT_SECONDS)
        with _usable(self._root), lock as is_mine:
            if not is_mine:
                raise OAuthStoreError(
                    f"Another process has been writing to {self._root} for {_WRITE_WAIT_SECONDS:g} s.",
                    suggestion="Look at that process; end it if it hangs.",
                )
            journal = self._root / "journal"
            if journal.exists():
                try:
                    files = json.loads(journal.read_bytes())
                except ValueError:
                    raise OAuthStoreError(
                        f"{journal} is damaged.",
                        suggestion="Remove it: the consent that it was about is lost.",
                    ) from None
                self._apply(files)
            yield

    def _write(self, files: Mapping[str, str]) -> None:
        """Write files, named relative to the root, in one step: after a crash the next writer finishes it."""
        if len(files) > 1:
            write_private(self._root / "journal", json.dumps(files).encode())
        self._apply(files)

    def _apply(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            write_private(self._root / name, text.encode())
        journal = self._root / "journal"
        if journal.exists():
            journal.unlink()
            sync_directory(self._root)


def _record_file(name: str) -> str:
    """Return the file of a record; for a malformed name, one that does not exist."""
    if _RECORD_NAME.fullmatch(name) is None:
        name = "as-"
    return (
        f"sessions/{name}.json" if name.startswith("as-") else f"grants/{name.removeprefix('sha256:')}.json"
    )


def _asked_file(oauth_app: str, subject: str) -> str:
    return f"asked/{grant_name(oauth_app, subject).removeprefix('sha256:')}"


def _doubt_file(grant: OAuthGrant) -> str:
    return f"locks/{grant.name.removeprefix('sha256:')}.doubt"

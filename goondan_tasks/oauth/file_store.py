"""The OAuth store in files below the state root, for one machine (000 §10.3, §12.5.3).

``grants/<hash>.json`` and ``sessions/<id>.json`` hold the records, ``asked/<hash>`` names a subject's
sessions, and the files in ``locks/`` are held by who refreshes, or say which refresh is in doubt. Files are
replaced whole, one writer at a time. Times are this machine's.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from goondan_tasks.messages import epoch_milliseconds
from goondan_tasks.oauth.crypto import Cipher
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.private_files import (
    finish,
    lock_file,
    make_private_directory,
    require_private,
    usable,
    write_private,
    write_together,
)
from goondan_tasks.oauth.record_documents import (
    is_current,
    read_grant,
    read_session,
    read_session_summary,
    read_summary,
    unreadable_session,
    write_grant,
    write_session,
)
from goondan_tasks.oauth.records import (
    AuthSession,
    GrantSummary,
    OAuthGrant,
    Resume,
    SessionStatus,
    SessionSummary,
    as_of,
    grant_name,
    request_name,
)
from goondan_tasks.oauth.store import (
    KEPT_AFTER_SECONDS,
    Keep,
    Unreadable,
    UnreadableRecord,
    done_to_all,
    leave_out,
    refuse,
)
from goondan_tasks.run import Clock

_PLAIN_NAME = re.compile(r"(sha256:)?[A-Za-z0-9-]{1,80}")
#: writers hold the lock for milliseconds
_WRITE_WAIT_SECONDS = 30.0


class FileStore:
    """The grants and sessions below a directory; see OAuthStore."""

    def __init__(self, root: Path, cipher: Cipher, clock: Clock) -> None:
        """Open the store; its directories are made for their owner alone.

        Raises:
            OAuthStoreError: they are open to others, or cannot be made.
        """
        self._root = root
        self._cipher = cipher
        self._clock = clock
        with usable(root):
            for directory in (root, *(root / name for name in ("grants", "sessions", "asked", "locks"))):
                make_private_directory(directory)

    def grant(self, oauth_app: str, subject: str) -> OAuthGrant | None:
        """Return a subject's grant."""
        name = grant_name(oauth_app, subject)
        document = self._read(_grant_file(name))
        return None if document is None else read_grant(document, name, self._cipher)

    def grants(self, unreadable: Unreadable = refuse) -> Iterator[GrantSummary]:
        """Yield what may be shown of all grants, in the order of their names."""
        for hex_name in self._names("grants"):
            name = f"sha256:{hex_name}"
            try:
                document = self._read(_grant_file(name))
                summary = None if document is None else read_summary(document, name)
            except OAuthStoreError as error:
                unreadable(UnreadableRecord(name, error))
            else:
                if summary is not None:
                    yield summary

    def replace_grant(self, grant: OAuthGrant, *, generation: int) -> bool:
        """Store a grant in place of that ``generation`` (0: of none); False if another one stands there."""
        with self._writing():
            if self._generation(grant) != generation:
                return False
            self._write_with({}, grant, generation)
        return True

    def forget_grant(self, name: str) -> bool:
        """Remove the grant of that record, also one that cannot be read; False if there is none."""
        if _PLAIN_NAME.fullmatch(name) is None:
            return False
        return self._unlinked(_grant_file(name))

    def session(self, session_id: str) -> AuthSession | None:
        """Return a session; one that nobody completed in time says ``expired``, and is gone an hour later."""
        document = self._session_document(session_id)
        if document is None or self._is_over(read_session_summary(document, session_id)):
            return None
        return as_of(read_session(document, session_id, self._cipher), self._clock())

    def pending_sessions(self, oauth_app: str, subject: str) -> Iterator[AuthSession]:
        """Yield a subject's live pending sessions."""
        found = self._sessions(self._asked(_asked_file(oauth_app, subject)), leave_out)
        return (session for session in found if session.status == "pending")

    def sessions(self, unreadable: Unreadable = refuse) -> Iterator[AuthSession]:
        """Yield all sessions, in the order of their names."""
        return self._sessions(self._names("sessions"), unreadable)

    def forget_session(self, session_id: str) -> bool:
        """Remove a session, also one that cannot be read; False if there is none."""
        if _PLAIN_NAME.fullmatch(session_id) is None:
            return False
        return self._unlinked(_session_file(session_id))

    def open_session(self, session: AuthSession) -> AuthSession:
        """Store a pending session; a live one for the same is returned instead, and resumes this one too."""
        with self._writing():
            request = request_name(session)
            pending = self.pending_sessions(session.oauth_app, session.subject)
            live = next((one for one in pending if request_name(one) == request), None)
            if live is not None:
                return self._also_resume(live, session.resume)
            self._remove_old()
            asked = _asked_file(session.oauth_app, session.subject)
            ids = "\n".join([*self._asked(asked), session.id])
            write_together(self._root, {asked: ids, **self._written(session)})
        return session

    def advance(self, session_id: str, *, status: SessionStatus, to: SessionStatus, reason: str = "") -> bool:
        """Change a session's status from ``status``; False if it was another one, or the session expired."""
        with self._writing():
            stored = self._session(session_id)
            if stored is None or stored.status != status:
                return False
            if as_of(stored, self._clock()).status == "expired" and to not in {"failed", "expired"}:
                return False
            changed = stored.model_copy(update={"status": to, "reason": reason or None})
            write_together(self._root, self._written(changed))
        return True

    def complete(self, session: AuthSession, grant: OAuthGrant) -> bool:
        """Store the grant, and let its session be completed, in one step; False unless it was exchanging."""
        with self._writing():
            stored = self._session(session.id)
            if stored is None or stored.status != "exchanging":
                return False
            completed = self._written(stored.model_copy(update={"status": "completed"}))
            self._write_with(completed, grant, self._generation(grant))
        return True

    @contextlib.contextmanager
    def lock(self, oauth_app: str, subject: str, *, wait_seconds: float) -> Iterator[Keep | None]:
        """Be the only one who refreshes this grant; ``None`` if that took too long to wait for.

        It does not run out: the system lets it go when its holder has died, and not while it is frozen.
        """
        name = grant_name(oauth_app, subject).removeprefix("sha256:")
        with contextlib.ExitStack() as held:
            with usable(self._root):
                lock = lock_file(self._root / "locks" / name, wait_seconds=wait_seconds)
                is_mine = held.enter_context(lock)
            yield (lambda _seconds: True) if is_mine else None

    def doubt(self, grant: OAuthGrant, *, seconds: float) -> None:
        """Let nobody refresh this generation of a grant for so long: its refresh token may have been used."""
        until = round(self._clock() + seconds * 1000)
        path = self._root / _doubt_file(grant)
        with usable(path):
            write_private(path, f"{grant.generation} {until}".encode())

    def is_doubted(self, grant: OAuthGrant) -> bool:
        """Say whether this generation of a grant must not be refreshed for now."""
        generation, _, until = (self._read(_doubt_file(grant)) or b"").partition(b" ")
        is_this = generation == str(grant.generation).encode() and until.isdigit()
        return is_this and self._clock() < int(until)

    def encrypt_again(self) -> int:
        """Encrypt every record with the current key; return how many were not yet."""
        grants = [partial(self._grant_again, f"sha256:{name}") for name in self._names("grants")]
        sessions = [partial(self._session_again, name) for name in self._names("sessions")]
        return done_to_all([*grants, *sessions])

    def _grant_again(self, name: str) -> int:
        with self._writing():
            document = self._read(_grant_file(name))
            if document is None or is_current(document, name, self._cipher):
                return 0
            grant = read_grant(document, name, self._cipher)
            write_together(self._root, {_grant_file(name): write_grant(grant, self._cipher)})
        return 1

    def _session_again(self, session_id: str) -> int:
        with self._writing():
            document = self._read(_session_file(session_id))
            if document is None or is_current(document, session_id, self._cipher):
                return 0
            write_together(self._root, self._written(read_session(document, session_id, self._cipher)))
        return 1

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        lock = lock_file(self._root / "lock", wait_seconds=_WRITE_WAIT_SECONDS)
        with usable(self._root), lock as is_mine:
            if not is_mine:
                raise OAuthStoreError(
                    f"Another process has been writing to {self._root} for {_WRITE_WAIT_SECONDS:g} s.",
                    suggestion="See what it does; end it if it hangs.",
                )
            finish(self._root)
            yield

    def _unlinked(self, name: str) -> bool:
        with self._writing():
            try:
                (self._root / name).unlink()
            except FileNotFoundError:
                return False
        return True

    def _generation(self, grant: OAuthGrant) -> int:
        standing = self.grant(grant.oauth_app, grant.subject)
        return 0 if standing is None else standing.generation

    def _write_with(self, files: dict[str, str], grant: OAuthGrant, generation: int) -> None:
        """Write files and, in one step with them, a grant in place of that ``generation``."""
        stored = grant.model_copy(update={"generation": generation + 1})
        write_together(self._root, {**files, _grant_file(grant.name): write_grant(stored, self._cipher)})

    def _sessions(self, ids: Iterable[str], unreadable: Unreadable) -> Iterator[AuthSession]:
        for session_id in ids:
            try:
                session = self.session(session_id)
            except OAuthStoreError as error:
                document = self._session_document(session_id) or b""
                unreadable(unreadable_session(document, session_id, error))
            else:
                if session is not None:
                    yield session

    def _session(self, session_id: str) -> AuthSession | None:
        """Return a session as it was written."""
        document = self._session_document(session_id)
        return None if document is None else read_session(document, session_id, self._cipher)

    def _session_document(self, session_id: str) -> bytes | None:
        return self._read(_session_file(session_id)) if _PLAIN_NAME.fullmatch(session_id) else None

    def _written(self, session: AuthSession) -> dict[str, str]:
        return {_session_file(session.id): write_session(session, self._cipher)}

    def _also_resume(self, live: AuthSession, resume: Resume | None) -> AuthSession:
        if resume is None or resume.place in {one.place for one in live.resumes}:
            return live
        joined = live.model_copy(update={"also_resume": (*live.also_resume, resume)})
        write_together(self._root, self._written(joined))
        return joined

    def _asked(self, asked: str) -> list[str]:
        return (self._read(asked) or b"").decode("ascii", "replace").split()

    def _is_over(self, session: SessionSummary) -> bool:
        return epoch_milliseconds(session.expires_at) + KEPT_AFTER_SECONDS * 1000 <= self._clock()

    def _remove_old(self) -> None:
        """Remove the sessions that are over, whatever their key; damaged ones are left for people to see."""
        for session_id in self._names("sessions"):
            with contextlib.suppress(OAuthStoreError):
                document = self._session_document(session_id)
                session = None if document is None else read_session_summary(document, session_id)
                if session is not None and self._is_over(session):
                    self._remove(session_id, session)

    def _remove(self, session_id: str, session: SessionSummary) -> None:
        asked = _asked_file(session.oauth_app, session.subject)
        others = [one for one in self._asked(asked) if one != session_id]
        (self._root / _session_file(session_id)).unlink()
        if others:
            write_together(self._root, {asked: "\n".join(others)})
        else:
            (self._root / asked).unlink(missing_ok=True)

    def _names(self, directory: str) -> list[str]:
        return sorted(path.stem for path in (self._root / directory).glob("[!.]*.json"))

    def _read(self, name: str) -> bytes | None:
        path = self._root / name
        with usable(path), contextlib.suppress(FileNotFoundError):
            require_private(path)
            return path.read_bytes()
        return None


def _grant_file(name: str) -> str:
    return f"grants/{name.removeprefix('sha256:')}.json"


def _doubt_file(grant: OAuthGrant) -> str:
    return f"locks/{grant.name.removeprefix('sha256:')}.doubt"


def _session_file(session_id: str) -> str:
    return f"sessions/{session_id}.json"


def _asked_file(oauth_app: str, subject: str) -> str:
    return f"asked/{grant_name(oauth_app, subject).removeprefix('sha256:')}"

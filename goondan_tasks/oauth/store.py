"""The OAuth store's interface, and what its two implementations share (000 §12.5.3).

Only the manager and the callback write to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial

from goondan_tasks.contract.errors import OAuthStoreError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.oauth.crypto import Cipher
from goondan_tasks.oauth.records import (
    AuthSession,
    GrantSummary,
    OAuthGrant,
    SessionStatus,
    SessionSummary,
    as_of,
    encrypted_again,
    read_session,
    read_session_summary,
    read_summary,
)

#: how long a session is kept after it has expired, so that a late redirect gets a clear answer
KEPT_AFTER_SECONDS = 3_600

#: extends a lock to that many seconds from now; False if it has run out, so that another process may hold it
ExtendLock = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    name: str
    error: OAuthStoreError
    #: the part of a session that needs no key; ``None`` if the record is damaged
    summary: SessionSummary | None = None


#: called with each record that cannot be read
Unreadable = Callable[[UnreadableRecord], object]


def refuse(record: UnreadableRecord) -> None:
    """Stop at a record that cannot be read."""
    raise record.error


def leave_out(_record: UnreadableRecord) -> None:
    """Skip a record that cannot be read."""


class OAuthStore(ABC):
    """Grants and sessions, with their secrets encrypted at rest; its methods block.

    They raise OAuthStoreError, and overwrite nothing, if a record is damaged, was encrypted with a key that
    this process lacks, or its file cannot be used.
    """

    _cipher: Cipher

    @abstractmethod
    def grant(self, oauth_app: str, subject: str) -> OAuthGrant | None:
        """Return a subject's grant."""

    def grants(self, unreadable: Unreadable = refuse) -> Iterator[GrantSummary]:
        """Yield the public part of all grants, which needs no key."""
        for name, document, _ in self._documents(self._grant_names()):
            try:
                summary = read_summary(_content(document), name)
            except OAuthStoreError as error:
                unreadable(UnreadableRecord(name, error))
            else:
                yield summary

    @abstractmethod
    def replace_grant(self, grant: OAuthGrant, *, generation: int) -> bool:
        """Replace the grant of a ``generation`` (0: none); False if another generation is stored."""

    @abstractmethod
    def forget(self, name: str) -> bool:
        """Remove the grant or session with that record name, readable or not; False if there is none."""

    def session(self, session_id: str) -> AuthSession | None:
        """Return a session; after its time it has the status ``expired`` for an hour, and then is gone."""
        return next(self._sessions([session_id], refuse), None)

    def sessions(self, unreadable: Unreadable = refuse) -> Iterator[AuthSession]:
        return self._sessions(self._session_ids(), unreadable)

    def pending_sessions(self, oauth_app: str, subject: str) -> Iterator[AuthSession]:
        """Yield a subject's live pending sessions, without those that cannot be read."""
        found = self._sessions(self._session_ids_of(oauth_app, subject), leave_out)
        return (session for session in found if session.status == "pending")

    @abstractmethod
    def open_session(self, session: AuthSession) -> AuthSession:
        """Store a pending session, or return a live one for the same app, subject and scopes.

        The same step adds the ``resume`` of ``session`` to the live one's ``also_resume``, unless it is there
        already. A session that cannot be read is left as it is, and a new one is stored beside it.
        """

    @abstractmethod
    def advance(self, session_id: str, *, status: SessionStatus, to: SessionStatus, reason: str = "") -> bool:
        """Change a session's status from ``status``; False if it has another one.

        An expired session can only become ``failed`` or ``expired``.
        """

    @abstractmethod
    def complete(self, session: AuthSession, grant: OAuthGrant) -> bool:
        """Store the grant and complete its session, in one step; False unless the session was exchanging.

        The grant replaces any other; its ``generation`` becomes the next one.
        """

    @abstractmethod
    def lock(
        self, oauth_app: str, subject: str, *, wait_seconds: float
    ) -> AbstractContextManager[ExtendLock | None]:
        """Lock a grant for a refresh, across all processes; ``None`` if it stays locked for ``wait_seconds``.

        The lock ends when its holder dies. A holder whose lock has run out does not replace a newer grant.
        """

    @abstractmethod
    def doubt(self, grant: OAuthGrant, *, seconds: float) -> None:
        """Suspend refreshes of this generation of a grant: its refresh token may have been used."""

    @abstractmethod
    def is_doubted(self, grant: OAuthGrant) -> bool:
        """Return whether refreshes of this generation of a grant are suspended."""

    def encrypt_again(self) -> int:
        """Encrypt every record with the current key; return how many had another one.

        Raises:
            OAuthStoreError: a record cannot be read; all others were processed.
        """
        errors, count = list[OAuthStoreError](), 0
        for name in (*self._grant_names(), *self._session_ids()):
            try:
                count += self._rewrite(name, partial(encrypted_again, name=name, cipher=self._cipher))
            except OAuthStoreError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return count

    @abstractmethod
    def _grant_names(self) -> Iterable[str]: ...

    @abstractmethod
    def _session_ids(self) -> Iterable[str]: ...

    @abstractmethod
    def _session_ids_of(self, oauth_app: str, subject: str) -> Iterable[str]: ...

    @abstractmethod
    def _documents(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | OAuthStoreError, JsonObject]]:
        """Yield each record's name and document, and the fields that have changed since it was written."""

    @abstractmethod
    def _rewrite(self, name: str, change: Callable[[bytes], str | None]) -> bool:
        """Replace a record's document atomically with ``change(document)``, unless that is ``None``."""

    @abstractmethod
    def _now(self) -> float: ...

    def _sessions(self, ids: Iterable[str], unreadable: Unreadable) -> Iterator[AuthSession]:
        now = self._now()
        for session_id, document, changes in self._documents(ids):
            try:
                session = read_session(_content(document), session_id, self._cipher)
            except OAuthStoreError as error:
                summary = None
                with suppress(OAuthStoreError):
                    summary = read_session_summary(_content(document), session_id)
                unreadable(UnreadableRecord(session_id, error, summary))
            else:
                yield as_of(session.model_copy(update=changes), now)


def _content(document: bytes | OAuthStoreError) -> bytes:
    if isinstance(document, OAuthStoreError):
        raise document
    return document

"""Where grants and sessions are kept (000 §12.5.3). The manager and the callback are its only writers."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.records import AuthSession, GrantSummary, OAuthGrant, SessionStatus, SessionSummary

#: how long a session is kept after it has expired, so that who comes late is told so
KEPT_AFTER_SECONDS = 3_600
#: how long a lock is kept at first; longer than one exchange with a provider takes, refreshes apart
LOCK_SECONDS = 30.0

#: keeps a lock for so many seconds from now; False if it has run out: another one may have it
Keep = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A grant or session that is there, and cannot be read."""

    name: str
    error: OAuthStoreError
    #: what is known of a session without a key; ``None`` if the record is damaged
    summary: SessionSummary | None = None


#: told of a record that cannot be read
Unreadable = Callable[[UnreadableRecord], object]


def refuse(record: UnreadableRecord) -> None:
    """Read no further."""
    raise record.error


def leave_out(_record: UnreadableRecord) -> None:
    """Go on with the others."""


def done_to_all(steps: Iterable[Callable[[], int]]) -> int:
    """Take every step, and return the sum of what they return.

    Raises:
        OAuthStoreError: a record cannot be read; the steps after it were taken all the same.
    """
    errors: list[OAuthStoreError] = []
    count = 0
    for step in steps:
        try:
            count += step()
        except OAuthStoreError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return count


class OAuthStore(Protocol):
    """Grants and sessions, their secrets encrypted at rest; its methods block.

    Any of them raises OAuthStoreError if a record is damaged, or was encrypted with a key that is not here,
    or if its file cannot be used; nothing is overwritten then.
    """

    def grant(self, oauth_app: str, subject: str) -> OAuthGrant | None:
        """Return a subject's grant."""

    def grants(self, unreadable: Unreadable = refuse) -> Iterable[GrantSummary]:
        """Return what may be shown of all grants; for that no key is needed, but one may be damaged."""

    def forget_grant(self, name: str) -> bool:
        """Remove the grant of that record, also one that cannot be read; False if there is none."""

    def replace_grant(self, grant: OAuthGrant, *, generation: int) -> bool:
        """Store a grant in place of that ``generation`` (0: of none); False if another one stands there."""

    def session(self, session_id: str) -> AuthSession | None:
        """Return a session; one that nobody completed in time says ``expired``, and is gone an hour later."""

    def pending_sessions(self, oauth_app: str, subject: str) -> Iterable[AuthSession]:
        """Return a subject's live pending sessions; those that cannot be read are left out."""

    def sessions(self, unreadable: Unreadable = refuse) -> Iterable[AuthSession]:
        """Return all sessions; those that cannot be read are left out if ``unreadable`` does not raise."""

    def forget_session(self, session_id: str) -> bool:
        """Remove a session, also one that cannot be read; False if there is none."""

    def open_session(self, session: AuthSession) -> AuthSession:
        """Store a pending session; a live one for the same app, subject and scopes is returned instead.

        One that cannot be read is none, and stays as it is beside the new one.
        That one gets this one's ``resume`` into its ``also_resume``, in the same step, unless it is there.
        """

    def advance(self, session_id: str, *, status: SessionStatus, to: SessionStatus, reason: str = "") -> bool:
        """Change a session's status from ``status``; False if it was another one.

        Also if the session has expired, unless it is to be ``failed`` or ``expired``.
        """

    def complete(self, session: AuthSession, grant: OAuthGrant) -> bool:
        """Store the grant, and let its session be completed, in one step; False unless it was exchanging.

        The grant takes the place of any other; its ``generation`` becomes the next after that one's.
        """

    def lock(
        self, oauth_app: str, subject: str, *, wait_seconds: float
    ) -> AbstractContextManager[Keep | None]:
        """Be the only one who refreshes this grant, anywhere; ``None`` if that took too long to wait for.

        It runs out by itself if its holder dies; whoever holds it no longer cannot replace a newer grant.
        """

    def doubt(self, grant: OAuthGrant, *, seconds: float) -> None:
        """Let nobody refresh this generation of a grant for so long: its refresh token may have been used."""

    def is_doubted(self, grant: OAuthGrant) -> bool:
        """Say whether this generation of a grant must not be refreshed for now."""

    def encrypt_again(self) -> int:
        """Encrypt every record with the current key; return how many were not yet.

        One that cannot be read is told of when all others are done.
        """

"""The OAuth store in Redis, for workers on many machines. Times are those of Redis.

A grant has a TTL of a year, which begins anew when it is stored, and when it is read after long: "all other
keys have a TTL" (DESIGN §3), and a consent that nobody has used for a year is none.
Methods raise ``redis.exceptions.RedisError`` as it comes.
"""

import contextlib
import itertools
import json
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from redis import Redis

from broker_config.keys import Keys
from broker_config.scripts import Errand, Script, run_errand
from goondan_tasks.messages import JsonObject, epoch_milliseconds
from goondan_tasks.oauth.crypto import Cipher
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.record_documents import (
    is_current,
    read_grant,
    read_resume,
    read_session,
    read_summary,
    unreadable_session,
    write_grant,
    write_resume,
    write_session,
)
from goondan_tasks.oauth.records import (
    AuthSession,
    GrantSummary,
    OAuthGrant,
    SessionStatus,
    as_of,
    grant_name,
    request_name,
)
from goondan_tasks.oauth.store import (
    KEPT_AFTER_SECONDS,
    LOCK_SECONDS,
    Keep,
    Unreadable,
    UnreadableRecord,
    done_to_all,
    leave_out,
    refuse,
)
from goondan_tasks.oauth.store_scripts import StoreScripts

GRANT_TTL_SECONDS = 366 * 86_400
_GRANT_TTL_MS = GRANT_TTL_SECONDS * 1000
_BATCH = 500
#: between two looks at a lock that another one has
_POLL_SECONDS = 0.02


class RedisStore:
    """The grants and sessions of one namespace; see OAuthStore."""

    def __init__(
        self, redis: Redis, keys: Keys, cipher: Cipher, *, lock_seconds: float = LOCK_SECONDS
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._cipher = cipher
        self._lock_ms = round(lock_seconds * 1000)
        self._scripts = StoreScripts.read()

    def grant(self, oauth_app: str, subject: str) -> OAuthGrant | None:
        """Return a subject's grant."""
        name = grant_name(oauth_app, subject)
        key = self._keys.oauth_grant(name)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(key, "document", "generation")
            pipe.pttl(key)
            (document, generation), left = pipe.execute()
        if document is None:
            return None
        if left < _GRANT_TTL_MS // 2:
            self._run(self._scripts.keep_grant, [key, self._keys.oauth_grants], _GRANT_TTL_MS)
        grant = read_grant(document, name, self._cipher)
        return grant.model_copy(update={"generation": int(generation)})

    def grants(self, unreadable: Unreadable = refuse) -> Iterator[GrantSummary]:
        """Yield what may be shown of all grants, in the order in which they were stored."""
        for name, facts in self._rows(self._members(self._keys.oauth_grants), self._keys.oauth_grant):
            if not facts:
                continue
            try:
                summary = read_summary(facts[b"document"], name)
            except OAuthStoreError as error:
                unreadable(UnreadableRecord(name, error))
            else:
                yield summary

    def replace_grant(self, grant: OAuthGrant, *, generation: int) -> bool:
        """Store a grant in place of that ``generation`` (0: of none); False if another one stands there."""
        document = write_grant(grant, self._cipher)
        arguments = (generation, grant.name, document, _GRANT_TTL_MS)
        return bool(self._run(self._scripts.replace_grant, self._grant_keys(grant.name), *arguments))

    def forget_grant(self, name: str) -> bool:
        """Remove the grant of that record, also one that cannot be read; False if there is none."""
        return bool(self._run(self._scripts.forget_grant, self._grant_keys(name), name))

    def session(self, session_id: str) -> AuthSession | None:
        """Return a session; one that nobody completed in time says ``expired``, and is gone an hour later."""
        return next(self._sessions([session_id]), None)

    def pending_sessions(self, oauth_app: str, subject: str) -> Iterator[AuthSession]:
        """Yield a subject's live pending sessions, the ones that end soonest first."""
        asked = self._keys.oauth_asked(grant_name(oauth_app, subject))
        found = self._sessions(self._members(asked), leave_out)
        return (session for session in found if session.status == "pending")

    def sessions(self, unreadable: Unreadable = refuse) -> Iterator[AuthSession]:
        """Yield all sessions, the ones that end soonest first."""
        return self._sessions(self._members(self._keys.oauth_sessions), unreadable)

    def forget_session(self, session_id: str) -> bool:
        """Remove a session, also one that cannot be read; False if there is none."""
        with self._redis.pipeline() as pipe:
            pipe.delete(self._keys.oauth_session(session_id))
            pipe.zrem(self._keys.oauth_sessions, session_id)
            return bool(pipe.execute()[0])

    def open_session(self, session: AuthSession) -> AuthSession:
        """Store a pending session; a live one for the same is returned instead, and resumes this one too."""
        passed_over: list[str] = []
        while (used := self._opened(session, passed_over)) != session.id:
            try:
                return self.session(used) or session
            except OAuthStoreError:
                passed_over.append(used)
        return session

    def _opened(self, session: AuthSession, passed_over: list[str]) -> str:
        """Store a session unless a live one but those asks for the same; return the id of which stands."""
        keys = [
            self._keys.oauth_session(session.id),
            self._keys.oauth_sessions,
            self._keys.oauth_asked(grant_name(session.oauth_app, session.subject)),
        ]
        used: bytes = self._run(
            self._scripts.open_session,
            keys,
            session.id,
            write_session(session, self._cipher),
            epoch_milliseconds(session.expires_at),
            KEPT_AFTER_SECONDS * 1000,
            self._keys.oauth_session(""),
            request_name(session),
            "" if session.resume is None else session.resume.place,
            "" if session.resume is None else json.dumps(write_resume(session.resume)),
            *passed_over,
        )
        return used.decode()

    def advance(self, session_id: str, *, status: SessionStatus, to: SessionStatus, reason: str = "") -> bool:
        """Change a session's status from ``status``; False if it was another one, or the session expired."""
        keys = [self._keys.oauth_session(session_id)]
        return bool(self._run(self._scripts.advance, keys, status, to, reason, uuid.uuid4().hex))

    def complete(self, session: AuthSession, grant: OAuthGrant) -> bool:
        """Store the grant, and let its session be completed, in one step; False unless it was exchanging."""
        self.grant(grant.oauth_app, grant.subject)  # one that cannot be read is not overwritten
        keys = [self._keys.oauth_session(session.id), *self._grant_keys(grant.name)]
        document = write_grant(grant, self._cipher)
        return bool(self._run(self._scripts.complete, keys, grant.name, document, _GRANT_TTL_MS))

    @contextlib.contextmanager
    def lock(self, oauth_app: str, subject: str, *, wait_seconds: float) -> Iterator[Keep | None]:
        """Be the only one who refreshes this grant, anywhere; ``None`` if that took too long to wait for."""
        key, token = self._keys.oauth_lock(grant_name(oauth_app, subject)), uuid.uuid4().hex
        is_mine = self._acquire(key, token, time.monotonic() + wait_seconds)
        try:
            yield partial(self._keep_lock, key, token) if is_mine else None
        finally:
            if is_mine:
                self._run(self._scripts.unlock, [key], token)

    def doubt(self, grant: OAuthGrant, *, seconds: float) -> None:
        """Let nobody refresh this generation of a grant for so long: its refresh token may have been used."""
        self._redis.set(self._doubt_key(grant), 1, px=max(1, round(seconds * 1000)))

    def is_doubted(self, grant: OAuthGrant) -> bool:
        """Say whether this generation of a grant must not be refreshed for now."""
        return bool(self._redis.exists(self._doubt_key(grant)))

    def encrypt_again(self) -> int:
        """Encrypt every record with the current key; return how many were not yet."""
        grants = self._members(self._keys.oauth_grants)
        sessions = self._members(self._keys.oauth_sessions)
        return done_to_all(
            partial(self._renew, key_of(name), again, name)
            for names, key_of, again in (
                (grants, self._keys.oauth_grant, self._grant_again),
                (sessions, self._keys.oauth_session, self._session_again),
            )
            for name in names
        )

    def _members(self, key: str) -> Iterator[str]:
        return (member.decode() for member in cast("list[bytes]", self._redis.zrange(key, 0, -1)))

    def _sessions(self, ids: Iterable[str], unreadable: Unreadable = refuse) -> Iterator[AuthSession]:
        seconds, micros = self._redis.time()
        now = seconds * 1000 + micros // 1000
        for session_id, facts in self._rows(iter(ids), self._keys.oauth_session):
            if not facts:
                continue
            try:
                session = read_session(facts[b"document"], session_id, self._cipher)
            except OAuthStoreError as error:
                unreadable(unreadable_session(facts[b"document"], session_id, error))
            else:
                yield as_of(session.model_copy(update=_standing(facts)), now)

    def _rows(
        self, names: Iterator[str], key_of: Callable[[str], str]
    ) -> Iterator[tuple[str, dict[bytes, bytes]]]:
        while batch := list(itertools.islice(names, _BATCH)):
            with self._redis.pipeline(transaction=False) as pipe:
                for name in batch:
                    pipe.hgetall(key_of(name))
                rows = pipe.execute()
            yield from zip(batch, rows, strict=True)

    def _doubt_key(self, grant: OAuthGrant) -> str:
        # a lock on one refresh token, beside that on the grant: a later consent may be used at once
        return self._keys.oauth_lock(f"{grant.name}:{grant.generation}")

    def _grant_keys(self, name: str) -> list[str]:
        return [self._keys.oauth_grant(name), self._keys.oauth_grants]

    def _acquire(self, key: str, token: str, deadline: float) -> bool:
        while not self._redis.set(key, token, nx=True, px=self._lock_ms):
            if self._redis.get(key) == token.encode():  # set by a trip whose answer was lost
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - only keeps waiters apart
        return True

    def _keep_lock(self, key: str, token: str, seconds: float) -> bool:
        return bool(self._run(self._scripts.keep_lock, [key], token, round(seconds * 1000)))

    def _renew(self, key: str, again: Callable[[bytes, str], str], name: str) -> int:
        """Encrypt one record again, also if it is changed meanwhile; return 1 unless that was done before."""
        while True:
            document = cast("bytes | None", self._redis.hget(key, "document"))
            if document is None or is_current(document, name, self._cipher):
                return 0
            if self._run(self._scripts.rewrite, [key], document, again(document, name)) == 1:
                return 1

    def _grant_again(self, document: bytes, name: str) -> str:
        return write_grant(read_grant(document, name, self._cipher), self._cipher)

    def _session_again(self, document: bytes, name: str) -> str:
        return write_session(read_session(document, name, self._cipher), self._cipher)

    def _run(self, script: Script, keys: list[str], *arguments: Any) -> Any:
        return run_errand(self._redis, Errand(script, keys, arguments))


def _standing(facts: dict[bytes, bytes]) -> JsonObject:
    """Return what has become of a session since it was written."""
    others = (text for name, text in facts.items() if name.startswith(b"resume:"))
    return {
        "status": facts[b"status"].decode(),
        "reason": facts[b"reason"].decode() or None,
        "also_resume": tuple(read_resume(json.loads(text)) for text in others),
    }

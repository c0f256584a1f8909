"""The OAuth store in Redis, for workers on many machines. Times are those of Redis.

A grant has a TTL of a year, which restarts when it is stored, and when it is read in the second half of that
time: "all other keys have a TTL" (DESIGN §3), and a consent that was not used for a year is void.
Methods raise ``redis.exceptions.RedisError`` unchanged, and RecordDamagedError or OAuthStoreError if another
program has written a key.
"""

import contextlib
import itertools
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from typing import Any, cast

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import LockError, RedisError
from redis.lock import Lock

from broker_config.connections import answers_of, redis_time
from broker_config.keys import Keys
from broker_config.scripts import Script, ScriptCall
from goondan_tasks.contract.errors import OAuthStoreError, RecordDamagedError
from goondan_tasks.contract.messages import JsonObject, epoch_milliseconds
from goondan_tasks.contract.table_rows import naming
from goondan_tasks.oauth.crypto import Cipher
from goondan_tasks.oauth.records import (
    AuthSession,
    OAuthGrant,
    Resume,
    SessionStatus,
    grant_name,
    read_grant,
    write_grant,
    write_session,
)
from goondan_tasks.oauth.store import KEPT_AFTER_SECONDS, ExtendLock, OAuthStore

GRANT_TTL_SECONDS = 366 * 86_400
#: a lock's first TTL; longer than any exchange with a provider but a refresh, which extends it
LOCK_SECONDS = 30.0
_GRANT_TTL_MS = GRANT_TTL_SECONDS * 1000
_BATCH = 500
_LOCK_POLL_SECONDS = 0.02
#: how long Redis's time is trusted before it is read again
_TRUSTED_SECONDS = 60.0
#: after a sleep of the machine, its wall clock and its monotonic clock differ by at least this
_LEAP_SECONDS = 1.0


class RedisStore(OAuthStore):
    def __init__(
        self, redis: Redis, keys: Keys, cipher: Cipher, *, lock_seconds: float = LOCK_SECONDS
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._cipher = cipher
        self._lock_seconds = lock_seconds
        folder = files("goondan_tasks.oauth") / "scripts"
        self._replace_grant = Script.read(folder, "granting", "replace_grant")
        self._complete = Script.read(folder, "granting", "complete")
        self._open_session = Script.read(folder, "open_session")
        self._advance = Script.read(folder, "advance")

    def grant(self, oauth_app: str, subject: str) -> OAuthGrant | None:
        name = grant_name(oauth_app, subject)
        key = self._keys.oauth_grant(name)
        with _readable(name), self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(key, "document", "generation")
            pipe.pttl(key)
            (document, generation), left = pipe.execute()
            if document is None:
                return None
            if left < _GRANT_TTL_MS // 2:
                pipe.pexpire(key, _GRANT_TTL_MS)
                pipe.pexpire(self._keys.oauth_grants, _GRANT_TTL_MS)
                pipe.execute()
        grant = read_grant(document, name, self._cipher)
        try:
            return grant.model_copy(update={"generation": int(generation)})
        except (TypeError, ValueError) as error:
            raise OAuthStoreError.of_record(name, f"The grant {name} has no valid generation.") from error

    def replace_grant(self, grant: OAuthGrant, *, generation: int) -> bool:
        keys = [self._keys.oauth_grant(grant.name), self._keys.oauth_grants]
        document = write_grant(grant, self._cipher)
        return bool(self._run(self._replace_grant, keys, generation, grant.name, document, _GRANT_TTL_MS))

    def open_session(self, session: AuthSession) -> AuthSession:
        unreadable: list[str] = []
        while (opened := self._opened(session, unreadable)) != session.id:
            try:
                return self.session(opened) or session
            except OAuthStoreError:
                unreadable.append(opened)
        return session

    def _opened(self, session: AuthSession, unreadable: list[str]) -> str:
        """Store a session unless a readable live one has the same request; return the id of that one."""
        keys = [
            self._keys.oauth_session(session.id),
            self._keys.oauth_sessions,
            self._keys.oauth_asked(grant_name(session.oauth_app, session.subject)),
        ]
        opened: bytes = self._run(
            self._open_session,
            keys,
            session.id,
            write_session(session, self._cipher),
            epoch_milliseconds(session.expires_at),
            KEPT_AFTER_SECONDS * 1000,
            self._keys.oauth_session(""),
            session.request,
            session.resume.target if session.resume else "",
            json.dumps(session.resume.to_document()) if session.resume else "",
            *unreadable,
        )
        return opened.decode()

    def advance(self, session_id: str, *, status: SessionStatus, to: SessionStatus, reason: str = "") -> bool:
        keys = [self._keys.oauth_session(session_id)]
        return bool(self._run(self._advance, keys, status, to, reason, uuid.uuid4().hex))

    def complete(self, session: AuthSession, grant: OAuthGrant) -> bool:
        self.grant(grant.oauth_app, grant.subject)  # raises if it is unreadable, so it is not overwritten
        keys = [
            self._keys.oauth_session(session.id),
            self._keys.oauth_grant(grant.name),
            self._keys.oauth_grants,
        ]
        document = write_grant(grant, self._cipher)
        return bool(self._run(self._complete, keys, grant.name, document, _GRANT_TTL_MS))

    @contextlib.contextmanager
    def lock(self, oauth_app: str, subject: str, *, wait_seconds: float) -> Iterator[ExtendLock | None]:
        lock = _Lock(
            self._redis,
            self._keys.oauth_lock(grant_name(oauth_app, subject)),
            timeout=self._lock_seconds,
            sleep=_LOCK_POLL_SECONDS,
            blocking_timeout=wait_seconds,
            thread_local=False,
        )

        def extend(seconds: float) -> bool:
            try:
                return lock.extend(seconds, replace_ttl=True)
            except LockError:
                return False

        with naming(str(lock.name)):
            is_held = lock.acquire()
        if not is_held:
            yield None
            return
        try:
            yield extend
        finally:
            with contextlib.suppress(LockError):  # it has run out
                lock.release()

    def doubt(self, grant: OAuthGrant, *, seconds: float) -> None:
        self._redis.set(self._doubt_key(grant), 1, px=max(1, round(seconds * 1000)))

    def is_doubted(self, grant: OAuthGrant) -> bool:
        return bool(self._redis.exists(self._doubt_key(grant)))

    def _doubt_key(self, grant: OAuthGrant) -> str:
        # per generation, unlike the lock of the grant: a token of a later consent may be used at once
        return self._keys.oauth_lock(f"{grant.name}:{grant.generation}")

    def _now(self) -> float:
        return redis_time(self._redis)

    def _grant_names(self) -> Iterator[str]:
        return self._members(self._keys.oauth_grants)

    def _session_ids(self) -> Iterator[str]:
        return self._members(self._keys.oauth_sessions)

    def _session_ids_of(self, oauth_app: str, subject: str) -> Iterator[str]:
        return self._members(self._keys.oauth_asked(grant_name(oauth_app, subject)))

    def _documents(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | OAuthStoreError, JsonObject]]:
        remaining = iter(names)
        while batch := list(itertools.islice(remaining, _BATCH)):
            with self._redis.pipeline(transaction=False) as pipe:
                for name in batch:
                    pipe.hgetall(self._key(name))
                rows = answers_of(pipe)
            for name, row in zip(batch, rows, strict=True):
                if isinstance(row, RedisError):
                    yield name, OAuthStoreError(f"{name} cannot be read: {row}"), {}
                elif row:
                    yield name, row[b"document"], _changes(row)

    def _members(self, key: str) -> Iterator[str]:
        with naming(key):
            members = cast("list[bytes]", self._redis.zrange(key, 0, -1))
        return (member.decode() for member in members)

    def _key(self, name: str) -> str:
        return self._keys.oauth_session(name) if name.startswith("as-") else self._keys.oauth_grant(name)

    def forget(self, name: str) -> bool:
        with self._redis.pipeline() as pipe:
            pipe.delete(self._key(name))
            for index in (self._keys.oauth_grants, self._keys.oauth_sessions):
                pipe.zrem(index, name)
            return bool(pipe.execute()[0])

    def _rewrite(self, name: str, change: Callable[[bytes], str | None]) -> bool:
        key = self._key(name)

        def rewrite(pipe: Pipeline) -> Any:
            document = cast("bytes | None", pipe.hget(key, "document"))
            text = None if document is None else change(document)
            pipe.multi()
            if text is not None:
                pipe.hset(key, "document", text)
            return text is not None

        with _readable(name):
            return bool(self._redis.transaction(rewrite, key, value_from_callable=True))

    def _run(self, script: Script, keys: list[str], *arguments: Any) -> Any:
        with naming(*keys):
            return ScriptCall(script, keys, arguments).run(self._redis)


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    """Report an error that is due to the contents of a record's key, for a ``with`` block.

    Raises:
        OAuthStoreError: another program has written it.
    """
    try:
        with naming(name):
            yield
    except RecordDamagedError as error:
        raise OAuthStoreError.of_record(name, error.message) from error


def _changes(row: dict[bytes, bytes]) -> JsonObject:
    """Return the fields of a session that have changed since its document was written; none for a grant."""
    if b"status" not in row:
        return {}
    resumes = (text for name, text in row.items() if name.startswith(b"resume:"))
    return {
        "status": row[b"status"].decode(),
        "reason": row[b"reason"].decode() or None,
        "also_resume": tuple(Resume.from_document(json.loads(text)) for text in resumes),
    }


class _Lock(Lock):
    """A lock that recognizes its own token, which a command whose answer was lost may have set."""

    def do_acquire(self, token: str) -> bool:
        return super().do_acquire(token) or self.redis.get(self.name) == token


class RedisClock:
    """Milliseconds since the epoch by Redis's clock, by which tokens and sessions expire; thread-safe.

    Between two reads it uses this machine's monotonic clock, which stops while the machine sleeps or is moved
    to another host. So Redis is read each minute, and at once if the machine's wall clock has jumped. While
    Redis is unreachable, the clock continues from the last read.
    """

    def __init__(
        self,
        redis: Redis,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Read Redis's time.

        Raises:
            RedisError: Redis cannot be reached.
        """
        self._redis, self._monotonic, self._wall = redis, monotonic, wall
        self._last = self._read()

    def __call__(self) -> float:
        _, read_at, wall = self._last
        passed = self._monotonic() - read_at
        if passed > _TRUSTED_SECONDS or abs(self._wall() - wall - passed) > _LEAP_SECONDS:
            with contextlib.suppress(RedisError):
                self._last = self._read()
        redis_ms, read_at, _ = self._last
        return redis_ms + (self._monotonic() - read_at) * 1000

    def _read(self) -> tuple[float, float, float]:
        return redis_time(self._redis), self._monotonic(), self._wall()

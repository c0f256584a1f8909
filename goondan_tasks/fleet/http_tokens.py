"""Named tokens for HTTP: in Redis, where ``goondan tokens`` keeps them, or in the environment.

Only the SHA-256 of a token is kept. Tokens of Redis have 256 random bits: nobody finds one by its digest.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.settings import Settings
from broker_config.value_faults import fault_text
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.messages import IsoTime, JsonObject, Versioned, epoch_milliseconds
from goondan_tasks.contract.names import is_agent_name
from goondan_tasks.contract.table_rows import naming, read_row, whole_number
from goondan_tasks.contract.wording import closest
from goondan_tasks.fleet.audit import AuditLog, Recorded, Target, recording

#: how long tokens are kept after one of them was last added or used: "all keys have a TTL" (DESIGN §3)
TTL_SECONDS = 366 * 86_400
#: what tells leaked tokens from other texts
PREFIX = "gdn_"
_RANDOM_BYTES = 32
_MOST_FILE_BYTES = 1024 * 1024

#: what a token may do, besides calling agents; ``admin`` implies all
ADMIN, APPROVE, READ = "admin", "approve", "read"
CALL = "call:"
EVERY_CALL = f"{CALL}*"
_SCOPES = (ADMIN, APPROVE, READ, EVERY_CALL, f"{CALL}AGENT")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
LONGEST_USER = 256
#: the names of callers that show no token
LOCAL, ANYONE, NOBODY = NAMES_WITHOUT_TOKEN = ("local", "anyone", "nobody")
#: the name of the token in GOONDAN_HTTP_TOKEN
THE_TOKEN = "GOONDAN_HTTP_TOKEN"  # noqa: S105 - a name
_SEVERAL = "GOONDAN_HTTP_TOKENS"
_EXAMPLE = '{"ci": {"token": "…", "scopes": ["call:coder", "read"], "user": "U1"}}'


def require_name(name: str) -> str:
    """Refuse, with a ValueError, what cannot name a token, or is another caller's: answers go by it."""
    if name in {THE_TOKEN, *NAMES_WITHOUT_TOKEN}:
        raise ValueError("must not be the name that callers without such a token have")
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            "must have 1 to 100 letters, digits, '.', '_' and '-', and begin and end with a letter or digit"
        )
    return name


def require_scope(scope: str) -> str:
    """Refuse, with a ValueError, what is no scope; an agent is not looked up, since it may come later."""
    agent = scope.removeprefix(CALL) if scope.startswith(CALL) else ""
    if scope in _SCOPES[:4] or is_agent_name(agent):
        return scope
    meant = None if agent else closest(scope, _SCOPES[:4])
    guess = "AGENT is the name of one agent." if agent else "" if meant is None else f"Did you mean {meant}?"
    raise ValueError(f"must be one of {', '.join(_SCOPES)}. {guess}".rstrip())


def require_user(user: str) -> str:
    """Refuse, with a ValueError, what names no user."""
    if not user.strip() or not user.isprintable() or len(user) > LONGEST_USER:
        raise ValueError(f"must be a user's name or id: 1 to {LONGEST_USER} printable characters")
    return user


Scope = Annotated[str, AfterValidator(require_scope)]
User = Annotated[str, AfterValidator(require_user)]


class HttpToken(Versioned):
    """A named token, without the token itself."""

    name: str
    #: the SHA-256 of the token, hexadecimal
    digest: str
    scopes: tuple[str, ...]
    #: the subject ``user`` of the calls that are submitted with it
    user: str | None = None
    created_at: IsoTime | None = None
    #: it opens nothing from then on; ``None``: it does not expire
    expires_at: IsoTime | None = None

    def has_expired(self, now: float) -> bool:
        """Return whether it has, at ``now`` in ms since the epoch."""
        return self.expires_at is not None and epoch_milliseconds(self.expires_at) <= now


@dataclass(frozen=True, slots=True)
class ListedToken:
    """A token of Redis, and when a server last noted its use (ms, that server's time; 0: never)."""

    token: HttpToken
    last_used: int


def new_token() -> str:
    """Return a random token of 256 bits."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: bytes) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token).hexdigest()


def token_with(digest: str, tokens: Iterable[HttpToken]) -> HttpToken | None:
    """Find the token with a digest; the time does not depend on which one it is, nor on how much is alike."""
    found = None
    for token in tokens:
        if hmac.compare_digest(token.digest.encode(), digest.encode()):
            found = token
    return found


def auth_of(user: str | None) -> JsonObject | None:
    """Return the ``auth`` of a call that is submitted for a user (000 §12.5)."""
    return None if user is None else {"subjects": {"user": user}}


def _token(given: Mapping[str, Any]) -> Target:
    return Target("token", given["token"].name if "token" in given else given["name"])


_NOTED = Recorded(_token, says_whether=True)


@recording({"add": _NOTED, "revoke": _NOTED}, "token.")
class TokenStore:
    """The tokens in Redis. Methods block, and may raise ``redis.exceptions.RedisError``.

    Raises of every method:
        RecordDamagedError: another program has overwritten the key.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._audit = AuditLog(redis, keys)

    def add(self, token: HttpToken) -> bool:
        """Add a token; return whether its name was free."""
        with self._naming(), self._redis.pipeline() as pipe:
            pipe.hsetnx(self._keys.http_tokens, token.name, serializer.encode(token.to_wire()).decode())
            pipe.expire(self._keys.http_tokens, TTL_SECONDS)
            is_new, _ = pipe.execute()
        return bool(is_new)

    def tokens(self) -> list[HttpToken]:
        """Read all tokens, by name; damaged rows are left out, so they open nothing."""
        with self._naming():
            rows = cast("dict[bytes, bytes]", self._redis.hgetall(self._keys.http_tokens))
        return _tokens(rows)

    def listed(self) -> list[ListedToken]:
        """Read all tokens with their last use, by name."""
        with self._naming(), self._redis.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._keys.http_tokens)
            pipe.hgetall(self._keys.http_tokens_used)
            rows, used = pipe.execute()
        return [ListedToken(one, _last_use(one, used.get(one.name.encode()))) for one in _tokens(rows)]

    def revoke(self, name: str) -> bool:
        """Remove a token; return whether there was one."""
        with self._naming(), self._redis.pipeline() as pipe:
            pipe.hdel(self._keys.http_tokens, name)
            pipe.hdel(self._keys.http_tokens_used, name)
            was_there, _ = pipe.execute()
        return bool(was_there)

    def note_use(self, name: str, milliseconds: int) -> None:
        """Note when a token was used; a revoked one does not come back by that."""
        with self._naming(), self._redis.pipeline(transaction=False) as pipe:
            pipe.hset(self._keys.http_tokens_used, name, milliseconds)
            pipe.expire(self._keys.http_tokens_used, TTL_SECONDS)
            pipe.expire(self._keys.http_tokens, TTL_SECONDS)
            pipe.execute()

    def _naming(self) -> Any:
        return naming(self._keys.http_tokens, self._keys.http_tokens_used)


def _tokens(rows: dict[bytes, bytes]) -> list[HttpToken]:
    read = (
        read_row(HttpToken, row, f"the HTTP token {name.decode(errors='replace')!r}")
        for name, row in sorted(rows.items())
    )
    return [one for one in read if one is not None]


def _last_use(token: HttpToken, noted: bytes | None) -> int:
    """Return a token's last use; that of an earlier token of its name does not count."""
    used = whole_number(noted, f"the last use of the HTTP token {token.name!r}")
    return used if token.created_at is None or used >= epoch_milliseconds(token.created_at) else 0


class _Given(BaseModel):
    """A token as GOONDAN_HTTP_TOKENS has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: Annotated[str, Field(min_length=1)]
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    user: User | None = None
    expiresAt: IsoTime | None = None  # noqa: N815 - as in the other JSON of users


def environment_tokens(settings: Settings) -> list[HttpToken]:
    """Return the tokens of GOONDAN_HTTP_TOKEN and GOONDAN_HTTP_TOKENS; the first may do everything.

    Raises:
        ConfigError: they cannot be read; the message does not contain a token.
    """
    found = []
    if settings.http_token is not None:
        digest = digest_of(settings.http_token.get_secret_value().encode())
        found.append(HttpToken(name=THE_TOKEN, digest=digest, scopes=(ADMIN,)))
    if settings.http_tokens is not None:
        found += _several(settings.http_tokens.get_secret_value().strip())
    names: dict[str, str] = {}
    for one in found:
        if names.setdefault(one.digest, one.name) != one.name:
            raise _refused(f"{names[one.digest]} and {one.name} are the same token")
    return found


def _several(text: str) -> list[HttpToken]:
    try:
        given = serializer.decode(text if text.startswith("{") else _content(text))
    except serializer.NotJsonError as error:
        raise _refused("neither JSON nor the path of a file with JSON") from error
    if not isinstance(given, dict):
        raise _refused("not an object with the names of the tokens")
    return [_named(name, fields) for name, fields in given.items()]


def _content(path: str) -> bytes:
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(_MOST_FILE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        # the path may be a token that someone has put there, so it is not shown
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise _refused(f"neither a JSON object nor a file that can be read ({reason})") from error
    if len(data) > _MOST_FILE_BYTES:
        raise _refused(f"a file of more than {_MOST_FILE_BYTES // 1024**2} MiB")
    return data


def _named(name: str, fields: Any) -> HttpToken:
    try:
        require_name(name)
    except ValueError as error:
        raise _refused(f"wrong: the name of a token {error}") from error
    try:
        given = _Given.model_validate(fields, strict=False)
    except ValidationError as error:
        faults = (
            f"{'.'.join((name, *map(str, fault['loc'])))}: {fault_text(fault, shows_value=False)}"
            for fault in error.errors(include_url=False)
        )
        raise _refused(f"wrong: {'; '.join(faults)}") from error
    return HttpToken(
        name=name,
        digest=digest_of(given.token.encode("utf-8", "surrogatepass")),
        scopes=given.scopes,
        user=given.user,
        expires_at=given.expiresAt,
    )


def _refused(what: str) -> ConfigError:
    return ConfigError(f"{_SEVERAL} is {what}.", suggestion=f"Write {_EXAMPLE}, or the path of such a file.")

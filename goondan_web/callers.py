"""Who asks: the guard finds the caller of a request by a token, and routes refuse what it may not do.

A route calls :func:`require` with a scope, and gets the :class:`Caller`; ``auth`` goes into the calls that it
submits. Tokens of Redis are read together, and kept for :data:`TABLE_SECONDS`, so requests cost no trip.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, ip_address
from time import monotonic
from typing import Protocol

import structlog
from redis.exceptions import RedisError
from starlette.requests import HTTPConnection
from starlette.types import Scope

from broker_config.connections import reporting_outages
from broker_config.settings import Settings, networks_of
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    ConfigError,
    GoondanError,
    RecordDamagedError,
)
from goondan_tasks.contract.messages import JsonObject, wall_clock
from goondan_tasks.fleet import http_tokens
from goondan_tasks.fleet.http_tokens import (
    ADMIN,
    CALL,
    EVERY_CALL,
    READ,
    HttpToken,
    auth_of,
    digest_of,
    environment_tokens,
    require_user,
    token_with,
)
from goondan_tasks.fleet.usage import user_of
from goondan_web.answers import ForbiddenError, RequestError, UnauthorizedError

_log = structlog.get_logger(__name__)

#: how long the tokens of Redis are used as they were read: a revoked one opens nothing after that
TABLE_SECONDS = 5.0
#: an unknown token is looked for again after this time, so that new ones soon work
UNKNOWN_SECONDS = 1.0
#: how long a request waits to learn whether there are tokens by now, while Redis does not answer
LOOK_SECONDS = 1.0
#: how long Redis is not asked again after an outage
OUTAGE_SECONDS = 2.0
#: the interval at which the use of a token is noted
USE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, as the guard has found it; ``request.state.caller``."""

    #: the name of the token, or what stands for it where none is needed
    name: str
    scopes: frozenset[str]
    #: the ``auth`` of calls that are submitted for this request
    auth: JsonObject | None = None

    def may(self, scope: str) -> bool:
        """Return whether this is allowed: ``call:<agent>``, ``read``, ``approve`` or ``admin``."""
        if ADMIN in self.scopes or scope in self.scopes:
            return True
        return scope.startswith(CALL) and EVERY_CALL in self.scopes

    @property
    def person(self) -> str:
        """The user for whom it asks, or else its name."""
        return user_of(self.auth) or self.name

    @property
    def may_call(self) -> bool:
        """Whether there is an agent that it may call."""
        return any(scope == ADMIN or scope.startswith(CALL) for scope in self.scopes)

    def auth_for(self, given: JsonObject | None) -> JsonObject | None:
        """Return the ``auth`` of a call; ``given`` is what the request asks for.

        Raises:
            MissingScopeError: the request asks for another one than the caller's, and the caller is no admin.
        """
        if given is None or given == self.auth:
            return self.auth
        if ADMIN in self.scopes:
            return given
        raise MissingScopeError(f"{self.name} may not choose the auth of a call: that needs the scope admin.")


#: of a request without a token, where none is needed
LOCAL = Caller(http_tokens.LOCAL, frozenset({ADMIN}))
ANYONE = Caller(http_tokens.ANYONE, frozenset({READ}))
#: at a door that checks its requests itself
NOBODY = Caller(http_tokens.NOBODY, frozenset())


class MissingScopeError(ForbiddenError):
    """The token may not do this."""

    suggestion = "Use a token with that scope; `goondan tokens list` shows the scopes of each."


def caller_of(scope: Scope) -> Caller:
    """Return the caller of a request; without the guard, nobody."""
    caller: Caller = scope.get("state", {}).get("caller", NOBODY)
    return caller


def require(request: HTTPConnection | Scope, scope: str) -> Caller:
    """Return the caller of a request that needs a scope.

    Raises:
        MissingScopeError: the caller may not do this; the answer is 403.
    """
    caller = caller_of(request.scope if isinstance(request, HTTPConnection) else request)
    if not caller.may(scope):
        raise MissingScopeError(f"{caller.name} lacks the scope {scope}.")
    return caller


class TokenTable(Protocol):
    """The tokens of Redis; methods block, and raise errors of Redis, or of the tree."""

    def tokens(self) -> Sequence[HttpToken]:
        """Read all tokens."""
        ...

    def note_use(self, name: str, milliseconds: int) -> None:
        """Note when a token was used."""
        ...


class Tokens:
    """All tokens of a server; its methods run on the event loop.

    Whether a token is needed is never taken back: the revocation of the last one opens no door.
    """

    def __init__(
        self,
        own: Sequence[HttpToken],
        table: TokenTable | None,
        clock: Callable[[], float] = monotonic,
        now: Callable[[], float] = wall_clock,
    ) -> None:
        self._own = tuple(own)
        self._table = table
        self._clock = clock
        self._now = now
        self._kept: tuple[HttpToken, ...] = ()
        self._read_at = self._failed_at = -TABLE_SECONDS
        self._reading = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        #: when the use of each token was noted
        self._noted: dict[str, float] = {}
        #: whether there has been a token
        self.has_any = bool(own)

    def begin(self) -> None:
        """Read the tokens of Redis before the server listens; blocks. An outage is left to the requests."""
        try:
            self._read()
        except (RedisError, GoondanError) as error:
            _log.warning("http.tokens", error=str(error))

    async def look(self) -> None:
        """Find out whether there are tokens by now. A Redis that is away, or silent, changes nothing.

        The request has its own trip before it, and its client does not wait for both.
        """
        is_old = self._clock() - self._read_at >= TABLE_SECONDS
        if self._table is not None and is_old and not self.has_any:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            await asyncio.wait({self._looking}, timeout=LOOK_SECONDS)

    async def _look(self) -> None:
        with suppress(BrokerUnreachableError):
            await self._refresh(TABLE_SECONDS)

    async def caller(self, shown: bytes) -> Caller:
        """Return who shows a token.

        Raises:
            BrokerUnreachableError: Redis is away, and no token of the environment is shown.
            UnauthorizedError: the token is unknown, or has expired.
        """
        digest = digest_of(shown)
        found = token_with(digest, self._own)
        if found is None and self._table is not None:
            await self._refresh(TABLE_SECONDS)
            found = token_with(digest, self._kept)
            if found is None:
                await self._refresh(UNKNOWN_SECONDS)
                found = token_with(digest, self._kept)
            if found is not None:
                self._note(found.name)
        if found is None or found.has_expired(self._now()):
            raise UnauthorizedError
        return Caller(found.name, frozenset(found.scopes), auth_of(found.user))

    async def _refresh(self, most_seconds: float) -> None:
        """Read the tokens of Redis if those that are known are older; one request reads for all.

        Raises:
            BrokerUnreachableError: Redis is away, or was a moment ago.
        """
        if self._table is None or self._clock() - self._read_at < most_seconds:
            return
        async with self._reading:
            if self._clock() - self._read_at < most_seconds:
                return
            if self._clock() - self._failed_at < OUTAGE_SECONDS:
                raise BrokerUnreachableError
            try:
                await asyncio.to_thread(self._read)
            except (RedisError, RecordDamagedError, BrokerUnreachableError) as error:
                self._failed_at = self._clock()
                raise BrokerUnreachableError(str(error)) from error

    def _read(self) -> None:
        if self._table is None:
            return
        began = self._clock()
        with reporting_outages():
            self._kept = tuple(self._table.tokens())
        self._read_at = began
        self.has_any = self.has_any or bool(self._kept)

    def _note(self, name: str) -> None:
        """Note the use of a token, at most once in a while, without waiting for Redis."""
        if self._clock() - self._noted.get(name, -USE_SECONDS) >= USE_SECONDS:
            self._noted[name] = self._clock()
            asyncio.get_running_loop().run_in_executor(None, self._write_use, name, int(self._now()))

    def _write_use(self, name: str, milliseconds: int) -> None:
        try:
            with reporting_outages():
                if self._table is not None:
                    self._table.note_use(name, milliseconds)
        except (RedisError, GoondanError) as error:
            _log.debug("http.token_use", token=name, error=str(error))


def tokens_of(settings: Settings, table: TokenTable | None) -> Tokens:
    """Return the tokens of a server: those of its environment, and those of ``table``.

    Raises:
        ConfigError: those of the environment cannot be read.
    """
    tokens = Tokens(environment_tokens(settings), table)
    tokens.begin()
    return tokens


@dataclass(frozen=True, slots=True)
class UserHeader:
    """A header by which trusted proxies name the user of a request."""

    #: in lower case, as ASGI has it; ``None``: none is read
    name: bytes | None
    proxies: tuple[IPv4Network | IPv6Network, ...]

    @classmethod
    def of(cls, settings: Settings) -> "UserHeader":
        """Read the settings.

        Raises:
            ConfigError: only one of the two is set.
        """
        header, proxies = settings.http_user_header, networks_of(settings.http_trusted_proxies)
        if (header is None) != (not proxies):
            raise ConfigError(
                "GOONDAN_HTTP_USER_HEADER and GOONDAN_HTTP_TRUSTED_PROXIES go together.",
                suggestion="Set both: the header with the user, and the addresses of its proxies.",
            )
        return cls(header.lower().encode() if header else None, proxies)

    def applied(self, caller: Caller, scope: Scope) -> Caller:
        """Return the caller with the user that a trusted proxy names; the user of a token stays.

        Raises:
            RequestError: the proxy names none that can be read, or several.
        """
        if self.name is None or caller.auth is not None or not self._is_trusted(scope):
            return caller
        named = [value for name, value in scope["headers"] if name == self.name]
        if not any(named):
            return caller
        try:
            [value] = named
            user = require_user(value.decode())
        except ValueError as error:
            raise RequestError(f"The header {self.name.decode()} does not name one user.") from error
        return replace(caller, auth=auth_of(user))

    def _is_trusted(self, scope: Mapping[str, object]) -> bool:
        client = scope.get("client")
        try:
            address = ip_address(client[0] if isinstance(client, tuple | list) else "")
        except ValueError:  # a Unix socket has no address
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.proxies)

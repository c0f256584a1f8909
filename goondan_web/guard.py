"""Who is let in, and how much they may send: one guard for all doors.

A browser sends the ``Origin`` of the requesting page, or at least ``Sec-Fetch-Site``. Accepted are pages of
``PUBLIC_URL``, of the server itself and, if the server is local, of this machine. Without a token, ``Host``
must be a name of this machine where the server is local; otherwise a page whose name resolves to it (DNS
rebinding) would have the same origin.
"""

import asyncio
import base64
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from broker_config.settings import Settings
from goondan_tasks.contract.errors import ConfigError, PayloadTooLargeError
from goondan_tasks.machine.process import is_loopback, names_this_machine
from goondan_web.answers import ForbiddenError, RequestError, UnauthorizedError
from goondan_web.callers import ANYONE, LOCAL, NOBODY, Caller, Tokens, UserHeader
from goondan_web.door import Access, Door

SCHEME = "bearer"
#: the limit of a request's line and headers together
MAX_HEAD_BYTES = 65_536
#: how long the body of a request may take
BODY_SECONDS = 30.0
HEAD_TOO_LARGE = "The head of the request is too large."
_TWO_LENGTHS = "The request has both a Content-Length and a Transfer-Encoding."
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SMALLER = "Send less: put large data where the agent can read it, and send its path."


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of a server that listens on one address."""

    tokens: Tokens
    user_header: UserHeader
    public_url: str | None
    #: whether only this machine reaches the server
    is_local: bool

    @classmethod
    def of(cls, settings: Settings, host: str, doors: Sequence[Door], tokens: Tokens) -> "Guard":
        """Return the rules of a server with these doors on ``host``.

        Raises:
            ConfigError: other machines can reach a door that needs a token, and there is none.
        """
        is_local = is_loopback(host)
        if not tokens.has_any and not is_local:
            for door in doors:
                if door.access is Access.TOKEN:
                    raise ConfigError(
                        f"Anyone who can reach {host} could run the agent's tools: no token is set.",
                        suggestion="Set GOONDAN_HTTP_TOKEN, run `goondan tokens add`, or use 127.0.0.1.",
                    )
        return cls(tokens, UserHeader.of(settings), settings.public_url, is_local)

    async def admit(
        self,
        scope: Scope,
        access: Access,
        max_body_bytes: int,
        *,
        is_page_allowed: bool = False,
        takes_passwords: bool = False,
    ) -> None:
        """Check the head of a request, and put its Caller into ``request.state.caller``.

        ``is_page_allowed`` says whether its page is one of the origins that may ask the door, and
        ``takes_passwords`` whether the token may be a password.

        Raises:
            BrokerUnreachableError: Redis, which has the token, is away.
            ForbiddenError: it comes from a page of another origin, or names another machine.
            PayloadTooLargeError: its body is announced as too large.
            RequestError: its head is too large, or says in two ways how long its body is.
            UnauthorizedError: it does not show the token.
        """
        headers = Headers(scope=scope)
        if _head_bytes(scope) > MAX_HEAD_BYTES:
            raise RequestError(HEAD_TOO_LARGE, status=431)
        if "content-length" in headers and "transfer-encoding" in headers:
            # a proxy that believes the other one sees another request behind it (RFC 9112 §6.1)
            raise RequestError(_TWO_LENGTHS, headers={"Connection": "close"})
        caller = NOBODY
        if access is not Access.OWN:
            if not is_page_allowed:
                self._check_page(scope, headers, takes_passwords)
            shown = _shown(headers) or (_password(headers) if takes_passwords else None)
            caller = self.user_header.applied(await self._caller(headers, access, shown), scope)
        scope.setdefault("state", {})["caller"] = caller
        length = headers.get("content-length", "")
        if length.isascii() and length.isdecimal() and int(length[:20]) > max_body_bytes:
            raise _too_large(max_body_bytes)

    def _check_page(self, scope: Scope, headers: Headers, takes_passwords: bool) -> None:
        origin = headers.get("origin")
        # browsers add passwords by themselves, so there another port is another origin
        host = headers.get("host", "") if takes_passwords else None
        if origin is not None and not self._is_ours(origin, host):
            raise ForbiddenError("Requests from web pages of other origins are refused.")
        if origin is None and _is_fetched_by_other_site(scope, headers):
            raise ForbiddenError("Requests from web pages of other sites are refused.")

    async def _caller(self, headers: Headers, access: Access, shown: bytes | None) -> Caller:
        await self.tokens.look()
        if self.tokens.has_any:
            if shown is None:
                raise UnauthorizedError
            return await self.tokens.caller(shown)
        if not self.is_local:
            if access is Access.TOKEN:
                raise UnauthorizedError
            return ANYONE
        if not names_this_machine(headers.get("host", "")):
            raise ForbiddenError("The Host header names another machine.")
        return LOCAL

    def _is_ours(self, origin: str, host: str | None) -> bool:
        """Return whether an origin is this machine's, on ``host`` if that is given, or the public URL's."""
        parts, public = _split(origin), _split(self.public_url or "")
        if parts is None:
            return False
        if self.is_local and is_loopback(parts.hostname or "") and host in {None, parts.netloc}:
            return True
        return public is not None and _origin(parts) == _origin(public)


def bounded(
    receive: Receive, max_body_bytes: int, seconds: float, clock: Callable[[], float] = monotonic
) -> Receive:
    """Bound what a request's body may have in bytes, and take in seconds.

    The returned ``receive`` raises PayloadTooLargeError, or RequestError with the status 408. What is
    received after the body, such as the client's leave, may take as long as it does.
    """
    end, size, has_ended = clock() + seconds, 0, False

    async def bounded_receive() -> Message:
        nonlocal size, has_ended
        if has_ended:
            return await receive()
        try:
            async with asyncio.timeout(max(0.0, end - clock())):
                message = await receive()
        except TimeoutError:
            raise RequestError(f"The body did not come within {seconds:g} s.", status=408) from None
        size += len(message.get("body", b""))
        if size > max_body_bytes:
            raise _too_large(max_body_bytes)
        has_ended = not message.get("more_body", False)
        return message

    return bounded_receive


def _too_large(max_body_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"The body is larger than {max_body_bytes} bytes.", suggestion=_SMALLER)


def _head_bytes(scope: Scope) -> int:
    line = len(scope["method"]) + len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(text) for name, text in scope["headers"])


def _is_fetched_by_other_site(scope: Scope, headers: Headers) -> bool:
    """Return whether another site's page asks, and not a person who follows a link (Fetch Metadata)."""
    if headers.get("sec-fetch-site", "none") in {"none", "same-origin"}:
        return False
    is_followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return not (is_followed and scope["method"] == "GET")


def _shown(headers: Headers) -> bytes | None:
    """Return the token that a request shows."""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    return shown.strip(" \t").encode("latin-1") if scheme.lower() == SCHEME else None


def _password(headers: Headers) -> bytes | None:
    """Return the password of HTTP's basic authentication (RFC 7617); any user name will do."""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    with contextlib.suppress(ValueError):
        return base64.b64decode(shown.strip(" \t"), validate=True).partition(b":")[2]
    return None


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.hostname else None


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    """Return a URL's origin with an explicit port, which browsers omit if it is the default."""
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)

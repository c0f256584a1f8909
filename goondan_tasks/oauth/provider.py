"""Requests to an OAuth provider: authlib writes them, httpx2 sends them, and answers are read leniently."""

import asyncio
import functools
import json
import math
import re
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
from authlib.common.urls import add_params_to_qs, add_params_to_uri
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7009.parameters import prepare_revoke_token_request
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwt import JWTClaimsRegistry
from pydantic import SecretStr, ValidationError

from goondan_tasks.contract.messages import JsonObject, iso_time
from goondan_tasks.contract.redaction import masked
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.manager import REFRESH_SECONDS
from goondan_tasks.oauth.records import (
    AuthSession,
    DeviceCode,
    OAuthError,
    OAuthGrant,
    OAuthToken,
    ProviderRefusedError,
    ProviderUnavailableError,
)

#: shorter than the whole exchange, so that a missing host is reported soon
_CONNECT_SECONDS = 5.0
_TICK_SECONDS = 0.5
_MAX_BYTES = 262_144
_FORM = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
#: errors of an overloaded or broken provider (RFC 6749 §4.1.2.1; Slack)
_TEMPORARY_ERRORS = frozenset({"server_error", "temporarily_unavailable", "ratelimited", "rate_limited"})
_TEMPORARY_STATUSES = frozenset({408, 425, 429})
#: errors that say that the provider has not acted on the request
_NOT_BEGUN = _TEMPORARY_ERRORS - {"server_error"}
_LONGEST_DESCRIPTION = 200
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_LONGEST_DEVICE_CODE_SECONDS = 86_400
_ID_TOKEN_LEEWAY_SECONDS = 60
_SCOPE_SEPARATORS = re.compile(r"[\s,]+")
#: RFC 6749 §5.2, without characters of markup
_ERROR_CODE = re.compile(r"[A-Za-z0-9_.:/-]{1,80}")
#: a century; a longer lifetime counts as no expiry, since it would overflow a date
_LONGEST_TOKEN_SECONDS = 100 * 366 * 86_400
_SECRET_FIELDS = frozenset({"access_token", "refresh_token", "id_token", "device_code"})
#: names of fields at any depth that may hold a secret, such as Slack's ``authed_user.access_token``, or a
#: secret address: ``incoming_webhook.url`` lets anyone post to the channel
_SECRET_NAME = re.compile(
    r"token|secret|passw|pwd|assertion|credential|code|key|jwt|cookie|sess|nonce|sign|bearer|authori[sz]ation"
    r"|hook|ur[il]|href|link|callback|endpoint",
    re.IGNORECASE,
)
#: a text that may be a secret in any field: an address, or a word that is too long for a name
_SECRET_TEXT = re.compile(r"://|\S{40}")
#: fields that a grant stores elsewhere
_STANDARD_FIELDS = frozenset({"ok", "scope", "expires_in"})
_DEEPEST = 8
_MOST_DATA = 16_384


@dataclass(frozen=True, slots=True)
class ProviderResponse:
    status: int
    text: str


@dataclass(frozen=True)
class ProviderHttp:
    """Sends requests to providers, limited in time and size; follows no redirects; thread-safe."""

    #: the limit of a whole exchange, from the DNS look-up to the last byte of the answer
    timeout_seconds: float = 15.0

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx2.create_ssl_context()

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        form: str = "",
        *,
        seconds: float | None = None,
    ) -> ProviderResponse:
        """Send a request; ``seconds`` replaces ``timeout_seconds``.

        Raises:
            ProviderUnavailableError: no complete answer came in time, or it was too large. The outcome is in
                doubt if the form may have been sent. The message names the URL's host, never its query.
        """
        loop, sending = asyncio.new_event_loop(), asyncio.Event()
        try:
            exchange = self._exchange(method, url, headers, form, sending)
            return loop.run_until_complete(_within(seconds or self.timeout_seconds, exchange))
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, TimeoutError) as error:
            host = urlsplit(url).netloc.rpartition("@")[2]
            raise ProviderUnavailableError(
                f"The OAuth provider at {host} did not answer: {str(error) or type(error).__name__}.",
                is_in_doubt=sending.is_set(),
            ) from error
        finally:
            loop.close()  # asyncio.run would wait for a DNS look-up that hangs

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], form: str, sending: asyncio.Event
    ) -> ProviderResponse:
        async def trace(event: str, _info: object) -> None:
            if event.endswith(".send_request_body.started"):
                sending.set()

        async with (
            httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
                # uncompressed, so that the limit of size also limits memory
                headers={"Accept-Encoding": "identity"},
                verify=self._tls,
            ) as client,
            client.stream(
                method, url, headers=headers, content=form or None, extensions={"trace": trace}
            ) as response,
        ):
            data = bytearray()
            async for piece in response.aiter_raw():
                data += piece
                if len(data) > _MAX_BYTES:
                    raise httpx2.ReadError("the answer is too long")
            return ProviderResponse(response.status_code, data.decode("utf-8", "replace"))


async def _within(seconds: float, exchange: Coroutine[Any, Any, ProviderResponse]) -> ProviderResponse:
    """Return an exchange's response if it arrives within ``seconds`` of this process's running time.

    Time is counted in ticks, so that a process that was frozen (SIGSTOP, a paused machine) still reads an
    answer that arrived meanwhile: it may hold the only copy of a refresh token.
    """
    task = asyncio.ensure_future(exchange)
    ticks = math.ceil(seconds / _TICK_SECONDS)
    for _ in range(ticks):
        if (await asyncio.wait({task}, timeout=seconds / ticks))[0]:
            return task.result()
    task.cancel()
    await asyncio.wait({task})
    raise TimeoutError(f"its answer is not complete after {seconds:g} s")


@dataclass(frozen=True, slots=True)
class TokenReply:
    """A token that a provider has just issued."""

    access_token: SecretStr
    token_type: str = "bearer"  # noqa: S105 - a kind, no secret
    refresh_token: SecretStr | None = None
    #: seconds from now; ``None`` if the provider does not say, or the token does not expire
    expires_in: float | None = None
    #: ``None`` if the provider does not say, which means the requested ones (RFC 6749 §5.1)
    scopes: tuple[str, ...] | None = None
    id_token: SecretStr | None = None
    #: all other fields, such as Slack's ``team``
    details: JsonObject = field(default_factory=dict, repr=False)

    def new_grant(self, session: AuthSession, now_ms: float) -> OAuthGrant:
        """Return the grant of a session with this token."""
        return OAuthGrant(
            oauth_app=session.oauth_app,
            provider=session.provider,
            subject=session.subject,
            flow=session.flow,
            scopes_granted=self.scopes or session.requested_scopes,
            token=self._token(now_ms, self.refresh_token),
            created_at=iso_time(now_ms),
            updated_at=iso_time(now_ms),
            provider_data=self.provider_data(),
        )

    def refreshed(self, grant: OAuthGrant, now_ms: float) -> OAuthGrant:
        """Return a grant with this token instead of its own."""
        return grant.model_copy(
            update={
                # RFC 6749 §6: without a new refresh token the old one stays valid
                "token": self._token(now_ms, self.refresh_token or grant.token.refresh_token),
                "scopes_granted": self.scopes or grant.scopes_granted,
                "updated_at": iso_time(now_ms),
                # an earlier version may have stored more than is kept now
                "provider_data": _without_secrets(grant.provider_data),
            }
        )

    def provider_data(self) -> JsonObject:
        """Return the details to store in plain text (000 §12.5.4), without possible secrets.

        They are left out if they exceed 16 KiB.
        """
        tokens = (self.access_token, self.refresh_token, self.id_token)
        details = {name: value for name, value in self.details.items() if name not in _STANDARD_FIELDS}
        data: JsonObject = _without_secrets(details, [one.get_secret_value() for one in tokens if one])
        return data if len(json.dumps(data)) <= _MOST_DATA else {}

    def _token(self, now_ms: float, refresh_token: SecretStr | None) -> OAuthToken:
        return OAuthToken(
            token_type=self.token_type,
            access_token=self.access_token,
            refresh_token=refresh_token,
            expires_at=None if self.expires_in is None else iso_time(now_ms + self.expires_in * 1000),
        )


@dataclass(frozen=True, slots=True)
class Provider:
    """The endpoints of OAuthApps; its methods block.

    A request raises ProviderRefusedError if the provider refuses it (``error`` is its own code, such as
    ``invalid_grant``), ProviderUnavailableError if it gives no usable answer (a retry may help), and
    OAuthError (``configurationError``) if the app lacks the endpoint, or the client's id or secret.
    """

    http: ProviderHttp = field(default_factory=ProviderHttp)

    def authorization_url(self, app: OAuthApp, session: AuthSession) -> str:
        """Return the user's link for consent, with PKCE and state (000 §12.5.6 r2). No request is sent."""
        endpoint = app.endpoints.authorization_url
        if endpoint is None:
            raise OAuthError(f"OAuthApp '{app.name}' has no endpoints.authorizationUrl.")
        url = prepare_grant_uri(
            add_params_to_uri(endpoint, dict(app.query)),
            client_id=app.client_id(),
            response_type="code",
            redirect_uri=session.redirect_uri,
            scope=session.requested_scopes,
            state=_plain(session.state),
            code_challenge=session.code_challenge,
            code_challenge_method="S256",
        )
        return str(url)

    def exchange(self, app: OAuthApp, session: AuthSession, code: str) -> TokenReply:
        """Exchange a code for a token, with the session's verifier (000 §12.5.6 r4, RFC 7636 §4.5)."""
        verifier = _plain(session.code_verifier)
        form = prepare_token_request(
            "authorization_code", code=code, redirect_uri=session.redirect_uri, code_verifier=verifier
        )
        return self._token(app, form, (code, verifier))

    def refresh(self, app: OAuthApp, refresh_token: SecretStr) -> TokenReply:
        """Exchange a refresh token for a token (RFC 6749 §6)."""
        secret = _plain(refresh_token)
        form = prepare_token_request("refresh_token", refresh_token=secret)
        return self._token(app, form, (secret,), seconds=REFRESH_SECONDS)

    def device_authorization(self, app: OAuthApp, scopes: tuple[str, ...]) -> DeviceCode:
        """Request a device code (RFC 8628 §3.1)."""
        url = app.endpoints.device_authorization_url
        if url is None:
            raise OAuthError(
                f"OAuthApp '{app.name}' has no endpoints.deviceAuthorizationUrl.",
                code="deviceCodeUnsupported",
            )
        response = self._post(app, url, add_params_to_qs("", [("scope", " ".join(scopes))]))
        device = device_code_of(answer_fields(app, response, ()))
        if device is None:
            raise ProviderUnavailableError(f"The answer of {app.provider} holds no device code.")
        return device

    def device_token(self, app: OAuthApp, device: DeviceCode) -> TokenReply:
        """Request the token of a device code; the errors of RFC 8628 §3.5 say how to continue."""
        secret = _plain(device.device_code)
        return self._token(app, prepare_token_request(_DEVICE_GRANT, device_code=secret), (secret,))

    def revoke(self, app: OAuthApp, token: SecretStr, *, hint: str) -> bool:
        """Revoke a token of the kind ``hint`` (RFC 7009 §2.1); False if the app has no endpoint for that."""
        if app.endpoints.revoke_url is None:
            return False
        secret = _plain(token)
        form, _ = prepare_revoke_token_request(secret, hint)
        response = self._post(app, app.endpoints.revoke_url, form)
        if response.status != 200 or reply_fields(response.text):  # RFC 7009 §2.2: other text means nothing
            answer_fields(app, response, (secret,))
        return True

    def claims(self, app: OAuthApp, reply: TokenReply) -> JsonObject:
        """Return the provider's claims about the resource owner, if any."""
        claims: JsonObject = {}
        if reply.id_token is not None:
            claims = id_token_claims(_plain(reply.id_token), app.client_id())
        if app.endpoints.user_info_url is None:
            return claims
        token = _plain(reply.access_token)
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
        response = self.http.send("GET", app.endpoints.user_info_url, headers)
        user_info = answer_fields(app, response, (token,))
        # OpenID Connect Core 1.0 §5.3.2: otherwise the answer may be about another user
        if claims and user_info.get("sub") != claims["sub"]:
            raise ProviderRefusedError(
                "userinfo and id_token name different subjects.", error="subject_mismatch"
            )
        return {**claims, **user_info}

    def _token(
        self, app: OAuthApp, form: str, secrets: tuple[str, ...], *, seconds: float | None = None
    ) -> TokenReply:
        response = self._post(app, app.endpoints.token_url, form, seconds=seconds)
        reply = token_reply(answer_fields(app, response, secrets))
        if reply is None:
            raise ProviderUnavailableError(f"The answer of {app.provider} holds no access token.")
        return reply

    def _post(self, app: OAuthApp, url: str, form: str, *, seconds: float | None = None) -> ProviderResponse:
        """Send a form with the client's id and secret, in the form or in a header (RFC 6749 §2.3.1)."""
        auth = ClientAuth(app.client_id(), app.client_secret().get_secret_value(), app.client_auth)
        url, headers, form = auth.prepare("POST", url, dict(_FORM), form)
        return self.http.send("POST", url, headers, form, seconds=seconds)


def answer_fields(app: OAuthApp, response: ProviderResponse, secrets: tuple[str, ...]) -> JsonObject:
    """Return the fields of an answer; no error repeats ``secrets``, which are those of the request.

    Raises:
        ProviderRefusedError: the provider refused.
        ProviderUnavailableError: the answer cannot be read, or reports a temporary error. The outcome is in
            doubt unless the provider surely has not acted; a gateway's 5xx may hide that it has.
    """
    fields = reply_fields(response.text)
    error = None if fields is None else reply_error(fields)
    may_have_acted = not 300 <= response.status < 500
    if response.status >= 500 or response.status in _TEMPORARY_STATUSES or error in _TEMPORARY_ERRORS:
        raise ProviderUnavailableError(
            f"{app.provider} has a temporary error (HTTP {response.status}, {error}).",
            is_in_doubt=error == "server_error" or (may_have_acted and error not in _NOT_BEGUN),
        )
    if fields is not None and error is not None:
        description = masked(str(fields.get("error_description") or ""), filter(None, secrets))
        description = "".join(letter for letter in description if letter.isprintable())[:_LONGEST_DESCRIPTION]
        raise ProviderRefusedError(f"{app.provider} says '{error}'. {description}".strip(), error=error)
    if fields is None or not 200 <= response.status < 300:
        raise ProviderUnavailableError(
            f"{app.provider} gave an answer that cannot be read (HTTP {response.status}).",
            is_in_doubt=may_have_acted,
        )
    return fields


def reply_fields(text: str) -> JsonObject | None:
    """Read a reply as JSON, or form-encoded as GitHub sends it; ``None`` if it is neither."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        if "=" not in text or "<" in text:
            return None
        try:
            return dict(parse_qsl(text.strip(), max_num_fields=100))
        except ValueError:  # too many fields
            return None
    return fields if isinstance(fields, dict) else None


def reply_error(fields: Mapping[str, Any]) -> str | None:
    """Return the error code of a reply, if any; Slack and GitHub also send errors with HTTP 200."""
    error = fields.get("error")
    if isinstance(error, Mapping):
        error = error.get("code") or error.get("type")
    return error_code(error) if error or fields.get("ok") is False else None


def error_code(error: object) -> str:
    """Return a provider's error code if it is well-formed, since it is logged and shown on pages."""
    return error if isinstance(error, str) and _ERROR_CODE.fullmatch(error) else "unknown_error"


def token_reply(fields: Mapping[str, Any]) -> TokenReply | None:
    """Read the token in a reply; ``None`` if it has none."""
    texts = {name: value for name, value in fields.items() if isinstance(value, str) and value}
    secrets = {name: SecretStr(texts[name]) for name in _SECRET_FIELDS & texts.keys()}
    if "access_token" not in secrets:
        return None
    return TokenReply(
        access_token=secrets["access_token"],
        token_type=texts.get("token_type", "bearer").lower(),
        refresh_token=secrets.get("refresh_token"),
        expires_in=_seconds(fields.get("expires_in")),
        scopes=_scopes(fields.get("scope")),
        id_token=secrets.get("id_token"),
        details={name: value for name, value in fields.items() if name not in _SECRET_FIELDS},
    )


def _scopes(scope: Any) -> tuple[str, ...] | None:
    """Read scopes: separated by spaces (RFC 6749 §3.3), by commas (Slack, GitHub), or a list."""
    parts = _SCOPE_SEPARATORS.split(scope) if isinstance(scope, str) else scope
    if not isinstance(parts, list):
        return None
    return tuple(dict.fromkeys(part for part in parts if isinstance(part, str) and part)) or None


def _seconds(value: Any) -> float | None:
    """Read a lifetime, which is text in form-encoded replies; 0 means that the token does not expire."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds <= _LONGEST_TOKEN_SECONDS else None


def _without_secrets(value: Any, secrets: Sequence[str] = (), depth: int = _DEEPEST) -> Any:
    """Return ``value`` without possible secrets, and without texts that contain one of ``secrets``."""
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if depth and not _SECRET_NAME.search(name)}
        return {name: _without_secrets(one, secrets, depth - 1) for name, one in kept.items()}
    if isinstance(value, list):
        return [_without_secrets(one, secrets, depth - 1) for one in value if depth]
    if isinstance(value, str) and (_SECRET_TEXT.search(value) or any(secret in value for secret in secrets)):
        return None
    return value


def device_code_of(fields: Mapping[str, Any]) -> DeviceCode | None:
    """Read a device code (RFC 8628 §3.2); ``None`` if it cannot be used.

    Google calls the URI ``verification_url``. Only web addresses are accepted, because users open them.
    """
    uri = fields.get("verification_uri") or fields.get("verification_url")
    try:
        device = DeviceCode.model_validate({**fields, "verification_uri": uri})
    except ValidationError:
        return None
    is_complete = bool(device.user_code and device.device_code.get_secret_value())
    is_timely = 0 < device.interval <= device.expires_in <= _LONGEST_DEVICE_CODE_SECONDS
    uris = (device.verification_uri, device.verification_uri_complete or device.verification_uri)
    is_web = all(uri.startswith(("https://", "http://")) for uri in uris)
    return device if is_complete and is_timely and is_web else None


def id_token_claims(id_token: str, client_id: str) -> JsonObject:
    """Return the claims of a client's id_token (OpenID Connect Core 1.0 §2).

    Its audience and its times are checked. Its signature is not (§3.1.3.7, 6): it came straight from the
    token endpoint, over the connection that also vouches for the access token.

    Raises:
        ProviderRefusedError: it is malformed, is for another client, or has expired.
    """
    rules = JWTClaimsRegistry(
        leeway=_ID_TOKEN_LEEWAY_SECONDS,
        aud={"essential": True, "value": client_id},
        exp={"essential": True},
        sub={"essential": True},
    )
    try:
        claims = json.loads(jws.extract_compact(id_token.encode()).payload)
        if not isinstance(claims, dict):
            raise TypeError("claims are an object")
        rules.validate(claims)
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise ProviderRefusedError(
            f"The provider's id_token cannot be used: {type(error).__name__}.", error="invalid_id_token"
        ) from error
    return dict(claims)


def _plain(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()

"""Requests that a connector answers, and the signatures by which it knows them.

:func:`verify` needs no ``ctx``: it is a function of a request, a scheme and a secret.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from goondan_tasks.contract.errors import ConnectorError, WebhookRefusedError

#: the limit of a request's and of an answer's body
MAX_BODY_BYTES = 2_097_152
#: how old the signature of a scheme with a timestamp may be, and how far in the future, by default
MAX_AGE_SECONDS = 300.0

#: ``slack``: ``v0=`` and hex, over ``v0:<X-Slack-Request-Timestamp>:<body>``; ``github``: ``sha256=``, hex;
#: ``stripe``: ``t=<time>,v1=<hex>``, over ``<time>.<body>``; the others: hex or base64 of the body's HMAC
Scheme = Literal["slack", "github", "stripe", "hmac-hex", "hmac-base64"]
_HEADERS = {
    "slack": "x-slack-signature",
    "github": "x-hub-signature-256",
    "stripe": "stripe-signature",
}
#: under which name ``verify.webhook.signingSecret`` is among a connector's secrets
SIGNING_SECRET = "SIGNING_SECRET"  # noqa: S105 - a name
_SLACK_TIME = "x-slack-request-timestamp"
_TIME = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to a Connection."""

    method: str
    #: as it was sent, without the query
    path: str
    #: of a parameter that is repeated the last value
    query: Mapping[str, str] = field(default_factory=dict)
    #: names in lower case; the values of a repeated header are joined with ``, ``
    headers: Mapping[str, str] = field(default_factory=dict)
    #: unchanged, as signatures need it
    body: bytes = b""

    def json(self) -> Any:
        """Return the body as JSON.

        Raises:
            WebhookRefusedError: it is not JSON; the answer is 400 if this is not caught.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise WebhookRefusedError(f"The body is not JSON: {error}.", status=400) from error


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer to a request."""

    status: int = 200
    #: text is sent as UTF-8
    body: bytes | str = b""
    headers: Mapping[str, str] = field(default_factory=dict)


#: answers a request; ``None`` is an empty answer with 200, and a dict is its JSON
Answer = HttpResponse | dict[str, Any] | None
Handler = Callable[[HttpRequest], Awaitable[Answer] | Answer]


def json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Return an answer of JSON."""
    return HttpResponse(
        status, json.dumps(value).encode(), {"content-type": "application/json", **(headers or {})}
    )


def verify(
    request: HttpRequest,
    scheme: Scheme,
    secret: str,
    *,
    header: str | None = None,
    max_age_seconds: float = MAX_AGE_SECONDS,
    clock: Callable[[], float] = time.time,
) -> None:
    """Return if the sender of a request knows ``secret``, in constant time; HMAC-SHA256 in all schemes.

    ``header`` is the one with the signature; only the schemes without a service need it. ``clock`` gives
    seconds since 1970.

    Raises:
        WebhookRefusedError: the signature is missing, wrong or too old; the answer is 401 if this is not
            caught.
        ConnectorError: there is no such scheme, no header, or no secret: an empty one anybody knows.
    """
    if scheme not in get_args(Scheme):
        raise ConnectorError(
            f"There is no scheme {scheme!r}.", suggestion=f"Use one of {', '.join(get_args(Scheme))}."
        )
    name = (header or _HEADERS.get(scheme, "")).lower()
    if not name:
        raise ConnectorError(
            f"The scheme {scheme} does not say where the signature is.", suggestion="Name it: header='…'."
        )
    if not secret:
        raise ConnectorError(
            "The secret for signatures is empty.", suggestion="Give the Connection the secret of the service."
        )
    shown = request.headers.get(name, "")
    if not shown:
        raise WebhookRefusedError(f"The request has no signature: it lacks the header {name!r}.")
    signed_at, prefix, candidates = _read(request, scheme, shown)
    if signed_at is not None:
        _require_recent(signed_at, max_age_seconds, clock())
    digest = hmac.new(secret.encode(), prefix + request.body, hashlib.sha256).digest()
    fits = [hmac.compare_digest(digest, _decoded(one, scheme)) for one in candidates]
    if not any(fits):
        raise WebhookRefusedError("The signature of the request does not match.")


def signing_secret(secrets: Mapping[str, str]) -> str:
    """Return the secret with which the service of a Connection signs.

    Raises:
        ConnectorError: the Connection has none.
    """
    try:
        return secrets[SIGNING_SECRET]
    except KeyError:
        raise ConnectorError(
            f"The Connection has no secret {SIGNING_SECRET!r}.",
            suggestion="Give it verify.webhook.signingSecret, or name another one: secret=ctx.secrets[…].",
        ) from None


def _read(request: HttpRequest, scheme: Scheme, shown: str) -> tuple[str | None, bytes, list[str]]:
    """Return when a request was signed, what comes before its body in the signed text, and its signatures."""
    if scheme == "slack":
        signed_at = request.headers.get(_SLACK_TIME, "")
        return signed_at, f"v0:{signed_at}:".encode(), _after("v0=", shown)
    if scheme == "github":
        return None, b"", _after("sha256=", shown)
    if scheme == "stripe":
        parts = [part.strip() for part in shown.split(",")]
        signed_at = next((part[2:] for part in parts if part.startswith("t=")), "")
        return signed_at, f"{signed_at}.".encode(), [one for part in parts for one in _after("v1=", part)]
    return None, b"", [shown]


def _after(prefix: str, text: str) -> list[str]:
    return [text.removeprefix(prefix)] if text.startswith(prefix) else []


def _decoded(signature: str, scheme: Scheme) -> bytes:
    """Return the bytes of a signature; nothing, which no digest is, if it is not written properly."""
    try:
        if scheme == "hmac-base64":
            return base64.b64decode(signature, validate=True)
        return binascii.unhexlify(signature)
    except ValueError:
        return b""


def _require_recent(signed_at: str, max_age_seconds: float, now: float) -> None:
    if not _TIME.fullmatch(signed_at):
        raise WebhookRefusedError("The signature of the request has no time.")
    age = now - int(signed_at)
    if abs(age) > max_age_seconds:
        when = f"{age:.0f} s old" if age > 0 else f"{-age:.0f} s in the future"
        raise WebhookRefusedError(f"The signature of the request is {when}; at most {max_age_seconds:g} s.")

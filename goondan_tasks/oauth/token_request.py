"""What a request for a token means: which app, whose token, which scopes (000 §12.5.1 rules 1 and 2)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from goondan_tasks.bundle.fields import parse_ref
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.resources import scopes_beyond
from goondan_tasks.json_values import member, shown
from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import OAuthError
from goondan_tasks.spelling import hint

#: how long a token must still be valid, unless asked otherwise (000 §12.5)
MIN_TTL_SECONDS = 300


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request that can be answered."""

    app: OAuthApp
    subject: str
    #: fixed beforehand: those that were named, else the app's
    scopes: tuple[str, ...]
    min_ttl_ms: float


def parse_request(
    apps: Mapping[str, OAuthApp],
    oauth_app_ref: Any,
    *,
    scopes: Any,
    min_ttl_seconds: Any,
    auth: JsonObject | None,
) -> TokenRequest:
    """Read a request.

    Raises:
        OAuthError: ``oauthAppNotFound``, ``subjectUnavailable``, ``scopeNotAllowed`` or, for what has
            no form, ``configurationError``.
    """
    app = _app(apps, oauth_app_ref)
    return TokenRequest(
        app=app,
        subject=_subject(app, auth),
        scopes=_scopes(app, scopes),
        min_ttl_ms=_milliseconds(min_ttl_seconds),
    )


def _app(apps: Mapping[str, OAuthApp], raw: Any) -> OAuthApp:
    try:
        ref = parse_ref(raw)
    except FieldError as error:
        raise OAuthError(f"oauthAppRef: {error.message}.", suggestion=error.suggestion) from error
    app = apps.get(ref.name) if ref.kind == "OAuthApp" else None
    if app is None:
        suggestion = hint(ref.name, apps, "Declare an OAuthApp.")
        raise OAuthError(f"The bundle has no '{ref}'.", code="oauthAppNotFound", suggestion=suggestion)
    return app


def _subject(app: OAuthApp, auth: JsonObject | None) -> str:
    subject = member(member(auth, "subjects"), app.subject_mode)
    if isinstance(subject, str) and subject:
        return subject
    raise OAuthError(
        f"turn.auth.subjects.{app.subject_mode} is missing: nobody knows whose token is wanted.",
        code="subjectUnavailable",
        suggestion="Submit the call with auth: {subjects: {global: …, user: …}}.",
    )


def _scopes(app: OAuthApp, scopes: Any) -> tuple[str, ...]:
    """Return what is asked for: those of the app if nothing is said; an empty list asks for none."""
    if scopes is None:
        return app.scopes
    if not isinstance(scopes, list | tuple) or not all(isinstance(scope, str) for scope in scopes):
        raise OAuthError(f"scopes must be a list of texts, not {shown(scopes)}.", code="scopeNotAllowed")
    beyond = scopes_beyond(scopes, app.scopes)
    if beyond:
        raise OAuthError(
            f"OAuthApp '{app.name}' does not list the scope '{beyond[0][:80]}'.",
            code="scopeNotAllowed",
            suggestion=hint(beyond[0], app.scopes),
        )
    return tuple(dict.fromkeys(scopes))


def _milliseconds(seconds: Any) -> float:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not math.isfinite(seconds) or seconds < 0:
        raise OAuthError(f"minTtlSeconds must be a number of seconds, not {shown(seconds)}.")
    return float(seconds) * 1000

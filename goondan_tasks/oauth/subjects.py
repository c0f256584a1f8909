"""Whose token it is that a provider has given out (000 §12.5.6 r5)."""

import re
from collections.abc import Mapping
from typing import Any

from goondan_tasks.oauth.apps import OAuthApp

_CLAIM = re.compile(r"\{([^{}]+)\}")


def needs_claims(app: OAuthApp) -> bool:
    """Say whether the provider has to be asked who the resource owner is."""
    return not app.is_for_anyone


def is_subject(app: OAuthApp, expected: str, claims: Mapping[str, Any]) -> bool:
    """Say whether what a provider says of the resource owner is the subject that was to consent.

    An app's template decides. Without one, the subject of ``subjectMode: user`` must be the user's id
    (``sub``, else ``id``), ``<provider>:<id>`` or ``<provider>:user:<id>``; if nothing is known, nobody has
    consented. A subject that all users share cannot be compared then: anyone may consent if the app says so,
    else nobody.
    """
    if app.subject_template is not None:
        return _filled(app.subject_template, claims) == expected
    if app.subject_mode == "global":
        return app.is_for_anyone
    owner = _identifier(claims.get("sub")) or _identifier(claims.get("id"))
    return owner is not None and expected in {
        owner,
        f"{app.provider}:{owner}",
        f"{app.provider}:user:{owner}",
    }


def _filled(template: str, claims: Mapping[str, Any]) -> str | None:
    """Put claims into their places; ``None`` if one of them is missing."""
    values = {name: _identifier(_claim(claims, name)) for name in _CLAIM.findall(template)}
    if None in values.values():
        return None
    return _CLAIM.sub(lambda place: str(values[place[1]]), template)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return ``team.id``: a claim of that name, as URLs are, or one within another."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _identifier(value: Any) -> str | None:
    """Return an id as text; GitHub's are numbers."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number or (isinstance(value, str) and value) else None

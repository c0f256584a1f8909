"""``auth.pending``: the block that tells a model what its user has to consent to (000 §12.5.8)."""

from collections.abc import Iterable, Mapping

from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.consent import Consent
from goondan_tasks.oauth.records import AuthSession

PENDING = "auth.pending"


def pending_block(
    sessions: Iterable[AuthSession], apps: Mapping[str, OAuthApp], consent: Consent
) -> JsonObject | None:
    """Return the block of pending sessions, with no secret but in their links; ``None`` without any."""
    items = [
        _item(session, consent.required(app, session).to_wire())
        for session in sessions
        if session.status == "pending" and (app := apps.get(session.oauth_app)) is not None
    ]
    return {"type": PENDING, "items": items} if items else None


def _item(session: AuthSession, required: JsonObject) -> JsonObject:
    told = {name: value for name, value in required.items() if name != "status"}
    return {
        "oauthAppRef": {"kind": "OAuthApp", "name": session.oauth_app},
        "provider": session.provider,
        "subjectMode": session.subject_mode,
        **told,
    }

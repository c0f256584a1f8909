"""``goondan oauth revoke``: take a grant back, at the provider and here."""

from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.oauth_session import oauth_store
from goondan_tasks.cli.session import Session
from goondan_tasks.clocks import wall_clock
from goondan_tasks.oauth import manager
from goondan_tasks.oauth.apps import OAuthApp, apps_of
from goondan_tasks.oauth.oauth_errors import OAuthError, OAuthStoreError
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.records import grant_name
from goondan_tasks.oauth.store import OAuthStore


def revoke_grant(session: Session, app_name: str, subject: str) -> None:
    """Revoke a subject's grant; one that cannot be read is removed.

    Raises:
        OAuthError: ``grant_not_found``.
    """
    with oauth_store(session) as store:
        try:
            app = _app(session, app_name)
            is_told = manager.revoke_grant(
                store, Provider(), wall_clock, oauth_app=app_name, subject=subject, app=app
            )
        except OAuthStoreError:
            return _remove(session, store, grant_name(app_name, subject))
    if session.output.as_json:
        return session.output.document({"revoked": True, "providerTold": is_told})
    told = "the provider knows" if is_told else "the provider was not told: revoke it there, too"
    return session.output.print(f"revoked; {told}")


def remove_record(session: Session, name: str) -> None:
    """Remove a grant or a session by its record's name, whether it can be read or not.

    Raises:
        OAuthError: ``grant_not_found``, ``session_not_found``.
    """
    with oauth_store(session) as store:
        if not name.startswith("as-"):
            return _remove(session, store, name)
        _require(store.forget_session(name), "session", name)
    if session.output.as_json:
        return session.output.document({"removed": True})
    return session.output.print("removed; its link is of no use any more")


def _remove(session: Session, store: OAuthStore, name: str) -> None:
    _require(store.forget_grant(name), "grant", name)
    if session.output.as_json:
        return session.output.document({"removed": True, "providerTold": False})
    return session.output.print("removed; the provider was not told: revoke it there, too")


def _require(was_there: bool, kind: str, name: str) -> None:
    if not was_there:
        raise OAuthError(
            f"There is no {kind} {name}.",
            code=f"{kind}_not_found",
            suggestion=f"`goondan oauth {kind}s` lists them all.",
        )


def _app(session: Session, name: str) -> OAuthApp | None:
    """Return where the provider is told; without a bundle nobody knows."""
    if session.settings.bundle is None:
        return None
    return apps_of(load_bundle(session.settings.bundle).oauth_apps).get(name)

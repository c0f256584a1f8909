"""``goondan oauth apps|grants|sessions``: what there is, without any secret."""

from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.call_view import listed_time
from goondan_tasks.cli.oauth_session import oauth_store
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.session import Session
from goondan_tasks.errors import ConfigError
from goondan_tasks.messages import JsonObject, epoch_milliseconds
from goondan_tasks.oauth.apps import OAuthApp, apps_of
from goondan_tasks.oauth.records import AuthSession
from goondan_tasks.oauth.store import UnreadableRecord

NO_APP = "The bundle has no OAuthApp: declare a resource of that kind."


def list_apps(session: Session) -> None:
    """Show the OAuthApps of the bundle.

    Raises:
        ConfigError: there is no bundle, or it is not valid.
    """
    if session.settings.bundle is None:
        raise ConfigError("There is no bundle.", suggestion="Give --bundle PATH, or set GOONDAN_BUNDLE.")
    apps = [_app_facts(app) for app in apps_of(load_bundle(session.settings.bundle).oauth_apps).values()]
    _show(session, apps, ("name", "provider", "flow", "subjectMode", "scopes"), none=NO_APP)


def apps_in_words(session: Session) -> str:
    """Say which OAuthApps there are; raises ConfigError if the bundle is not valid."""
    if session.settings.bundle is None:
        return "Which apps there are says the bundle: give --bundle PATH, or set GOONDAN_BUNDLE."
    names = sorted(apps_of(load_bundle(session.settings.bundle).oauth_apps))
    return f"The bundle's apps: {', '.join(names)}." if names else NO_APP


def list_grants(session: Session) -> None:
    """Show the grants of the store, damaged ones last; a narrow terminal has no room for their names."""
    unreadable: list[UnreadableRecord] = []
    with oauth_store(session) as store:
        grants = [grant.to_wire() for grant in store.grants(unreadable.append)]
    grants += [{"name": one.name, **_why(one)} for one in unreadable]
    _note_first(unreadable, session.output)
    _show(
        session,
        grants,
        ("oauthApp", "subject", "scopesGranted", "expiresAt", "revoked", "name"),
        spare="name",
        none="Nobody has granted anything: `goondan oauth login APP --subject S` asks somebody.",
    )


def list_sessions(session: Session) -> None:
    """Show the sessions of the store, those that cannot be read last; on a narrow terminal without scopes."""
    unreadable: list[UnreadableRecord] = []
    with oauth_store(session) as store:
        sessions = [_session_facts(one) for one in store.sessions(unreadable.append)]
    sessions += map(_unreadable_facts, unreadable)
    _note_first(unreadable, session.output)
    _show(
        session,
        sessions,
        ("oauthApp", "subject", "requestedScopes", "status", "expiresAt", "id"),
        spare="requestedScopes",
        none="Nobody is asked for a consent.",
    )


def _app_facts(app: OAuthApp) -> JsonObject:
    return {
        "name": app.name,
        "provider": app.provider,
        "flow": app.flow,
        "subjectMode": app.subject_mode,
        "scopes": app.scopes,
        "callbackPath": app.callback_path,
    }


def _session_facts(session: AuthSession) -> JsonObject:
    shown = {"id", "oauth_app", "provider", "subject_mode", "subject", "requested_scopes", "flow", "status"}
    shown |= {"reason", "created_at", "expires_at"}
    facts = session.model_dump(by_alias=True, exclude_none=True, include=shown)
    return {**facts, "resumes": [f"{one.agent_name}@{one.instance_key}" for one in session.resumes]}


def _unreadable_facts(session: UnreadableRecord) -> JsonObject:
    known = {} if session.summary is None else session.summary.to_wire()
    return {"id": session.name, **known, **_why(session)}


def _why(record: UnreadableRecord) -> JsonObject:
    return {"status": "unreadable", "reason": record.error.message}


def _note_first(unreadable: list[UnreadableRecord], output: Output) -> None:
    """Say what to do about the first of those that cannot be read."""
    if unreadable:
        output.note(f"{unreadable[0].error.message} {unreadable[0].error.suggestion}")


def _show(
    session: Session, rows: list[JsonObject], columns: tuple[str, ...], *, none: str, spare: str = ""
) -> None:
    if session.output.as_json:
        return session.output.document(rows)
    cells = [[_cell(row.get(column), column, session.output) for column in columns] for row in rows]
    return session.output.table(columns, cells, unbroken=columns[-1], spare={spare}, none=none)


def _cell(value: object, column: str, output: Output) -> object:
    if column == "expiresAt" and isinstance(value, str):
        return listed_time(epoch_milliseconds(value), output)
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value

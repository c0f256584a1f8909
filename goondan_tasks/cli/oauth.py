"""``goondan oauth``: tokens for tools, and the consents they need."""

from enum import StrEnum
from typing import Annotated

import typer

from goondan_tasks.cli.extras import extra
from goondan_tasks.cli.http_options import Address, Port
from goondan_tasks.cli.oauth_keys import rotate_key
from goondan_tasks.cli.oauth_lists import apps_in_words, list_apps, list_grants, list_sessions
from goondan_tasks.cli.oauth_serve import serve_oauth
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.turn_options import require_some_text


class Action(StrEnum):
    """What is to be done."""

    APPS = "apps"
    GRANTS = "grants"
    SESSIONS = "sessions"
    LOGIN = "login"
    REVOKE = "revoke"
    SERVE = "serve"
    ROTATE_KEY = "rotate-key"


_PLAIN = {
    Action.APPS: list_apps,
    Action.GRANTS: list_grants,
    Action.SESSIONS: list_sessions,
    Action.ROTATE_KEY: rotate_key,
}


@takes_session
def oauth(
    session: Session,
    action: Annotated[
        Action,
        typer.Argument(metavar="ACTION", help="apps, grants, sessions, login, revoke, serve or rotate-key."),
    ],
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="APP",
            help="The OAuthApp, for login and revoke; for revoke also a grant's or session's name.",
        ),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="S", help="Whose consent, such as slack:user:T111:U234567.")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="One of the app's scopes; else all of them.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="A", help="The agent that login tells with auth.granted.")
    ] = None,
    instance: Annotated[
        str, typer.Option(metavar="K", callback=require_some_text, help="The instance of that agent.")
    ] = "default",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
    port: Port = None,
    address: Address = None,
) -> None:
    """Look at OAuthApps, grants and sessions; have users consent, take it back, serve callbacks, rotate keys.

    login APP --subject S prints a link, opens it, and waits for at most ten minutes. serve also looks after
    device codes. revoke APP --subject S takes a grant back, at the provider too if the bundle says where.
    rotate-key encrypts the store with the first key of GOONDAN_OAUTH_KEY, or with a new one in the key file.
    No token is ever printed.
    """
    if action in _PLAIN:
        return _PLAIN[action](session)
    if action is Action.SERVE:
        return serve_oauth(session, port=port, address=address)
    if action is Action.REVOKE:
        return _revoke(session, app, subject)
    if app is None or subject is None:
        raise typer.BadParameter(f"login takes an APP and --subject. {apps_in_words(session)}")
    with extra("oauth"):  # optional: only now
        from goondan_tasks.cli.oauth_login import Login, log_in
    return log_in(session, Login(app, subject, tuple(scope or ()), agent, instance, not no_browser))


def _revoke(session: Session, app: str | None, subject: str | None) -> None:
    with extra("oauth"):  # optional: only now
        from goondan_tasks.cli.oauth_revoke import remove_record, revoke_grant
    if app is not None and subject is not None:
        return revoke_grant(session, app, subject)
    if app is None or not app.startswith(("sha256:", "as-")):
        raise typer.BadParameter(
            "revoke takes an APP and --subject, or the name of a grant (sha256:…) or session (as-…)."
        )
    return remove_record(session, app)

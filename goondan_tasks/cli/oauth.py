"""``goondan oauth``: tokens for tools, and the consents they need."""

from enum import StrEnum
from typing import Annotated

import typer

from goondan_tasks.cli.extras import extra
from goondan_tasks.cli.http_options import Address, Port
from goondan_tasks.cli.oauth_serve import serve_oauth
from goondan_tasks.cli.session import Session, takes_session


class Action(StrEnum):
    """What is to be done."""

    LOGIN = "login"
    SERVE = "serve"


@takes_session
def oauth(
    session: Session,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="login or serve.")],
    app: Annotated[str | None, typer.Argument(metavar="APP", help="The OAuthApp, for login.")] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="S", help="Whose consent, such as slack:user:T111:U234567.")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="One of the app's scopes; else all of them.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="A", help="The agent that login tells with auth.granted.")
    ] = None,
    instance: Annotated[str, typer.Option(metavar="K", help="The instance of that agent.")] = "default",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
    port: Port = None,
    address: Address = None,
) -> None:
    """Ask somebody for consent and wait for it, or serve the callbacks of all OAuthApps.

    login APP --subject S prints a link, opens it, and waits for at most ten minutes. serve also looks after
    device codes.
    """
    if action is Action.SERVE:
        return serve_oauth(session, port=port, address=address)
    if app is None or subject is None:
        raise typer.BadParameter("login takes an APP and --subject.")
    with extra("oauth"):  # optional: only now
        from goondan_tasks.cli.oauth_login import Login, log_in
    return log_in(session, Login(app, subject, tuple(scope or ()), agent, instance, not no_browser))

"""``goondan oauth login``: have somebody consent now, in the browser of this machine or any other."""

import contextlib
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import typer
from starlette.types import ASGIApp

from goondan_tasks.bundle import Bundle
from goondan_tasks.cli.interruption import Interruption
from goondan_tasks.cli.oauth_session import OAuthSession, oauth_session
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.selection import chosen_agents
from goondan_tasks.cli.session import Session
from goondan_tasks.http import listening, served
from goondan_tasks.logs import configure_logging
from goondan_tasks.loopback import is_loopback
from goondan_tasks.oauth.callback_app import make_app
from goondan_tasks.oauth.consent import Callback, Maintenance, make_manager, public_url_of
from goondan_tasks.oauth.manager import AuthorizationRequired, TokenRequest, parse_request
from goondan_tasks.oauth.oauth_errors import ConsentError
from goondan_tasks.oauth.records import AuthSession, Resume

_LOOK_SECONDS = 0.5
_ELSEWHERE = "It has to be `goondan oauth serve` that listens there, for this command cannot"
_OVER = frozenset({"completed", "failed", "expired"})


@dataclass(frozen=True, slots=True)
class Login:
    """Whose consent is asked for, to what, and which agent is told of it."""

    app: str
    subject: str
    #: some of the app's; empty for all
    scopes: tuple[str, ...] = ()
    agent: str | None = None
    instance: str = "default"
    opens_browser: bool = True


def log_in(session: Session, login: Login) -> None:
    """Ask, wait, and say what came of it.

    Raises:
        OAuthError: the request is none, or it was refused.
        AgentNotFoundError: the Swarm has no such agent.
    """
    configure_logging(session.settings)
    with oauth_session(session) as oauth:
        request = _request(oauth, login)
        resume = resume_of(oauth.bundle, session.settings.swarm, login)
        public_url = public_url_of(session.settings)
        manager = make_manager(oauth.apps, oauth.store, public_url=public_url, clock=oauth.clock)
        callback = Callback(oauth.apps, oauth.store, oauth.client.send, oauth.clock, public_url)
        required = manager.consent.begin(request.app, request.subject, request.scopes, resume)
        opened = oauth.store.session(required.auth_session_id)
        place = opened.redirect_uri if opened else None  # a link that was out before leads where it did
        app = make_app(callback)
        with _received_here(app, place, session.output), Maintenance(callback).running():
            _show(required, login, session.output)
            ended = _wait(oauth, required)
        _tell(oauth, ended, session.output)


def _request(oauth: OAuthSession, login: Login) -> TokenRequest:
    """Read what is asked for as a tool's request is read."""
    app = oauth.apps.get(login.app)
    subjects = {app.subject_mode: login.subject} if app else {}
    return parse_request(
        oauth.apps,
        {"kind": "OAuthApp", "name": login.app},
        scopes=login.scopes or None,
        min_ttl_seconds=0,
        auth={"subjects": subjects},
    )


def resume_of(bundle: Bundle, swarm: str | None, login: Login) -> Resume | None:
    """Return who is told of the consent: the same as if its worker had asked.

    Raises:
        AgentNotFoundError: the Swarm has no such agent.
    """
    if login.agent is None:
        return None
    [agent] = chosen_agents(bundle, swarm, [login.agent])
    return Resume(swarm=bundle.swarm(swarm).name, agent_name=agent, instance_key=login.instance)


@contextlib.contextmanager
def _received_here(app: ASGIApp, place: str | None, output: Output) -> Iterator[None]:
    """Serve the callback if it is on this machine, unless somebody else listens there."""
    parts = urlsplit(place or "")
    with contextlib.ExitStack() as resources:
        if parts.scheme == "http" and is_loopback(parts.hostname or ""):
            try:
                server = resources.enter_context(listening(parts.hostname or "", parts.port or 80))
                resources.enter_context(served(app, server))
            except OSError as error:
                output.note(f"The link leads back to {place}. {_ELSEWHERE}: {error.strerror or error}.")
        yield


def _show(required: AuthorizationRequired, login: Login, output: Output) -> None:
    output.note(f"{required.message}\n{required.authorization_url}")
    if login.opens_browser:
        webbrowser.open(required.authorization_url)


def _wait(oauth: OAuthSession, required: AuthorizationRequired) -> AuthSession:
    """Wait until the session has ended; it does so by itself after some minutes."""
    interruption = Interruption()
    with interruption.listening():
        while not interruption.asked.wait(_LOOK_SECONDS):
            session = oauth.store.session(required.auth_session_id)
            if session is None or session.status in _OVER:
                break
    if interruption.asked.is_set():
        raise typer.Exit(interruption.exit_code)
    if session is None:
        raise ConsentError("The session is gone.", code="session_not_found")
    return session


def _tell(oauth: OAuthSession, ended: AuthSession, output: Output) -> None:
    if ended.status != "completed":
        code = "session_expired" if ended.status == "expired" else ended.reason
        raise ConsentError(f"Nothing was granted: {code}.", code=code)
    grant = oauth.store.grant(ended.oauth_app, ended.subject)
    scopes = () if grant is None else grant.scopes_granted
    if output.as_json:
        granted = {"status": "granted", "oauthApp": ended.oauth_app, "subject": ended.subject}
        return output.document({**granted, "scopesGranted": list(scopes)})
    return output.print(f"{ended.subject} has granted {', '.join(scopes)} to {ended.oauth_app}.")

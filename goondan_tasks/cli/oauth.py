"""``goondan oauth``: tokens for tools, and the consents they need. No token is ever printed."""

import contextlib
import webbrowser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from broker_config.connections import connect
from goondan_tasks.bundle import Bundle
from goondan_tasks.cli.extras import extra
from goondan_tasks.cli.options import Address, Port, require_some_text
from goondan_tasks.cli.output import Output, listing
from goondan_tasks.cli.servers import announced
from goondan_tasks.cli.session import Interruption, Session, chosen_agents, require_broker, takes_session
from goondan_tasks.client import Client
from goondan_tasks.client.broker_errors import broker_errors
from goondan_tasks.errors import OAuthStoreError
from goondan_tasks.logs import configure_logging
from goondan_tasks.messages import Clock, JsonObject, epoch_milliseconds, wall_clock
from goondan_tasks.oauth.apps import OAuthApp, apps_of
from goondan_tasks.oauth.file_store import KeyFile
from goondan_tasks.oauth.manager import TokenRequest, parse_request, revoke_grant
from goondan_tasks.oauth.oauth_errors import ConsentError, OAuthError
from goondan_tasks.oauth.opening import open_keys, open_store, require_keys, store_clock
from goondan_tasks.oauth.records import AuthSession, Resume, grant_name
from goondan_tasks.oauth.store import OAuthStore, UnreadableRecord
from goondan_tasks.process import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp  # an extra

_LOOK_SECONDS = 0.5
_OVER = frozenset({"completed", "failed", "expired"})
_NO_APP = "The bundle has no OAuthApp: declare a resource of that kind."
_NO_GRANT = "No user has granted anything: `goondan oauth login APP --subject S` asks for a consent."

Subject = typer.Option(metavar="S", help="Whose consent, such as slack:user:T111:U234567.")


@dataclass(frozen=True, slots=True)
class OAuthSession:
    """The bundle and its OAuthApps, the store, its clock, and a client that can wake agents."""

    bundle: Bundle
    apps: Mapping[str, OAuthApp]
    store: OAuthStore
    clock: Clock
    client: Client


@takes_session
def apps(session: Session) -> None:
    """List the OAuthApps of the bundle."""
    found = [
        {
            "name": app.name,
            "provider": app.provider,
            "flow": app.flow,
            "subjectMode": app.subject_mode,
            "scopes": app.scopes,
            "callbackPath": app.callback_path,
        }
        for app in apps_of(session.bundle().oauth_apps).values()
    ]
    _show(session.output, found, ("name", "provider", "flow", "subjectMode", "scopes"), none=_NO_APP)


@takes_session
def grants(session: Session) -> None:
    """List who has consented to what, damaged records last; a narrow terminal has no room for their names."""
    unreadable: list[UnreadableRecord] = []
    with _opened_store(session) as store:
        found = [grant.to_wire() for grant in store.grants(unreadable.append)]
    found += [{"name": one.name, **_why(one)} for one in unreadable]
    _note_first(unreadable, session.output)
    columns = ("oauthApp", "subject", "scopesGranted", "expiresAt", "revoked", "name")
    _show(session.output, found, columns, none=_NO_GRANT, spare="name")


@takes_session
def sessions(session: Session) -> None:
    """List the consents that are asked for, and what became of the last hour's; unreadable ones last.

    On a narrow terminal scopes are left out.
    """
    unreadable: list[UnreadableRecord] = []
    with _opened_store(session) as store:
        found = [_session_facts(one) for one in store.sessions(unreadable.append)]
    for one in unreadable:
        known = one.summary.to_wire() if one.summary else {}
        found += [{"id": one.name, **known, **_why(one)}]
    _note_first(unreadable, session.output)
    columns = ("oauthApp", "subject", "requestedScopes", "status", "expiresAt", "id")
    _show(session.output, found, columns, none="No consent is asked for.", spare="requestedScopes")


@takes_session
def rotate_key(session: Session) -> None:
    """Encrypt every record with the first key of GOONDAN_OAUTH_KEY, or with a new one in the key file.

    The keys before it still decrypt: no process has to be stopped.
    """
    keys = open_keys(session.settings)
    if isinstance(keys, KeyFile):
        keys.rotate()
    with _opened_store(session) as store:
        count = store.encrypt_again()
    text = f"{count} records are encrypted again, with the key {keys.current.id}"
    session.output.give({"keyId": keys.current.id, "encryptedAgain": count}, text)


@takes_session
def serve(session: Session, port: Port = None, address: Address = None) -> None:
    """Serve the callbacks of all OAuthApps, and look after device codes, until Ctrl-C."""
    with extra("oauth"):  # optional: only now
        from goondan_tasks.http import serve
        from goondan_tasks.oauth.callback_app import make_app
        from goondan_tasks.oauth.consent import Callback, Maintenance, public_url_of
    configure_logging(session.settings)
    with opened(session) as oauth:
        public_url = public_url_of(session.settings)
        callback = Callback(oauth.apps, oauth.store, oauth.client.send, oauth.clock, public_url)
        with (
            Interruption().listening(),
            Maintenance(callback).running(),
            announced(session, address, port, "") as server,
        ):
            serve(make_app(callback), server)


@takes_session
def revoke(
    session: Session,
    app: Annotated[
        str, typer.Argument(metavar="APP", help="The OAuthApp; or the name of a grant or a session.")
    ],
    subject: Annotated[str | None, Subject] = None,
) -> None:
    """Revoke a subject's grant, at the provider too if the bundle says where.

    With a record's name (sha256:…, as-…) remove that grant or session, whether it can be read or not.
    """
    with extra("oauth"):  # optional: only now
        from goondan_tasks.oauth.provider import Provider
    if subject is None:
        return _remove_record(session, app)
    with _opened_store(session) as store:
        known = apps_of(session.bundle().oauth_apps).get(app) if session.settings.bundle else None
        try:
            is_told = revoke_grant(store, Provider(), wall_clock, oauth_app=app, subject=subject, app=known)
        except OAuthStoreError:
            return _remove_grant(session.output, store, grant_name(app, subject))
    told = "the provider knows" if is_told else "the provider was not told: revoke it there, too"
    return session.output.give({"revoked": True, "providerTold": is_told}, f"revoked; {told}")


@takes_session
def login(
    session: Session,
    app: Annotated[str | None, typer.Argument(metavar="APP", help="The OAuthApp.")] = None,
    subject: Annotated[str | None, Subject] = None,
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="One of the app's scopes; else all of them.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="A", help="The agent to tell with auth.granted.")
    ] = None,
    instance: Annotated[
        str | None, typer.Option(metavar="K", callback=require_some_text, help="The instance of that agent.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
) -> None:
    """Ask a user for consent: print a link, open it, and wait for at most ten minutes."""
    if app is None or subject is None:
        raise typer.BadParameter(f"login takes an APP and --subject. {_apps_in_words(session)}")
    if instance is not None and agent is None:
        raise typer.BadParameter("--instance goes with --agent.")
    with extra("oauth"):  # optional: only now
        from goondan_tasks.oauth.callback_app import make_app
        from goondan_tasks.oauth.consent import Callback, Maintenance, make_manager, public_url_of
    configure_logging(session.settings)
    with opened(session) as oauth:
        request = _request(oauth, app, subject, scope)
        resume = resume_of(oauth.bundle, session.settings.swarm, agent, instance or "default")
        public_url, apps, store, clock = public_url_of(session.settings), oauth.apps, oauth.store, oauth.clock
        manager = make_manager(apps, store, public_url=public_url, clock=clock)
        callback = Callback(apps, store, oauth.client.send, clock, public_url)
        required = manager.consent.begin(request.app, request.subject, request.scopes, resume)
        begun = store.session(required.auth_session_id)
        place = begun.redirect_uri if begun else None  # an earlier link leads where it did
        with _received_here(make_app(callback), place, session.output), Maintenance(callback).running():
            session.output.note(f"{required.message}\n{required.authorization_url}")
            if not no_browser:
                webbrowser.open(required.authorization_url)
            ended = _wait(store, required.auth_session_id)
        _tell(store, ended, session.output)


@contextlib.contextmanager
def opened(session: Session) -> Iterator[OAuthSession]:
    """Open what login and serve work with, for the length of a ``with`` block.

    Raises:
        BrokerUnreachableError: Redis cannot be reached.
        ConfigError: there is no bundle, or it is not valid.
        OAuthStoreError: the keys of the store are not those of its grants.
    """
    settings, bundle = session.settings, session.bundle()
    require_broker(settings)
    with (
        connect(settings.redis_url, name="goondan-oauth") as redis,
        broker_errors(settings.redis_url),
        Client(settings, bundle) as client,
    ):
        keys = open_keys(settings)
        store = open_store(settings, redis, keys)
        require_keys(store, keys)
        yield OAuthSession(bundle, apps_of(bundle.oauth_apps), store, store_clock(settings, redis), client)


def resume_of(bundle: Bundle, swarm: str | None, agent: str | None, instance: str) -> Resume | None:
    """Return the agent that is told of the consent: the same as if its worker had asked.

    Raises:
        AgentNotFoundError: the Swarm has no such agent.
    """
    if agent is None:
        return None
    [name] = chosen_agents(bundle, swarm, [agent])
    return Resume(swarm=bundle.swarm(swarm).name, agent_name=name, instance_key=instance)


@contextlib.contextmanager
def _opened_store(session: Session) -> Iterator[OAuthStore]:
    """Open the store for the length of a ``with`` block; one in files needs no Redis."""
    settings = session.settings
    if settings.oauth_store == "redis":
        require_broker(settings)
    with connect(settings.redis_url, name="goondan-oauth") as redis, broker_errors(settings.redis_url):
        yield open_store(settings, redis)


def _request(oauth: OAuthSession, app: str, subject: str, scopes: list[str] | None) -> TokenRequest:
    """Read what is asked for as a tool's request is read."""
    known = oauth.apps.get(app)
    return parse_request(
        oauth.apps,
        {"kind": "OAuthApp", "name": app},
        scopes=tuple(scopes) if scopes else None,
        min_ttl_seconds=0,
        auth={"subjects": {known.subject_mode: subject} if known else {}},
    )


@contextlib.contextmanager
def _received_here(app: "ASGIApp", place: str | None, output: Output) -> Iterator[None]:
    """Serve the callback if it is on this machine, unless another server listens there."""
    from goondan_tasks.http import listening, served  # an extra, as in login

    parts = urlsplit(place or "")
    with contextlib.ExitStack() as resources:
        if parts.scheme == "http" and is_loopback(parts.hostname or ""):
            try:
                server = resources.enter_context(listening(parts.hostname or "", parts.port or 80))
                resources.enter_context(served(app, server))
            except OSError as error:
                output.note(
                    f"The link leads back to {place}. It has to be `goondan oauth serve` that listens there, "
                    f"for this command cannot: {error.strerror or error}."
                )
        yield


def _wait(store: OAuthStore, session_id: str) -> AuthSession:
    """Wait until the session has ended; it does so by itself after some minutes."""
    interruption = Interruption()
    with interruption.listening():
        while not interruption.asked.wait(_LOOK_SECONDS):
            session = store.session(session_id)
            if session is None or session.status in _OVER:
                break
    if interruption.asked.is_set():
        raise typer.Exit(interruption.exit_code)
    if session is None:
        raise ConsentError("The session is gone.", code="session_not_found")
    return session


def _tell(store: OAuthStore, ended: AuthSession, output: Output) -> None:
    if ended.status != "completed":
        code = "session_expired" if ended.status == "expired" else ended.reason
        raise ConsentError(f"Nothing was granted: {code}.", code=code)
    grant = store.grant(ended.oauth_app, ended.subject)
    scopes = [] if grant is None else list(grant.scopes_granted)
    granted = {"status": "granted", "oauthApp": ended.oauth_app, "subject": ended.subject}
    text = f"{ended.subject} has granted {', '.join(scopes)} to {ended.oauth_app}."
    output.give({**granted, "scopesGranted": scopes}, text)


def _apps_in_words(session: Session) -> str:
    if session.settings.bundle is None:
        return "The bundle says which apps there are: give --bundle PATH, or set GOONDAN_BUNDLE."
    names = sorted(apps_of(session.bundle().oauth_apps))
    return f"The bundle's apps: {', '.join(names)}." if names else _NO_APP


def _remove_record(session: Session, name: str) -> None:
    if not name.startswith(("sha256:", "as-")):
        raise typer.BadParameter(
            "revoke takes an APP and --subject, or the name of a grant (sha256:…) or session (as-…)."
        )
    with _opened_store(session) as store:
        if not name.startswith("as-"):
            return _remove_grant(session.output, store, name)
        _require(store.forget_session(name), "session", name)
    return session.output.give({"removed": True}, "removed; its link no longer works")


def _remove_grant(output: Output, store: OAuthStore, name: str) -> None:
    _require(store.forget_grant(name), "grant", name)
    text = "removed; the provider was not told: revoke it there, too"
    output.give({"removed": True, "providerTold": False}, text)


def _require(was_there: bool, kind: str, name: str) -> None:
    if not was_there:
        raise OAuthError(
            f"There is no {kind} {name}.",
            code=f"{kind}_not_found",
            suggestion=f"`goondan oauth {kind}s` lists them all.",
        )


def _session_facts(session: AuthSession) -> JsonObject:
    shown = {"id", "oauth_app", "provider", "subject_mode", "subject", "requested_scopes", "flow", "status"}
    shown |= {"reason", "created_at", "expires_at"}
    facts = session.model_dump(by_alias=True, exclude_none=True, include=shown)
    return {**facts, "resumes": [f"{one.agent_name}@{one.instance_key}" for one in session.resumes]}


def _why(record: UnreadableRecord) -> JsonObject:
    return {"status": "unreadable", "reason": record.error.message}


def _note_first(unreadable: list[UnreadableRecord], output: Output) -> None:
    """Say what to do about the first of those that cannot be read."""
    if unreadable:
        output.note(f"{unreadable[0].error.message} {unreadable[0].error.suggestion}")


def _show(
    output: Output, found: list[JsonObject], columns: tuple[str, ...], *, none: str, spare: str = ""
) -> None:
    cells = {column: partial(_cell, column=column, output=output) for column in columns}
    output.write(listing(found, cells, none=none, unbroken=columns[-1], spare={spare}))


def _cell(item: JsonObject, column: str, output: Output) -> object:
    value = item.get(column)
    if column == "expiresAt" and isinstance(value, str):
        return output.time(epoch_milliseconds(value))
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value

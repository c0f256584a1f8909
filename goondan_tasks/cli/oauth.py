"""``goondan oauth``: tokens for tools, and the consents behind them. No token is ever printed."""

import contextlib
import webbrowser
from collections.abc import Iterator, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from broker_config.connections import connect
from goondan_tasks.bundle import Bundle
from goondan_tasks.cli.doors import web
from goondan_tasks.cli.options import argument, flag, name_option, option
from goondan_tasks.cli.output import Output, listing
from goondan_tasks.cli.session import Interruption, Session, chosen_agents, require_broker, takes_session
from goondan_tasks.client import Client
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.errors import OAuthStoreError, extra
from goondan_tasks.contract.logs import configure_logging
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.wording import counted
from goondan_tasks.machine.process import is_loopback, listening
from goondan_tasks.oauth.apps import apps_of
from goondan_tasks.oauth.file_store import KeyFile
from goondan_tasks.oauth.manager import (
    open_keys,
    open_store,
    parse_request,
)
from goondan_tasks.oauth.records import AuthSession, ConsentError, OAuthError, Resume, grant_name
from goondan_tasks.oauth.store import OAuthStore, UnreadableRecord

_LOOK_SECONDS = 0.5
_FINAL = frozenset({"completed", "failed", "expired"})
_NO_APP = "The bundle has no OAuthApp: declare a resource of that kind."
_NO_GRANT = "No user has given consent; ask for it with `goondan oauth login APP --subject S`."

Subject = typer.Option(metavar="S", help="The subject who consents, such as slack:user:T111:U234567.")


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
    columns = ("name", "provider", "flow", "subjectMode", "scopes")
    _show(session.output, found, columns, none=_NO_APP)


@takes_session
def grants(session: Session) -> None:
    """List the consents that users have given, unreadable records last.

    A narrow terminal omits the names of records.
    """
    unreadable: list[UnreadableRecord] = []
    with _opened_store(session) as store:
        found = [grant.to_wire() for grant in store.grants(unreadable.append)]
    found += [{"name": one.name, **_why(one)} for one in unreadable]
    columns = ("oauthApp", "subject", "scopesGranted", "expiresAt", "revoked", "name")
    _show(session.output, found, columns, none=_NO_GRANT, spare="name", unreadable=unreadable)


@takes_session
def sessions(session: Session) -> None:
    """List the pending consent requests and those of the last hour, unreadable ones last.

    A narrow terminal omits the scopes.
    """
    unreadable: list[UnreadableRecord] = []
    with _opened_store(session) as store:
        found = [_session_facts(one) for one in store.sessions(unreadable.append)]
    for one in unreadable:
        known = one.summary.to_wire() if one.summary else {}
        found += [{"id": one.name, **known, **_why(one)}]
    columns = ("oauthApp", "subject", "requestedScopes", "status", "expiresAt", "id")
    none = "There are no consent requests."
    _show(session.output, found, columns, none=none, spare="requestedScopes", unreadable=unreadable)


@takes_session
def rotate_key(session: Session) -> None:
    """Encrypt every record with the first key of GOONDAN_OAUTH_KEY, or with a new key in the key file.

    Older keys still decrypt, so no process has to stop.
    """
    keys = open_keys(session.settings)
    if isinstance(keys, KeyFile):
        keys.rotate()
    with _opened_store(session) as store:
        count = store.encrypt_again()
    text = f"encrypted {counted(count, 'record')} with the key {keys.current.id}"
    session.output.give({"keyId": keys.current.id, "encryptedAgain": count}, text)


@takes_session
def revoke(
    session: Session,
    app: Annotated[str, argument("APP", "The OAuthApp, or the name of a grant or session.")],
    subject: Annotated[str | None, Subject] = None,
) -> None:
    """Revoke a subject's grant; also at the provider, if the bundle has its revokeUrl.

    Given the name of a record (sha256:… or as-…), remove that grant or session, even if it is unreadable.
    """
    if subject is None and not app.startswith(("sha256:", "as-")):
        raise typer.BadParameter(
            "give APP and --subject, or the name of a grant (sha256:…) or session (as-…)."
        )
    if session.settings.oauth_store == "redis":
        require_broker(session.settings)
    with session.client() as client:
        if subject is None:
            return _remove(session.output, client, app)
        try:
            is_told = client.revoke_grant(app, subject)
        except OAuthStoreError:
            return _remove(session.output, client, grant_name(app, subject))
    told = "the provider was told" if is_told else "the provider was not told: revoke it there too"
    return session.output.give({"revoked": True, "providerTold": is_told}, f"revoked; {told}")


@takes_session
def login(
    session: Session,
    app: Annotated[str | None, argument("APP", "The OAuthApp.")] = None,
    subject: Annotated[str | None, Subject] = None,
    scope: Annotated[
        list[str] | None, option("SCOPE", "A scope of the app; repeatable. Default: all.")
    ] = None,
    agent: Annotated[str | None, option("A", "The agent that gets the event auth.granted.")] = None,
    instance: Annotated[str | None, name_option("K", "The instance of that agent.")] = None,
    no_browser: Annotated[bool, flag("Print the link, but do not open it.", "--no-browser")] = False,
) -> None:
    """Ask a user for consent: print a link, open it, and wait at most ten minutes."""
    if app is None or subject is None:
        hint = "To list the apps of a bundle, give --bundle PATH or set GOONDAN_BUNDLE."
        if session.settings.bundle is not None:
            names = sorted(apps_of(session.bundle().oauth_apps))
            hint = f"The bundle's apps: {', '.join(names)}." if names else _NO_APP
        raise typer.BadParameter(f"give APP and --subject. {hint}")
    if instance is not None and agent is None:
        raise typer.BadParameter("--instance goes with --agent.")
    with extra("oauth"):  # optional: only now
        from goondan_tasks.oauth.consent import Maintenance, make_manager

        callback_of = web("doors.oauth").callback_of
    configure_logging(session.settings)
    bundle, help_url = session.bundle(), session.settings.help_url
    require_broker(session.settings)
    with callback_of(bundle, session.settings) as callback:
        store, known = callback.store, callback.apps.get(app)
        # parsed like a request of a tool
        request = parse_request(
            callback.apps,
            {"kind": "OAuthApp", "name": app},
            scopes=tuple(scope) if scope else None,
            min_ttl_seconds=0,
            auth={"subjects": {known.subject_mode: subject} if known else {}},
        )
        resume = resume_of(bundle, session.settings.swarm, agent, instance or "default")
        manager = make_manager(callback.apps, store, public_url=callback.public_url, clock=callback.clock)
        required = manager.consent.begin(request.app, request.subject, request.scopes, resume)
        begun = store.session(required.auth_session_id)
        place = begun.redirect_uri if begun else None  # an earlier link keeps its own redirect
        received = _received_here(session, web("doors.oauth").oauth_door(callback, help_url), place)
        with received, Maintenance(callback).running():
            session.output.note(f"{required.message}\n{required.authorization_url}")
            if not no_browser:
                webbrowser.open(required.authorization_url)
            ended = _wait(store, required.auth_session_id)
        if ended.status != "completed":
            code = "session_expired" if ended.status == "expired" else ended.reason
            raise ConsentError(f"Nothing was granted: {code}.", code=code)
        grant = store.grant(ended.oauth_app, ended.subject)
    scopes = [] if grant is None else list(grant.scopes_granted)
    granted = {"status": "granted", "oauthApp": ended.oauth_app, "subject": ended.subject}
    text = f"{ended.subject} has granted {', '.join(scopes)} to {ended.oauth_app}."
    session.output.give({**granted, "scopesGranted": scopes}, text)


def resume_of(bundle: Bundle, swarm: str | None, agent: str | None, instance: str) -> Resume | None:
    """Return the agent to notify of the consent, as if its worker had asked for it.

    Raises:
        AgentNotFoundError: the Swarm has no such agent.
    """
    if agent is None:
        return None
    [name] = chosen_agents(bundle, swarm, [agent])
    return Resume(swarm=bundle.swarm(swarm).name, agent_name=name, instance_key=instance)


@contextlib.contextmanager
def _opened_store(session: Session) -> Iterator[OAuthStore]:
    """Yield the store; one in files needs no Redis."""
    settings = session.settings
    if settings.oauth_store == "redis":
        require_broker(settings)
    with connect(settings.redis_url, name="goondan-oauth") as redis, broker_errors(settings.redis_url):
        yield open_store(settings, redis)


@contextlib.contextmanager
def _received_here(session: Session, door: Any, place: str | None) -> Iterator[None]:
    """Serve the callback at ``place`` if that is on this machine and free."""
    parts = urlsplit(place or "")
    with contextlib.ExitStack() as resources:
        if parts.scheme == "http" and is_loopback(host := parts.hostname or ""):
            application = web("application").make_application([door], session.settings, host)
            try:
                server = resources.enter_context(listening(host, parts.port or 80))
                resources.enter_context(web("server").served(application, server))
            except OSError as error:
                session.output.note(
                    f"The link leads back to {place}, where this command cannot listen "
                    f"({error.strerror or error}); `goondan oauth serve` must be running there."
                )
        yield


def _wait(store: OAuthStore, session_id: str) -> AuthSession:
    """Wait until the session ends; it expires after some minutes."""
    interruption = Interruption()
    with interruption.listening():
        while not interruption.asked.wait(_LOOK_SECONDS):
            session = store.session(session_id)
            if session is None:
                raise ConsentError("The session no longer exists.", code="session_not_found")
            if session.status in _FINAL:
                return session
    raise typer.Exit(interruption.exit_code)


def _remove(output: Output, client: Client, name: str) -> None:
    """Remove a grant or a session by the name of its record."""
    is_session = name.startswith("as-")
    if not client.forget_grant(name):
        kind = "session" if is_session else "grant"
        suggestion = f"`goondan oauth {kind}s` lists them."
        raise OAuthError(f"There is no {kind} {name}.", code=f"{kind}_not_found", suggestion=suggestion)
    if is_session:
        return output.give({"removed": True}, "removed; its link no longer works")
    text = "removed; the provider was not told: revoke it there too"
    return output.give({"removed": True, "providerTold": False}, text)


def _session_facts(session: AuthSession) -> JsonObject:
    shown = {"id", "oauth_app", "provider", "subject_mode", "subject", "requested_scopes", "flow", "status"}
    shown |= {"reason", "created_at", "expires_at"}
    facts = session.model_dump(by_alias=True, exclude_none=True, include=shown)
    return {**facts, "resumes": [f"{one.agent_name}@{one.instance_key}" for one in session.resumes]}


def _why(record: UnreadableRecord) -> JsonObject:
    return {"status": "unreadable", "reason": record.error.message}


def _show(
    output: Output,
    found: list[JsonObject],
    columns: tuple[str, ...],
    *,
    none: str,
    spare: str = "",
    unreadable: Sequence[UnreadableRecord] = (),
) -> None:
    """List records; a note on stderr says what to do about the first unreadable one."""
    for one in unreadable[:1]:
        output.note(f"{one.error.message} {one.error.suggestion}")
    fields = {column: column for column in columns}
    output.write(listing(found, fields, none=none, unbroken=columns[-1], spare={spare}))

"""Users' consents: requested, received, and reported to the waiting agents (000 §12.5.6 to §12.5.8)."""

import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from pydantic import SecretStr
from redis import Redis
from redis.exceptions import RedisError

from broker_config.settings import Settings
from broker_config.vital_thread import vital_thread
from goondan_tasks.contract.errors import GoondanError, OAuthStoreError, ToolCallConflictError
from goondan_tasks.contract.messages import (
    AgentEvent,
    Clock,
    EventSource,
    JsonObject,
    epoch_milliseconds,
    iso_time,
)
from goondan_tasks.machine.process import close_to_other_processes, is_loopback, url_at
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.manager import (
    AuthorizationRequired,
    OAuthManager,
    Refresher,
    RefreshesInFlight,
    open_keys,
    open_store,
    require_keys,
    store_clock,
)
from goondan_tasks.oauth.provider import Provider, TokenReply, error_code
from goondan_tasks.oauth.records import (
    AuthSession,
    ConsentError,
    DeviceCode,
    OAuthError,
    OAuthGrant,
    ProviderRefusedError,
    ProviderUnavailableError,
    Resume,
)
from goondan_tasks.oauth.store import OAuthStore, UnreadableRecord

_log = structlog.get_logger(__name__)

GRANTED = "auth.granted"
PENDING = "auth.pending"
SESSION_SECONDS = 600
#: 43 letters each, as RFC 7636 §4.1 requires of the verifier
_RANDOM_BYTES = 32
_STATE = re.compile(r"(as-[0-9a-f]{24})\.[A-Za-z0-9_-]{43}")
_TICK_SECONDS = 2.0
#: added to the interval after ``slow_down`` (RFC 8628 §3.5)
_SLOW_DOWN_SECONDS = 5
#: the limit of back-off
_LONGEST_INTERVAL_SECONDS = 60.0


class SendEvent(Protocol):
    """Sends an event to an agent, as ``Client.send`` does; an id that is known is not delivered again."""

    def __call__(
        self,
        agent: str,
        input: AgentEvent,
        *,
        instance_key: str,
        auth: JsonObject | None,
        origin: JsonObject | None,
        correlation_id: str | None,
    ) -> object:
        """Send the event; raise GoondanError if that fails."""


@dataclass(frozen=True, slots=True)
class Consent:
    """Opens sessions, and describes them to their users."""

    store: OAuthStore
    provider: Provider
    clock: Clock
    #: where browsers reach ``goondan oauth serve``, for apps without ``redirect.baseUrl``
    public_url: str | None

    def begin(
        self, app: OAuthApp, subject: str, scopes: tuple[str, ...], resume: Resume | None
    ) -> AuthorizationRequired:
        """Request a subject's consent; a live session for the same request is reused.

        Raises:
            OAuthError: the app lacks a setting that its flow needs, or its provider gives no device code.
            OAuthStoreError: a record of the store cannot be read.
        """
        now = self.clock()
        session = AuthSession(
            id=f"as-{secrets.token_hex(12)}",
            oauth_app=app.name,
            provider=app.provider,
            subject_mode=app.subject_mode,
            subject=subject,
            requested_scopes=scopes,
            flow=app.flow,
            created_at=iso_time(now),
            expires_at=iso_time(now + SESSION_SECONDS * 1000),
            resume=resume,
        )
        if app.flow == "device_code":
            session = self._with_device_code(app, session)
        else:
            verifier = secrets.token_urlsafe(_RANDOM_BYTES)
            pkce = {
                "code_verifier": SecretStr(verifier),
                "code_challenge": create_s256_code_challenge(verifier),
                "state": SecretStr(f"{session.id}.{secrets.token_urlsafe(_RANDOM_BYTES)}"),
                "redirect_uri": redirect_uri(app, self.public_url),
            }
            session = session.model_copy(update=pkce)
        self.required(app, session)  # finds errors of the app before anything is stored
        return self.required(app, self.store.open_session(session))

    def required(self, app: OAuthApp, session: AuthSession) -> AuthorizationRequired:
        """Return what a session's user is shown (000 §12.5.7)."""
        device, view = session.device, None
        message = f"{app.provider} has to be connected. Please consent at the link."
        if device is None:
            url = self.provider.authorization_url(app, session)
        else:
            url = device.verification_uri_complete or device.verification_uri
            message = f"{message} If you are asked for a code, it is {device.user_code}."
            view = {
                "verificationUri": device.verification_uri,
                "userCode": device.user_code,
                "expiresIn": device.expires_in,
                "interval": device.interval,
            }
        return AuthorizationRequired(
            auth_session_id=session.id,
            authorization_url=url,
            expires_at=session.expires_at,
            message=message,
            device_code=view,
        )

    def pending_block(
        self, sessions: Iterable[AuthSession], apps: Mapping[str, OAuthApp]
    ) -> JsonObject | None:
        """Return the ``auth.pending`` block of the pending sessions (000 §12.5.8); ``None`` without any.

        The links in it are its only secrets.
        """
        items = [
            {
                "oauthAppRef": {"kind": "OAuthApp", "name": session.oauth_app},
                "provider": session.provider,
                "subjectMode": session.subject_mode,
                **self.required(app, session).model_dump(
                    by_alias=True, exclude_none=True, exclude={"status"}
                ),
            }
            for session in sessions
            if session.status == "pending" and (app := apps.get(session.oauth_app)) is not None
        ]
        return {"type": PENDING, "items": items} if items else None

    def _with_device_code(self, app: OAuthApp, session: AuthSession) -> AuthSession:
        """Request a device code, unless the user has a live one."""
        for live in self.store.pending_sessions(app.name, session.subject):
            if live.request == session.request:
                return session.model_copy(update={"device": live.device, "expires_at": live.expires_at})
        device = self.provider.device_authorization(app, session.requested_scopes)
        end = epoch_milliseconds(session.created_at) + device.expires_in * 1000
        return session.model_copy(update={"device": device, "expires_at": iso_time(end)})


def redirect_uri(app: OAuthApp, public_url: str | None) -> str:
    """Return the URL to which the provider sends the user back (RFC 6749 §3.1.2).

    Raises:
        OAuthError: it is not configured.
    """
    base = app.redirect_base_url or public_url
    if base is None or app.callback_path is None:
        raise OAuthError(
            f"The callback URL of OAuthApp '{app.name}' is not configured.",
            suggestion="Set redirect.callbackPath, and GOONDAN_PUBLIC_URL or redirect.baseUrl.",
        )
    return base.rstrip("/") + app.callback_path


@dataclass(frozen=True, slots=True)
class Callback:
    """Receives the redirects of every OAuthApp, and ends both flows: with a grant or a failed session."""

    apps: Mapping[str, OAuthApp]
    store: OAuthStore
    send: SendEvent
    clock: Clock
    #: the base of the paths of apps without ``redirect.baseUrl``
    public_url: str | None
    provider: Provider = field(default_factory=Provider)

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(path for app in self.apps.values() for path in app.callback_paths(self.public_url))

    def receive(self, query: Mapping[str, str], path: str) -> OAuthGrant:
        """Process a redirect to ``path``; only one is admitted per session.

        Raises:
            ConsentError: ``invalid_state``, ``session_not_found``, ``session_already_used``,
                ``session_expired``, ``subject_mismatch``, ``scope_not_granted``, ``token_exchange_failed``,
                or the provider's own, such as ``access_denied``.
            OAuthError: ``oauthAppNotFound`` in the bundle, or ``configurationError``.
            OAuthStoreError: the session or the grant cannot be read.
        """
        session = self._session(query.get("state", ""))
        app = self.apps.get(session.oauth_app)
        if app is None:
            raise OAuthError(f"No OAuthApp '{session.oauth_app}' in the bundle.", code="oauthAppNotFound")
        app.client_id()  # an operator's mistake must not use up the link
        app.client_secret()
        # a redirect of another app: a provider may have mixed them up (RFC 9700 §4.4)
        if path not in app.callback_paths(self.public_url):
            raise ConsentError("The link belongs to another app.", code="invalid_state")
        if app.issuer is not None and query.get("iss") != app.issuer:  # RFC 9207 §2.4
            raise ConsentError("Another provider than the app's has answered.", code="invalid_state")
        if session.status == "expired":
            raise ConsentError("The link has expired.", code="session_expired")
        return self.finish(app, session, lambda admitted: self._exchange(app, admitted, query))

    def finish(
        self, app: OAuthApp, session: AuthSession, token: Callable[[AuthSession], TokenReply]
    ) -> OAuthGrant:
        """Admit a pending session, store its token's grant, and resume its agents (000 §12.5.6 r5 to r7).

        An error ends the session.

        Raises:
            ConsentError: ``session_already_used``, ``subject_mismatch``, ``scope_not_granted``,
                ``token_exchange_failed``, or ``session_expired`` during the exchange.
            OAuthStoreError: the session or the grant cannot be read.
        """
        # only one caller finds it pending (000 §12.5.6 r3)
        is_admitted = self.store.advance(session.id, status="pending", to="exchanging")
        admitted = self.store.session(session.id) if is_admitted else None
        if admitted is None:
            raise ConsentError("The link has been used already.", code="session_already_used")
        try:
            reply = token(admitted)
            self._require_subject(app, admitted, reply)
            grant = reply.new_grant(admitted, self.clock())
            missing = sorted(set(admitted.requested_scopes) - set(grant.scopes_granted))
            if missing:
                raise ConsentError(f"Not granted: {', '.join(missing)}.", code="scope_not_granted")
            if not self.store.complete(admitted, grant):
                raise ConsentError("The session has ended meanwhile.", code="session_expired")
        except (OAuthError, OAuthStoreError) as error:
            self.store.advance(session.id, status="exchanging", to="failed", reason=error.code)
            raise
        self.resume(admitted, grant)
        return grant

    def resume(self, session: AuthSession, grant: OAuthGrant) -> bool:
        """Send ``auth.granted`` to all agents that wait for a session; False if one could not be reached.

        Repeating it is harmless: no event is delivered twice.
        """
        reached = [self._resume(resume, session, grant) for resume in session.resumes]
        return all(reached)

    def _session(self, state: str) -> AuthSession:
        """Return the session of a state; the whole state is compared, in constant time."""
        match = _STATE.fullmatch(state)
        if match is None:
            raise ConsentError("The link is malformed.", code="invalid_state")
        session = self.store.session(match[1])
        if session is None or session.state is None:
            raise ConsentError("The link is unknown, or no longer known.", code="session_not_found")
        if not hmac.compare_digest(session.state.get_secret_value(), state):
            raise ConsentError("The link was not issued by this service.", code="invalid_state")
        return session

    def _exchange(self, app: OAuthApp, session: AuthSession, query: Mapping[str, str]) -> TokenReply:
        if query.get("error"):  # RFC 6749 §4.1.2.1
            code = error_code(query["error"])
            raise ConsentError(f"The provider says '{code}'.", code=code)
        if not query.get("code"):
            raise ConsentError("The provider sent no code.", code="token_exchange_failed")
        try:
            return self.provider.exchange(app, session, query["code"])
        except (ProviderRefusedError, ProviderUnavailableError) as error:
            raise ConsentError(error.message, code="token_exchange_failed") from error

    def _require_subject(self, app: OAuthApp, session: AuthSession, reply: TokenReply) -> None:
        """Refuse a token whose subject is not the session's (000 §12.5.6 r5)."""
        if app.is_for_anyone:
            return
        try:
            claims = {**reply.details, **self.provider.claims(app, reply)}
        except ProviderRefusedError as error:
            raise ConsentError(error.message, code="subject_mismatch") from error
        except ProviderUnavailableError as error:
            raise ConsentError(error.message, code="token_exchange_failed") from error
        if not app.is_subject(session.subject, claims):
            raise ConsentError("Another user has consented.", code="subject_mismatch")

    def _resume(self, resume: Resume, session: AuthSession, grant: OAuthGrant) -> bool:
        event = AgentEvent(
            id=f"auth-granted-{session.id}",
            type=GRANTED,
            created_at=iso_time(self.clock()),
            trace_id=resume.trace_id,
            instance_key=resume.instance_key,
            metadata={"eventType": GRANTED},
            source=EventSource(kind="connector", name="oauth"),
            input={
                "type": GRANTED,
                "oauthAppRef": {"kind": "OAuthApp", "name": grant.oauth_app},
                "provider": grant.provider,
                "subject": grant.subject,
                "scopesGranted": list(grant.scopes_granted),
                "grantId": grant.name,
                "authSessionId": session.id,
            },
        )
        try:
            self.send(
                resume.agent_name,
                event,
                instance_key=resume.instance_key,
                auth=resume.auth,
                origin=resume.origin,
                correlation_id=resume.correlation_id,
            )
        except ToolCallConflictError:
            return True  # it was sent before, and the grant has changed since
        except GoondanError as error:
            _log.warning(
                "oauth.not_resumed", session=session.id, agent=resume.agent_name, error=error.message
            )
            return False
        return True


@dataclass(slots=True)
class Schedule:
    """When to try again; the first attempt is due after one interval."""

    #: seconds
    interval: float
    #: in ``time.monotonic()``
    due: float = field(init=False)

    def __post_init__(self) -> None:
        self.wait()

    def wait(self) -> None:
        """Make the next attempt due after one interval."""
        self.due = time.monotonic() + self.interval

    def back_off(self) -> None:
        """Double the interval, up to a minute."""
        self.interval = max(self.interval, min(2 * self.interval, _LONGEST_INTERVAL_SECONDS))


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Polls device codes, and resumes agents whose sessions' callbacks crashed or could not reach them.

    Several may run at once, on any machines.
    """

    callback: Callback
    #: completed sessions whose agents were resumed
    _resumed: set[str] = field(default_factory=set)
    #: schedules of device codes
    _polls: dict[str, Schedule] = field(default_factory=dict)
    #: schedules of resumptions that have failed
    _retries: dict[str, Schedule] = field(default_factory=dict)
    #: records whose error was logged
    _logged: set[str] = field(default_factory=set)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run in the background for the length of a ``with`` block."""
        stopped = threading.Event()
        thread = vital_thread("oauth-maintenance", lambda: self._run(stopped), is_over=stopped.is_set)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def check(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Process every session once; stop at ``is_over()``, since providers may take long to answer."""
        sessions = tuple(self.callback.store.sessions(self._log_unreadable))
        devices = {one.id: one for one in sessions if one.device and one.status == "pending"}
        completed = {one.id: one for one in sessions if one.status == "completed"}
        self._resumed.intersection_update(completed)
        for schedules, current in ((self._polls, devices), (self._retries, completed)):
            for gone in schedules.keys() - current.keys():
                del schedules[gone]
        for session in devices.values():
            if is_over():
                break
            self._poll(session)
        for session in completed.values():
            self._catch_up(session)

    def _poll(self, session: AuthSession) -> None:
        """Ask the provider for a device code's token, at the interval it demands (RFC 8628 §3.4, §3.5)."""
        app, device = self.callback.apps.get(session.oauth_app), session.device
        if app is None or device is None:
            return
        schedule = self._polls.setdefault(session.id, Schedule(device.interval))
        if time.monotonic() < schedule.due:
            return
        # one process at a time: the provider limits the rate
        with self.callback.store.lock(app.name, session.subject, wait_seconds=0) as is_locked:
            if is_locked:
                self._request(app, session, device, schedule)
        schedule.wait()

    def _request(self, app: OAuthApp, session: AuthSession, device: DeviceCode, schedule: Schedule) -> None:
        try:
            reply = self.callback.provider.device_token(app, device)
        except ProviderRefusedError as error:
            if error.error == "slow_down":
                schedule.interval += _SLOW_DOWN_SECONDS
            elif error.error != "authorization_pending":
                self.callback.store.advance(session.id, status="pending", to="failed", reason=error.error)
        except OAuthError as error:  # no answer, or an incomplete app, which may be completed later
            schedule.back_off()
            _log.warning("oauth.device_poll", session=session.id, error=error.message)
        else:
            try:
                self.callback.finish(app, session, lambda _: reply)
            except (OAuthError, OAuthStoreError) as error:
                if error.code != "session_already_used":  # by another process
                    _log.warning(
                        "oauth.not_granted", session=session.id, code=error.code, error=error.message
                    )

    def _catch_up(self, session: AuthSession) -> None:
        """Resume a completed session's agents, unless that is done; a failure delays no other session."""
        schedule = self._retries.get(session.id)
        if session.id in self._resumed or (schedule and time.monotonic() < schedule.due):
            return
        try:
            grant = self.callback.store.grant(session.oauth_app, session.subject)
        except OAuthStoreError as error:
            grant = None
            self._log_unreadable(UnreadableRecord(session.id, error))
        if grant is not None and self.callback.resume(session, grant):
            self._resumed.add(session.id)
        elif schedule is None:
            self._retries[session.id] = Schedule(_TICK_SECONDS)
        else:
            schedule.back_off()
            schedule.wait()

    def _log_unreadable(self, record: UnreadableRecord) -> None:
        """Log once that a session or its grant cannot be read."""
        if record.name not in self._logged:
            self._logged.add(record.name)
            _log.warning("oauth.unreadable", error=record.error.message, what_to_do=record.error.suggestion)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(_TICK_SECONDS):
            try:
                self.check(stopped.is_set)
            except (GoondanError, RedisError) as error:
                _log.warning("oauth.maintenance", error=f"{type(error).__name__}: {error}")


def make_manager(
    apps: Mapping[str, OAuthApp],
    store: OAuthStore,
    *,
    public_url: str | None,
    clock: Clock,
    in_flight: RefreshesInFlight | None = None,
) -> OAuthManager:
    """Make the source of tokens; ``public_url`` is the address at which browsers reach the callback.

    ``in_flight`` counts the refreshes, for a process that waits for them before it ends.
    """
    provider = Provider()
    refresher = Refresher(store, provider, clock, in_flight=in_flight or RefreshesInFlight())
    return OAuthManager(apps, store, refresher, Consent(store, provider, clock, public_url), clock)


def open_manager(
    settings: Settings, apps: Mapping[str, OAuthApp], redis: Redis, in_flight: RefreshesInFlight | None = None
) -> OAuthManager:
    """Open the store of tokens, and return their source for these OAuthApps.

    Raises:
        ConfigError: a key of the store is malformed.
        OAuthStoreError: other users may read the keys of the store, or the keys are not those of its grants.
    """
    close_to_other_processes()
    keys = open_keys(settings)
    store = open_store(settings, redis, keys)
    require_keys(store, keys)
    clock = store_clock(settings, redis)
    return make_manager(apps, store, public_url=public_url_of(settings), clock=clock, in_flight=in_flight)


def public_url_of(settings: Settings) -> str | None:
    """Return the address at which browsers reach ``goondan oauth serve``; by default only this machine's do.

    ``None`` if it is not configured and cannot be known beforehand, as with port 0.
    """
    host = settings.http_host
    if settings.public_url or not is_loopback(host) or not settings.http_port:
        return settings.public_url
    return url_at(host, settings.http_port)

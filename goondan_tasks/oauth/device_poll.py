"""Asking the provider whether the user of a device code has consented (RFC 8628 §3.4, §3.5)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.granting import Granting
from goondan_tasks.oauth.oauth_errors import OAuthError, OAuthStoreError, ProviderRefusedError
from goondan_tasks.oauth.pace import Pace
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.records import AuthSession, DeviceCode
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.oauth.token_reply import TokenReply

_log = structlog.get_logger(__name__)

#: how much longer to wait after ``slow_down``
_SLOW_DOWN_SECONDS = 5


@dataclass(frozen=True, slots=True)
class DevicePoll:
    """Asks about the pending sessions of the device code flow, each at its provider's pace."""

    apps: Mapping[str, OAuthApp]
    store: OAuthStore
    provider: Provider
    granting: Granting
    _paces: dict[str, Pace] = field(default_factory=dict)

    def look(self, sessions: Iterable[AuthSession], is_over: Callable[[], bool]) -> None:
        """Ask about those of all sessions whose time has come, one by one, until ``is_over()``."""
        pending = {one.id: one for one in sessions if one.device and one.status == "pending"}
        for gone in self._paces.keys() - pending.keys():
            del self._paces[gone]
        for session in pending.values():
            if is_over():
                return
            self._look_at(session)

    def _look_at(self, session: AuthSession) -> None:
        app, device = self.apps.get(session.oauth_app), session.device
        if app is None or device is None:
            return
        pace = self._paces.setdefault(session.id, Pace(device.interval))
        if not pace.is_due:
            return
        # one of us at a time, wherever we run: the provider counts how often it is asked
        with self.store.lock(app.name, session.subject, wait_seconds=0) as keep:
            if keep:
                self._ask(app, session, device, pace)
        pace.wait()

    def _ask(self, app: OAuthApp, session: AuthSession, device: DeviceCode, pace: Pace) -> None:
        try:
            reply = self.provider.device_token(app, device)
        except ProviderRefusedError as error:
            if error.error == "slow_down":
                pace.interval += _SLOW_DOWN_SECONDS
            elif error.error != "authorization_pending":
                self.store.advance(session.id, status="pending", to="failed", reason=error.error)
        except OAuthError as error:
            # RFC 8628 §3.5 on a server that does not answer; what the app lacks somebody may add
            pace.slow_down()
            _log.warning("oauth.device_poll", session=session.id, error=error.message)
        else:
            self._grant(app, session, reply)

    def _grant(self, app: OAuthApp, session: AuthSession, reply: TokenReply) -> None:
        admitted = self.granting.admit(session)
        if admitted is None:
            return
        try:
            with self.granting.ending(admitted):
                self.granting.grant(app, admitted, reply)
        except (OAuthError, OAuthStoreError) as error:
            _log.warning("oauth.not_granted", session=session.id, code=error.code, error=error.message)

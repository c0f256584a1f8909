"""The flows of a bundle's OAuthApps, put together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker_config.settings import Settings
from goondan_tasks.loopback import is_loopback
from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.callback import Callback
from goondan_tasks.oauth.consent import Consent
from goondan_tasks.oauth.device_poll import DevicePoll
from goondan_tasks.oauth.granting import Granting
from goondan_tasks.oauth.manager import OAuthManager
from goondan_tasks.oauth.pending_block import pending_block
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.records import AuthSession
from goondan_tasks.oauth.refreshes_in_flight import RefreshesInFlight
from goondan_tasks.oauth.refreshing import Refreshing
from goondan_tasks.oauth.resume import Resumption, SendEvent
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.oauth.upkeep import Upkeep
from goondan_tasks.run import Clock


@dataclass(frozen=True, slots=True)
class Asking:
    """What whoever needs tokens works with: a worker, or a tool outside of one."""

    consent: Consent
    manager: OAuthManager

    def pending_block(self, sessions: Iterable[AuthSession]) -> JsonObject | None:
        """Return the ``auth.pending`` block of sessions; ``None`` without any."""
        return pending_block(sessions, self.manager.apps, self.consent)


@dataclass(frozen=True, slots=True)
class Receiving:
    """What ends consents: redirects, and what has to be looked after meanwhile."""

    callback: Callback
    upkeep: Upkeep


def make_asking(
    apps: Mapping[str, OAuthApp],
    store: OAuthStore,
    *,
    public_url: str | None,
    clock: Clock,
    in_flight: RefreshesInFlight | None = None,
) -> Asking:
    """Put together what hands out tokens; ``public_url`` is where browsers reach the callback.

    ``in_flight`` counts the refreshes, for a process that waits for them before it ends.
    """
    provider = Provider()
    consent = Consent(store, provider, clock, public_url)
    refreshing = Refreshing(store, provider, clock, in_flight=in_flight or RefreshesInFlight())
    return Asking(consent, OAuthManager(apps, store, refreshing, consent.begin, clock))


def make_receiving(
    apps: Mapping[str, OAuthApp],
    store: OAuthStore,
    *,
    public_url: str | None,
    send: SendEvent,
    clock: Clock,
) -> Receiving:
    """Put together what ends consents; ``send`` gives agents their events."""
    provider = Provider()
    resumption = Resumption(send, clock)
    granting = Granting(store, provider, resumption, clock)
    return Receiving(
        Callback(apps, store, provider, granting, public_url),
        Upkeep(store, DevicePoll(apps, store, provider, granting), resumption),
    )


def public_url_of(settings: Settings) -> str | None:
    """Return where browsers reach ``goondan oauth serve``; unless it is said, this machine's alone do.

    Nobody knows beforehand which port is meant by 0.
    """
    host = settings.http_host
    if settings.public_url or not is_loopback(host) or not settings.http_port:
        return settings.public_url
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.http_port}"

"""The flows of a bundle's OAuthApps, put together."""

from collections.abc import Mapping
from dataclasses import dataclass

from broker_config.settings import Settings
from goondan_tasks.bundle.oauth_fields import is_loopback
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.callback import Callback
from goondan_tasks.oauth.consent import Consent
from goondan_tasks.oauth.device_poll import DevicePoll
from goondan_tasks.oauth.granting import Granting
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.resume import Resumption, SendEvent
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.oauth.upkeep import Upkeep
from goondan_tasks.run import Clock


@dataclass(frozen=True, slots=True)
class Flows:
    """What begins consents, and what ends them."""

    consent: Consent
    callback: Callback
    upkeep: Upkeep


def make_flows(
    apps: Mapping[str, OAuthApp], store: OAuthStore, *, send: SendEvent, public_url: str | None, clock: Clock
) -> Flows:
    """Put the flows together; ``public_url`` is where browsers reach the callback."""
    provider = Provider()
    resumption = Resumption(send, clock)
    granting = Granting(store, provider, resumption, clock)
    return Flows(
        Consent(store, provider, clock, public_url),
        Callback(apps, store, provider, granting, clock),
        Upkeep(store, DevicePoll(apps, store, provider, granting), resumption),
    )


def public_url_of(settings: Settings) -> str | None:
    """Return where browsers reach ``goondan oauth serve``; unless it is said, this machine's alone do."""
    host = settings.http_host
    if settings.public_url or not is_loopback(host):
        return settings.public_url
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.http_port}"

"""What the commands of ``goondan oauth`` work with: the store, and the bundle's OAuthApps."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from broker_config.connections import connect
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.cli.broker import require_broker
from goondan_tasks.cli.session import Session
from goondan_tasks.client import Client
from goondan_tasks.client.broker_errors import broker_errors
from goondan_tasks.errors import ConfigError
from goondan_tasks.oauth.apps import OAuthApp, apps_of
from goondan_tasks.oauth.opening import open_keys, open_store, require_keys, store_clock
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.run import Clock


@dataclass(frozen=True, slots=True)
class OAuthSession:
    """The bundle and its OAuthApps, the store, its clock, and a client that can wake agents."""

    bundle: Bundle
    apps: Mapping[str, OAuthApp]
    store: OAuthStore
    clock: Clock
    client: Client


@contextlib.contextmanager
def oauth_store(session: Session) -> Iterator[OAuthStore]:
    """Open the store for the length of a ``with`` block; one in files needs no Redis.

    Raises:
        BrokerUnreachableError: Redis cannot be reached.
    """
    settings = session.settings
    if settings.oauth_store == "redis":
        require_broker(settings)
    with connect(settings.redis_url, name="goondan-oauth") as redis, broker_errors(settings.redis_url):
        yield open_store(settings, redis)


@contextlib.contextmanager
def oauth_session(session: Session) -> Iterator[OAuthSession]:
    """Open them for the length of a ``with`` block.

    Raises:
        BrokerUnreachableError: Redis cannot be reached.
        ConfigError: there is no bundle, or it is not valid.
        OAuthStoreError: the keys of the store are not those of its grants.
    """
    settings = session.settings
    if settings.bundle is None:
        raise ConfigError("There is no bundle.", suggestion="Give --bundle PATH, or set GOONDAN_BUNDLE.")
    bundle = load_bundle(settings.bundle)
    require_broker(settings)
    with (
        connect(settings.redis_url, name="goondan-oauth") as redis,
        broker_errors(settings.redis_url),
        Client(settings, bundle) as client,
    ):
        keys = open_keys(settings)
        store = open_store(settings, redis, keys)
        require_keys(store, keys)
        apps = apps_of(bundle.oauth_apps)
        yield OAuthSession(bundle, apps, store, store_clock(settings, redis), client)

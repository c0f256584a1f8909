"""From the settings to the store, its keys and its clock."""

import itertools

import structlog
from redis import Redis

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.errors import OAuthStoreError
from goondan_tasks.messages import Clock, wall_clock
from goondan_tasks.oauth.crypto import Cipher, Keyring, KeySource
from goondan_tasks.oauth.file_store import FileStore, KeyFile
from goondan_tasks.oauth.redis_store import RedisClock, RedisStore
from goondan_tasks.oauth.store import OAuthStore, leave_out

_log = structlog.get_logger(__name__)

#: a changed key concerns all grants, so a sample is enough
_CHECKED_GRANTS = 500


def open_keys(settings: Settings) -> KeySource:
    """Return the keys of ``GOONDAN_OAUTH_KEY``, else those of the key file, which is created if missing.

    Raises:
        ConfigError: one of them is malformed.
        OAuthStoreError: other users may read the file.
    """
    if settings.oauth_key is not None:
        return Keyring.parse(settings.oauth_key)
    return KeyFile(settings.oauth_key_path)


def require_keys(store: OAuthStore, keys: KeySource) -> None:
    """Compare the keys with those of the grants, so that a changed key is reported at the start.

    Raises:
        OAuthStoreError: there are grants, and none of those checked can be read.
    """
    grants = [grant.key_ids for grant in itertools.islice(store.grants(leave_out), _CHECKED_GRANTS)]
    missing = sorted({key_id for ids in grants for key_id in ids if keys.find(key_id) is None})
    if not missing:
        return
    message = f"Grants are encrypted with {', '.join(missing)}; this process has {keys.current.id}."
    what_to_do = (
        "Set GOONDAN_OAUTH_KEY to the key with which they were written, or restore its key file. If it is "
        "lost, remove the grants that `goondan oauth grants` lists with `goondan oauth revoke`."
    )
    if all(set(ids) & set(missing) for ids in grants):
        raise OAuthStoreError(message, suggestion=what_to_do)
    _log.error("oauth.key_missing", error=message, what_to_do=what_to_do)


def open_store(settings: Settings, redis: Redis, keys: KeySource | None = None) -> OAuthStore:
    """Return the store that ``GOONDAN_OAUTH_STORE`` names, by default with the keys of :func:`open_keys`.

    Raises as :func:`open_keys` does.
    """
    cipher = Cipher(keys or open_keys(settings))
    if settings.oauth_store == "file":
        return FileStore(settings.state_root_path / "oauth", cipher, wall_clock)
    return RedisStore(redis, Keys(settings.namespace), cipher)


def store_clock(settings: Settings, redis: Redis) -> Clock:
    """Return the clock by which that store's records expire: of this machine, or of Redis."""
    return wall_clock if settings.oauth_store == "file" else RedisClock(redis)

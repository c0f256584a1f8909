"""From the settings to the store and its keys."""

from redis import Redis

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.clocks import wall_clock
from goondan_tasks.oauth.cipher import Cipher
from goondan_tasks.oauth.file_store import FileStore
from goondan_tasks.oauth.key_file import KeyFile
from goondan_tasks.oauth.keyring import Keyring, KeySource
from goondan_tasks.oauth.redis_clock import RedisClock
from goondan_tasks.oauth.redis_store import RedisStore
from goondan_tasks.oauth.store import OAuthStore
from goondan_tasks.run import Clock


def open_keys(settings: Settings) -> KeySource:
    """Return the keys of ``GOONDAN_OAUTH_KEY``, else those of the key file, which is made if it is missing.

    Raises:
        ConfigError: one of them is no key.
        OAuthStoreError: others may read the file.
    """
    if settings.oauth_key is not None:
        return Keyring.parse(settings.oauth_key)
    return KeyFile(settings.state_root_path / "oauth" / "keys")


def open_store(settings: Settings, redis: Redis) -> OAuthStore:
    """Return the store that ``GOONDAN_OAUTH_STORE`` names; raises as :func:`open_keys` does."""
    cipher = Cipher(open_keys(settings))
    if settings.oauth_store == "file":
        return FileStore(settings.state_root_path / "oauth", cipher, wall_clock)
    return RedisStore(redis, Keys(settings.namespace), cipher)


def store_clock(settings: Settings, redis: Redis) -> Clock:
    """Return the clock of that store: of Redis, or of this machine."""
    if settings.oauth_store == "file":
        return wall_clock
    return RedisClock(redis)

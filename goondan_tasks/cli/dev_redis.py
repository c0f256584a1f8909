"""The Redis of ``goondan dev``: the one that was named, else a private one that is kept for the next time."""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from broker_config.embedded import EmbeddedRedis, PortInUse
from broker_config.settings import Settings
from goondan_tasks.cli.broker import require_broker
from goondan_tasks.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DevRedis:
    """The settings with the Redis that is used, and that Redis if it is a private one."""

    settings: Settings
    own: EmbeddedRedis | None = None

    def revive(self) -> bool:
        """Start the private one again if it has ended, with its address and data; say whether it had.

        Raises:
            EmbeddedRedisError: it does not start any more.
        """
        if self.own is None or self.own.process.poll() is None:
            return False
        self.own.launch()
        return True


@contextlib.contextmanager
def dev_redis(settings: Settings, bundle: Path) -> Iterator[DevRedis]:
    """Yield a Redis that answers; a private one ends with the ``with`` block.

    Raises:
        BrokerUnreachableError: the one that was named does not answer.
        EmbeddedRedisError: the private one does not start.
        ConfigError: there is no place for its data.
    """
    if "redis_url" in settings.model_fields_set:
        require_broker(settings)
        yield DevRedis(settings)
        return
    try:
        redis = start_kept_redis(kept_directory(settings.state_root_path, bundle))
    except OSError as error:
        raise ConfigError(
            f"The state root {settings.state_root_path} cannot be used: {error}.",
            suggestion="Set GOONDAN_STATE_ROOT to a directory that this user may write.",
        ) from error
    try:
        urls = {"redis_url": redis.url, "broker_url": redis.url}
        yield DevRedis(settings.model_copy(update=urls), redis)
    finally:
        redis.stop()


def kept_directory(state_root: Path, bundle: Path) -> Path:
    """Return where the Redis of a bundle keeps its data: two bundles do not share one."""
    digest = hashlib.sha256(str(bundle).encode("utf-8", "backslashreplace")).hexdigest()
    return state_root / "dev" / digest[:16]


def start_kept_redis(directory: Path) -> EmbeddedRedis:
    """Start a Redis with the data, the password and, if it is still free, the port of the last time.

    So a URL that was copied into another terminal stays valid.

    Raises:
        EmbeddedRedisError: it does not start.
    """
    kept = directory / "port"
    redis = EmbeddedRedis(directory=directory, port=_kept_port(kept))
    try:
        redis.start()
    except PortInUse:
        redis = EmbeddedRedis(directory=directory).start()
    kept.write_text(str(redis.port), encoding="ascii")
    return redis


def _kept_port(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None

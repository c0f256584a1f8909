"""Stores for tests, of every kind there is, with keys that the tests know."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import fakeredis
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.oauth.crypto import Cipher, Keyring
from goondan_tasks.oauth.file_store import FileStore
from goondan_tasks.oauth.redis_store import RedisStore
from goondan_tasks.oauth.store import OAuthStore

KEY, OTHER_KEY = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
KINDS = ("file", "redis")


class Vault(Protocol):
    """A place where records are kept, and which can be opened with other keys."""

    def open(self, *keys: str) -> OAuthStore:
        """Open the store with these keys."""

    def texts(self) -> dict[str, str]:
        """Return every record as it is kept, by its name."""

    def put(self, name: str, text: str) -> None:
        """Damage a record."""


class FileVault:
    """Files below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root / "oauth"

    def open(self, *keys: str) -> FileStore:
        """Open the store with these keys."""
        return FileStore(self.root, Cipher(Keyring.of(keys or (KEY,))), wall_clock)

    def texts(self) -> dict[str, str]:
        """Return every record as it is kept, by its name."""
        paths = [path for folder in ("grants", "sessions") for path in (self.root / folder).iterdir()]
        return {path.name: path.read_text("utf-8") for path in paths}

    def put(self, name: str, text: str) -> None:
        """Damage a record."""
        folder = "sessions" if name.startswith("as-") else "grants"
        (self.root / folder / name).write_text(text, "utf-8")


class RedisVault:
    """A Redis of one's own."""

    def __init__(self, make: Callable[[], Redis] = fakeredis.FakeStrictRedis) -> None:
        self.redis = make()

    def open(self, *keys: str, lock_seconds: float = 60) -> RedisStore:
        """Open the store with these keys; its locks run out after so long."""
        cipher = Cipher(Keyring.of(keys or (KEY,)))
        return RedisStore(self.redis, Keys("spec"), cipher, lock_seconds=lock_seconds)

    def texts(self) -> dict[str, str]:
        """Return every record as it is kept, by its name."""
        names = [
            key.decode()
            for pattern in ("grant", "session")
            for key in self.redis.scan_iter(f"spec:oauth:{pattern}:*")
        ]
        return {name: self.redis.hget(name, "document").decode() for name in names}  # type: ignore[union-attr]

    def drop_lock(self) -> None:
        """Let the locks run out."""
        self.redis.delete(*self.redis.scan_iter("spec:oauth:lock:*"))

    def put(self, name: str, text: str) -> None:
        """Damage a record."""
        self.redis.hset(name, "document", text)


def vault_of(kind: str, root: Path) -> FileVault | RedisVault:
    """Make an empty place of that kind."""
    return FileVault(root) if kind == "file" else RedisVault()

"""The keys of the OAuth store: the first one encrypts, any of them decrypts (000 §12.5.3 rule 1)."""

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

from goondan_tasks.errors import ConfigError

KEY_BYTES = 32
_HEX = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of AES-256, and the name that records know it by, which tells nothing of it."""

    id: str
    aes: AESGCM = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Read a key: 32 bytes as base64 (of either alphabet) or as 64 hexadecimal digits.

        Raises:
            ConfigError: it is none; the text is not repeated.
        """
        data = _key_bytes(text.strip())
        if data is None or len(data) != KEY_BYTES:
            raise ConfigError(
                "A key of the OAuth store is not 32 bytes of base64.",
                suggestion="Make one with `openssl rand -base64 32`, and set GOONDAN_OAUTH_KEY to it.",
            )
        digest = hashlib.sha256(b"goondan oauth key " + data).hexdigest()
        return cls(f"k-{digest[:12]}", AESGCM(data))


class KeySource(Protocol):
    """Where keys come from."""

    @property
    def current(self) -> Key:
        """The key that encrypts."""

    def find(self, key_id: str) -> Key | None:
        """Return the key of that name, if it is here."""


@dataclass(frozen=True, slots=True)
class Keyring:
    """Keys that do not change while the process lives."""

    keys: tuple[Key, ...]

    @classmethod
    def parse(cls, text: SecretStr) -> "Keyring":
        """Read keys separated by commas, as ``GOONDAN_OAUTH_KEY`` has them.

        Raises:
            ConfigError: one of them is none, or there is none at all.
        """
        return cls.of(text.get_secret_value().split(","))

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Keyring":
        """Read keys, the one that encrypts first; raises as ``parse`` does."""
        keys = tuple(Key.parse(text) for text in texts)
        if not keys:
            raise ConfigError("The OAuth store has no key.", suggestion="Set GOONDAN_OAUTH_KEY.")
        return cls(keys)

    @property
    def current(self) -> Key:
        """The key that encrypts."""
        return self.keys[0]

    def find(self, key_id: str) -> Key | None:
        """Return the key of that name, if it is here."""
        return next((key for key in self.keys if key.id == key_id), None)


def _key_bytes(text: str) -> bytes | None:
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    standard = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except ValueError:
        return None

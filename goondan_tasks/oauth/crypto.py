"""Secrets at rest: AES-256-GCM; the first key encrypts, any of them decrypts (000 §12.5.3 rule 1)."""

import base64
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import SecretStr

from goondan_tasks.contract.errors import ConfigError, OAuthStoreError, extra
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.redaction import KNOWN_SECRETS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ALGORITHM = "aes-256-gcm"
KEY_BYTES = 32
#: NIST SP 800-38D §8.2.2
_IV_BYTES = 12
_HEX = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Key:
    """An AES-256 key, and the id by which records name it; the id does not reveal the key."""

    id: str
    aes: "AESGCM" = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Read a key: 32 bytes as base64 (of either alphabet) or as 64 hexadecimal digits.

        Raises:
            ConfigError: the key is malformed, which the message does not repeat; or the extra ``oauth`` is
                not installed.
        """
        with extra("oauth"):  # optional: only now
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        text = text.strip()
        try:
            if _HEX.fullmatch(text):
                data = bytes.fromhex(text)
            else:
                standard = text.rstrip("=").replace("-", "+").replace("_", "/")
                data = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
        except ValueError:
            data = b""
        if len(data) != KEY_BYTES:
            raise ConfigError(
                "A key of the OAuth store is not 32 bytes of base64.",
                suggestion="Make one with `openssl rand -base64 32`, and set GOONDAN_OAUTH_KEY to it.",
            )
        digest = hashlib.sha256(b"goondan oauth key " + data).hexdigest()
        return cls(f"k-{digest[:12]}", AESGCM(data))


class Keyring:
    """The keys of the store: the first encrypts, and any of them decrypts."""

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self.keys = keys

    @classmethod
    def parse(cls, text: SecretStr) -> "Keyring":
        """Read keys separated by commas, as ``GOONDAN_OAUTH_KEY`` has them; raises as :meth:`of` does."""
        return cls.of(text.get_secret_value().split(","))

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Keyring":
        """Read keys, the one that encrypts first.

        Raises:
            ConfigError: a key is malformed, or there is none.
        """
        keys = tuple(Key.parse(text) for text in texts)
        if not keys:
            raise ConfigError("The OAuth store has no key.", suggestion="Set GOONDAN_OAUTH_KEY.")
        return cls(keys)

    @property
    def current(self) -> Key:
        return self.keys[0]

    def find(self, key_id: str) -> Key | None:
        return next((key for key in self.keys if key.id == key_id), None)


class SecretField(NamedTuple):
    """The field of a record that a secret is encrypted for; in another field it cannot be decrypted."""

    kind: str
    name: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.field}"


@dataclass(frozen=True, slots=True)
class Cipher:
    """Converts secrets to EncryptedValues ``{algorithm, keyId, iv, ciphertext}`` (base64), and back."""

    keys: Keyring

    def encrypt(self, secret: SecretStr, place: SecretField) -> JsonObject:
        """Encrypt with the current key."""
        _redact(secret, place)
        key, iv = self.keys.current, os.urandom(_IV_BYTES)
        plain = secret.get_secret_value().encode("utf-8", "surrogatepass")
        data = key.aes.encrypt(iv, plain, _associated_data(place, key))
        texts = {name: base64.b64encode(value).decode() for name, value in (("iv", iv), ("ciphertext", data))}
        return {"algorithm": ALGORITHM, "keyId": key.id, **texts}

    def decrypt(self, value: Any, place: SecretField) -> SecretStr:
        """Decrypt with the key that the value names.

        Raises:
            OAuthStoreError: this process lacks the key, or the value is damaged or was moved.
        """
        from cryptography.exceptions import InvalidTag  # of the extra that keys need

        key_id = value.get("keyId") if isinstance(value, dict) else None
        if key_id is None or value.get("algorithm") != ALGORITHM:
            raise OAuthStoreError.of_record(place.name, f"{place} is damaged: it holds no encrypted value.")
        key = self.keys.find(str(key_id))
        if key is None:
            message = f"{place} was encrypted with the key '{key_id}', which this process lacks."
            raise OAuthStoreError.of_record(place.name, message)
        try:
            iv, data = (base64.b64decode(value[name], validate=True) for name in ("iv", "ciphertext"))
            plain = key.aes.decrypt(iv, data, _associated_data(place, key))
            secret = SecretStr(plain.decode("utf-8", "surrogatepass"))
        except (InvalidTag, KeyError, TypeError, ValueError) as error:
            message = f"{place} is damaged, or belongs elsewhere."
            raise OAuthStoreError.of_record(place.name, message) from error
        _redact(secret, place)
        return secret


def _associated_data(place: SecretField, key: Key) -> bytes:
    return f"{place.kind}|{place.name}|{place.field}|{key.id}".encode()


def _redact(secret: SecretStr, place: SecretField) -> None:
    # users see a state in their links
    KNOWN_SECRETS.add(secret.get_secret_value(), is_handed_out=place.field == "state")

"""Secrets at rest: keys, the file that holds them, and AES-256-GCM (000 §12.5.3 rule 1)."""

import base64
import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

from goondan_tasks.errors import ConfigError
from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.private_files import (
    create_private,
    lock_file,
    make_private_directory,
    require_private,
    usable,
    write_private,
)
from goondan_tasks.redaction import KNOWN_SECRETS

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


_log = structlog.get_logger(__name__)

_LOCK_SECONDS = 10.0

#: what tells a file from the one that took its place
_Mark = tuple[int, int, int]


class KeyFile:
    """Keys in a file, which is made with a new key if it is missing; safe in threads and processes.

    A rotation adds a key and keeps the one that encrypted until then. A file without that was changed by
    something else: this process goes on with the keys that it has, and says so in the log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: the file that was read
        self._read: _Mark | None = None
        with usable(path):
            if not path.exists():
                make_private_directory(path.parent)
                create_private(path, _new_key())
        self._ring = self._load()

    @property
    def current(self) -> Key:
        """The key that encrypts; that of a rotation by another process at once, for the old one may go."""
        with contextlib.suppress(OSError):  # without its file what was read goes on
            if _mark(self._path) != self._read:
                self._follow()
        return self._ring.current

    def find(self, key_id: str) -> Key | None:
        """Return the key of that name; one that is not known may have been added by a rotation."""
        known = self._ring.find(key_id)
        if known is None:
            self._follow()
            known = self._ring.find(key_id)
        return known

    def rotate(self) -> Key:
        """Put a new key before the others, so that it encrypts from now on.

        Raises:
            OAuthStoreError: somebody else has been changing the file for long.
        """
        lock = lock_file(self._path.with_name("keys.lock"), wait_seconds=_LOCK_SECONDS)
        with usable(self._path), lock as is_mine:
            if not is_mine:
                raise OAuthStoreError(f"{self._path} is being changed by another process.")
            write_private(self._path, _new_key() + self._path.read_bytes())
        self._follow()
        return self.current

    def _follow(self) -> None:
        """Take the keys that the file has now, if it is still ours."""
        before = self._read
        try:
            ring = self._load()
        except (ConfigError, OAuthStoreError) as error:
            reason = error.message
        else:
            if ring.find(self._ring.current.id) is not None:
                self._ring = ring
                return
            reason = f"{self._path} no longer holds the key {self._ring.current.id}."
        if self._read != before:
            _log.error(
                "oauth.key_file_changed",
                error=reason,
                what_to_do="This process goes on with its keys; the next one cannot read the store. Put the "
                "file back from a backup, and find out who may write there; or set GOONDAN_OAUTH_KEY.",
            )

    def _load(self) -> Keyring:
        """Read the keys.

        Raises:
            ConfigError: a line holds no key.
            OAuthStoreError: others may read the file, or nobody can.
        """
        with usable(self._path):
            self._read = _mark(self._path)  # before its text: a file that comes meanwhile is seen next time
            require_private(self._path)
            lines = self._path.read_text("ascii", errors="replace").splitlines()
        return Keyring.of(line for line in lines if line.strip())


def _mark(path: Path) -> _Mark:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _new_key() -> bytes:
    return base64.b64encode(os.urandom(KEY_BYTES)) + b"\n"


ALGORITHM = "aes-256-gcm"
#: NIST SP 800-38D §8.2.2
_IV_BYTES = 12


@dataclass(frozen=True, slots=True)
class Place:
    """Where a secret stands; what was moved from elsewhere does not decrypt."""

    kind: str
    name: str
    field: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.field}"

    def bound_to(self, key_id: str) -> bytes:
        """Return what is authenticated beside the secret."""
        return f"{self.kind}|{self.name}|{self.field}|{key_id}".encode()


@dataclass(frozen=True, slots=True)
class Cipher:
    """Makes EncryptedValues ``{algorithm, keyId, iv, ciphertext}`` (base64) of secrets, and back."""

    keys: KeySource

    def encrypt(self, secret: SecretStr, place: Place) -> JsonObject:
        """Encrypt with the current key."""
        _keep_out_of_sight(secret, place)
        key = self.keys.current
        iv = os.urandom(_IV_BYTES)
        plain = secret.get_secret_value().encode("utf-8", "surrogatepass")
        data = key.aes.encrypt(iv, plain, place.bound_to(key.id))
        return {"algorithm": ALGORITHM, "keyId": key.id, "iv": _text(iv), "ciphertext": _text(data)}

    def decrypt(self, value: Any, place: Place) -> SecretStr:
        """Decrypt with the key that the value names.

        Raises:
            OAuthStoreError: that is not here, or the value is damaged or was moved.
        """
        key_id = value.get("keyId") if isinstance(value, dict) else None
        if key_id is None or value.get("algorithm") != ALGORITHM:
            raise OAuthStoreError.of_record(place.name, f"{place} is damaged: it holds no encrypted value.")
        key = self.keys.find(str(key_id))
        if key is None:
            message = f"{place} was encrypted with the key '{key_id}', which is not here."
            raise OAuthStoreError.of_record(place.name, message)
        try:
            iv, data = _data(value, "iv"), _data(value, "ciphertext")
            plain = key.aes.decrypt(iv, data, place.bound_to(key.id))
            secret = SecretStr(plain.decode("utf-8", "surrogatepass"))
        except (InvalidTag, KeyError, TypeError, ValueError) as error:
            message = f"{place} is damaged, or belongs elsewhere."
            raise OAuthStoreError.of_record(place.name, message) from error
        _keep_out_of_sight(secret, place)
        return secret


def _keep_out_of_sight(secret: SecretStr, place: Place) -> None:
    # a state stands in the link that a user is handed
    KNOWN_SECRETS.add(secret.get_secret_value(), is_handed_out=place.field == "state")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _data(value: JsonObject, name: str) -> bytes:
    return base64.b64decode(value[name], validate=True)

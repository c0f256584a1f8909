"""Secrets at rest: AES-256-GCM, each bound to its place (000 §12.5.3 rule 1)."""

import base64
import os
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from pydantic import SecretStr

from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.keyring import KeySource
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.redaction import KNOWN_SECRETS

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

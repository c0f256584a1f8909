"""Keys of the OAuth store, and what they encrypt."""

import base64

import pytest
from pydantic import SecretStr

from goondan_tasks.contract.errors import ConfigError, OAuthStoreError
from goondan_tasks.oauth.crypto import Cipher, Key, Keyring, SecretField
from tests.unit.goondan_tasks.oauth.stores import KEY, OTHER_KEY

_BYTES = bytes(range(200, 232))


PLACE = SecretField("OAuthGrantRecord", "sha256:1", "accessToken")


def test_key_is_same_in_every_notation() -> None:
    texts = [
        base64.b64encode(_BYTES).decode(),
        base64.b64encode(_BYTES).decode().rstrip("="),
        base64.urlsafe_b64encode(_BYTES).decode(),
        _BYTES.hex(),
        f" {_BYTES.hex().upper()}\n",
    ]

    assert len({Key.parse(text).id for text in texts}) == 1


@pytest.mark.parametrize("text", ["", "password", "a" * 65, KEY[:-4], KEY + KEY, "한" * 43, ","])
def test_invalid_key_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Keyring.parse(SecretStr(f"{KEY},{text}"))

    assert KEY not in str(caught.value)
    assert len(text) < 4 or text not in str(caught.value)


def test_first_key_encrypts_and_each_one_decrypts() -> None:
    old, both = Cipher(Keyring.parse(SecretStr(KEY))), Cipher(Keyring.parse(SecretStr(f"{OTHER_KEY},{KEY}")))
    written = old.encrypt(SecretStr("a secret"), PLACE)

    assert both.decrypt(written, PLACE) == SecretStr("a secret")
    assert both.encrypt(SecretStr("a secret"), PLACE)["keyId"] == Key.parse(OTHER_KEY).id
    with pytest.raises(OAuthStoreError, match="lacks"):
        old.decrypt(both.encrypt(SecretStr("a secret"), PLACE), PLACE)


@pytest.mark.parametrize(
    "elsewhere",
    [
        SecretField("AuthSessionRecord", "sha256:1", "accessToken"),
        SecretField("OAuthGrantRecord", "sha256:2", "accessToken"),
        SecretField("OAuthGrantRecord", "sha256:1", "refreshToken"),
    ],
)
def test_secret_that_was_moved_does_not_decrypt(elsewhere: SecretField) -> None:
    cipher = Cipher(Keyring.parse(SecretStr(KEY)))

    with pytest.raises(OAuthStoreError, match="belongs elsewhere"):
        cipher.decrypt(cipher.encrypt(SecretStr("a secret"), PLACE), elsewhere)


def test_same_secret_is_never_written_alike() -> None:
    cipher = Cipher(Keyring.parse(SecretStr(KEY)))

    assert len({cipher.encrypt(SecretStr("a secret"), PLACE)["iv"] for _ in range(100)}) == 100

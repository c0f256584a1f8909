"""Keys of the OAuth store: how they are written, kept in a file, and rotated."""

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from broker_config.settings import Settings
from goondan_tasks.errors import ConfigError
from goondan_tasks.oauth.crypto import Cipher, Key, Keyring, Place
from goondan_tasks.oauth.file_store import KeyFile
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.opening import open_keys, require_keys
from tests.unit.goondan_tasks.oauth.records import grant
from tests.unit.goondan_tasks.oauth.stores import KEY, KINDS, OTHER_KEY, FileVault, vault_of

_BYTES = bytes(range(200, 232))
PLACE = Place("OAuthGrantRecord", "sha256:1", "accessToken")


def test_a_key_is_the_same_in_every_way_of_writing_it() -> None:
    texts = [
        base64.b64encode(_BYTES).decode(),
        base64.b64encode(_BYTES).decode().rstrip("="),
        base64.urlsafe_b64encode(_BYTES).decode(),
        _BYTES.hex(),
        f" {_BYTES.hex().upper()}\n",
    ]

    assert len({Key.parse(text).id for text in texts}) == 1


@pytest.mark.parametrize("text", ["", "password", "a" * 65, KEY[:-4], KEY + KEY, "한" * 43, ","])
def test_what_is_no_key_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Keyring.parse(SecretStr(f"{KEY},{text}"))

    assert KEY not in str(caught.value)
    assert len(text) < 4 or text not in str(caught.value)


def test_the_first_key_encrypts_and_each_one_decrypts() -> None:
    old, both = Cipher(Keyring.parse(SecretStr(KEY))), Cipher(Keyring.parse(SecretStr(f"{OTHER_KEY},{KEY}")))
    written = old.encrypt(SecretStr("a secret"), PLACE)

    assert both.decrypt(written, PLACE) == SecretStr("a secret")
    assert both.encrypt(SecretStr("a secret"), PLACE)["keyId"] == Key.parse(OTHER_KEY).id
    with pytest.raises(OAuthStoreError, match="lacks"):
        old.decrypt(both.encrypt(SecretStr("a secret"), PLACE), PLACE)


@pytest.mark.parametrize(
    "elsewhere",
    [
        Place("AuthSessionRecord", "sha256:1", "accessToken"),
        Place("OAuthGrantRecord", "sha256:2", "accessToken"),
        Place("OAuthGrantRecord", "sha256:1", "refreshToken"),
    ],
)
def test_a_secret_that_was_moved_does_not_decrypt(elsewhere: Place) -> None:
    cipher = Cipher(Keyring.parse(SecretStr(KEY)))

    with pytest.raises(OAuthStoreError, match="belongs elsewhere"):
        cipher.decrypt(cipher.encrypt(SecretStr("a secret"), PLACE), elsewhere)


def test_the_same_secret_is_never_written_alike() -> None:
    cipher = Cipher(Keyring.parse(SecretStr(KEY)))

    assert len({cipher.encrypt(SecretStr("a secret"), PLACE)["iv"] for _ in range(100)}) == 100


def test_a_machine_without_a_key_gets_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    settings = Settings.load(state_root=tmp_path / "root")
    first, second = open_keys(settings), open_keys(settings)

    assert first.current.id == second.current.id
    path = tmp_path / "root" / "oauth" / "keys"
    modes = [one.stat().st_mode & 0o777 for one in (path, path.parent, settings.state_root_path)]
    assert modes == [0o600, 0o700, 0o700]
    assert [name.name for name in path.parent.iterdir()] == ["keys"]


def test_many_that_need_the_file_at_once_get_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = threads.map(lambda _: KeyFile(tmp_path / "oauth" / "keys").current.id, range(16))

    assert len(set(made)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "oauth" / "keys"
    KeyFile(path)
    path.chmod(mode)

    with pytest.raises(OAuthStoreError, match="open to others"):
        KeyFile(path)


def test_a_key_file_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    KeyFile(path)
    path.write_text("no key\n", encoding="utf-8")

    with pytest.raises(ConfigError):
        KeyFile(path)
    assert path.read_text("utf-8") == "no key\n"


def test_a_rotation_is_noticed_by_whoever_meets_what_it_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    mine, theirs = KeyFile(path), KeyFile(path)
    before = Cipher(mine).encrypt(SecretStr("old"), PLACE)
    theirs.rotate()
    after = Cipher(theirs).encrypt(SecretStr("new"), PLACE)

    assert Cipher(mine).decrypt(after, PLACE) == SecretStr("new")
    assert Cipher(mine).decrypt(before, PLACE) == SecretStr("old")
    assert mine.current.id == theirs.current.id


def test_what_is_encrypted_after_a_rotation_elsewhere_has_the_new_key(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    mine, theirs = KeyFile(path), KeyFile(path)

    made = theirs.rotate()

    assert Cipher(mine).encrypt(SecretStr("new"), PLACE)["keyId"] == made.id


def test_a_key_file_that_is_gone_is_not_replaced_by_one_with_another_key(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    mine = KeyFile(path)
    path.unlink()

    assert Cipher(mine).encrypt(SecretStr("new"), PLACE)["keyId"] == mine.current.id
    assert not path.exists()


@pytest.mark.parametrize("text", [f"{OTHER_KEY}\n", "no key\n", ""])
def test_a_key_file_changed_by_something_else_is_told_of_and_not_followed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "oauth" / "keys"
    mine = KeyFile(path)
    before = Cipher(mine).encrypt(SecretStr("old"), PLACE)
    path.write_text(text, encoding="utf-8")

    with capture_logs() as logs:
        after = [Cipher(mine).encrypt(SecretStr("new"), PLACE) for _ in range(3)]
        assert mine.find("k-of-somebody") is None

    assert {one["keyId"] for one in after} == {before["keyId"]}
    assert Cipher(mine).decrypt(before, PLACE) == SecretStr("old")
    assert [one["event"] for one in logs] == ["oauth.key_file_changed"]


def test_a_key_that_is_looked_for_while_the_file_is_gone_makes_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    mine = KeyFile(path)
    path.unlink()

    assert mine.find("k-of-somebody") is None
    assert not path.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_reads_none_of_the_grants_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    vault = vault_of(kind, tmp_path)
    vault.open().replace_grant(grant(), generation=0)
    other, both = Keyring.of([OTHER_KEY]), Keyring.of([OTHER_KEY, KEY])

    with pytest.raises(OAuthStoreError, match=Key.parse(KEY).id) as refused:
        require_keys(vault.open(), other)

    assert "GOONDAN_OAUTH_KEY" in (refused.value.suggestion or "")
    require_keys(vault.open(), both)


def test_a_key_that_reads_some_of_the_grants_is_told_of(tmp_path: Path) -> None:
    vault = FileVault(tmp_path)
    vault.open().replace_grant(grant(), generation=0)
    vault.open(OTHER_KEY).replace_grant(grant(subject="another"), generation=0)

    with capture_logs() as logs:
        require_keys(vault.open(), Keyring.of([OTHER_KEY]))

    assert [one["event"] for one in logs] == ["oauth.key_missing"]
    assert Key.parse(KEY).id in logs[0]["error"]


def test_a_store_without_grants_takes_any_key(tmp_path: Path) -> None:
    require_keys(FileVault(tmp_path).open(), Keyring.of([OTHER_KEY]))


def test_rotations_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    files = [KeyFile(path) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        made = set(threads.map(lambda file: file.rotate().id, files))

    whole = KeyFile(path)
    assert len(path.read_text("ascii").split()) == 5
    assert all(whole.find(key_id) for key_id in made)

"""What files have to show beyond what every store does, and the keys in a file."""

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from goondan_tasks.contract.errors import ConfigError, OAuthStoreError
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.oauth import file_store
from goondan_tasks.oauth.crypto import Cipher, SecretField
from goondan_tasks.oauth.file_store import KeyFile, write_private
from tests.unit.goondan_tasks.oauth.records import APP, SUBJECT, grant, session
from tests.unit.goondan_tasks.oauth.stores import OTHER_KEY, FileVault

PLACE = SecretField("OAuthGrantRecord", "sha256:1", "accessToken")


@pytest.mark.requirement("oauth.store.no-direct-access")
def test_only_owner_can_look_into_store(tmp_path: Path) -> None:
    store = FileVault(tmp_path).open()
    store.replace_grant(grant(), generation=0)
    store.open_session(session(now=wall_clock()))

    modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "oauth").rglob("*")}

    assert len(modes) > 5
    assert set(modes.values()) == {0}


@pytest.mark.parametrize("which", ["oauth", "oauth/grants", "record"])
def test_store_that_others_may_read_is_refused(tmp_path: Path, which: str) -> None:
    vault = FileVault(tmp_path)
    vault.open().replace_grant(grant(), generation=0)
    (record,) = (tmp_path / "oauth" / "grants").iterdir()
    path = record if which == "record" else tmp_path / which
    path.chmod(0o755)

    with pytest.raises(OAuthStoreError, match="open to others"):
        vault.open().grant(APP, SUBJECT)


def test_next_writer_finishes_write_interrupted_by_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = FileVault(tmp_path)
    store = vault.open()
    opened = store.open_session(session(now=wall_clock()))
    store.advance(opened.id, status="pending", to="exchanging")
    written: list[Path] = []

    def die_after_two(path: Path, data: bytes) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        write_private(path, data)

    monkeypatch.setattr(file_store, "write_private", die_after_two)
    with pytest.raises(KeyboardInterrupt):
        store.complete(opened, grant())
    monkeypatch.undo()
    after_death = vault.open()

    assert [path.name for path in written] == ["journal", f"{opened.id}.json"]
    assert not after_death.complete(opened, grant())
    assert after_death.grant(APP, SUBJECT) == grant(generation=1)
    assert not (tmp_path / "oauth" / "journal").exists()


def test_damaged_journal_is_error_and_stays(tmp_path: Path) -> None:
    store = FileVault(tmp_path).open()
    write_private(tmp_path / "oauth" / "journal", b'{"grants/x.json": "')

    with pytest.raises(OAuthStoreError, match="journal is damaged"):
        store.replace_grant(grant(), generation=0)
    assert (tmp_path / "oauth" / "journal").read_bytes() == b'{"grants/x.json": "'


def test_writer_that_fails_leaves_no_file_behind(tmp_path: Path) -> None:
    store = FileVault(tmp_path).open()
    (tmp_path / "oauth" / "grants" / f"{grant().name.removeprefix('sha256:')}.json").mkdir(mode=0o700)

    with pytest.raises(OAuthStoreError, match="Is a directory"):
        store.replace_grant(grant(), generation=0)
    assert len(list((tmp_path / "oauth" / "grants").iterdir())) == 1


def test_full_disk_is_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileVault(tmp_path).open()

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_store, "write_private", full)

    with pytest.raises(OAuthStoreError, match="oauth cannot be used: No space left on device"):
        store.replace_grant(grant(), generation=0)


def test_expired_session_is_removed_with_its_traces(tmp_path: Path) -> None:
    store = FileVault(tmp_path).open()
    store.open_session(session(1, now=wall_clock(), lives_ms=-3_600_001))
    other = store.open_session(session(2, now=wall_clock(), subject="other"))

    assert [path.stem for path in (tmp_path / "oauth" / "sessions").iterdir()] == [other.id]
    assert len(list((tmp_path / "oauth" / "asked").iterdir())) == 1
    json.loads((tmp_path / "oauth" / "sessions" / f"{other.id}.json").read_text("utf-8"))


def test_expired_session_without_key_blocks_no_new_one(tmp_path: Path) -> None:
    vault = FileVault(tmp_path)
    lost = vault.open(OTHER_KEY).open_session(session(1, now=wall_clock(), lives_ms=-3_600_001))
    store = vault.open()

    assert list(store.pending_sessions(APP, SUBJECT)) == []
    assert store.open_session(session(2, now=wall_clock())).id == session(2).id
    assert f"{lost.id}.json" not in vault.texts()


def test_concurrent_openers_of_key_file_share_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = threads.map(lambda _: KeyFile(tmp_path / "oauth" / "keys").current.id, range(16))

    assert len(set(made)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_key_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "oauth" / "keys"
    KeyFile(path)
    path.chmod(mode)

    with pytest.raises(OAuthStoreError, match="open to others"):
        KeyFile(path)


def test_key_file_without_key_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    KeyFile(path)
    path.write_text("no key\n", encoding="utf-8")

    with pytest.raises(ConfigError):
        KeyFile(path)
    assert path.read_text("utf-8") == "no key\n"


def test_reading_newly_encrypted_secret_notices_rotation(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    mine, theirs = KeyFile(path), KeyFile(path)
    before = Cipher(mine).encrypt(SecretStr("old"), PLACE)
    theirs.rotate()
    after = Cipher(theirs).encrypt(SecretStr("new"), PLACE)

    assert Cipher(mine).decrypt(after, PLACE) == SecretStr("new")
    assert Cipher(mine).decrypt(before, PLACE) == SecretStr("old")
    assert mine.current.id == theirs.current.id


def test_encryption_after_rotation_elsewhere_uses_new_key(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    mine, theirs = KeyFile(path), KeyFile(path)

    made = theirs.rotate()

    assert Cipher(mine).encrypt(SecretStr("new"), PLACE)["keyId"] == made.id


def test_encrypting_without_key_file_creates_no_new_key(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    mine = KeyFile(path)
    path.unlink()

    assert Cipher(mine).encrypt(SecretStr("new"), PLACE)["keyId"] == mine.current.id
    assert not path.exists()


@pytest.mark.parametrize("text", [f"{OTHER_KEY}\n", "no key\n", ""])
def test_key_file_changed_outside_is_only_logged(tmp_path: Path, text: str) -> None:
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


def test_key_lookup_without_file_creates_no_file(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    mine = KeyFile(path)
    path.unlink()

    assert mine.find("k-of-somebody") is None
    assert not path.exists()


def test_rotations_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "oauth" / "keys"
    files = [KeyFile(path) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        made = set(threads.map(lambda file: file.rotate().id, files))

    whole = KeyFile(path)
    assert len(path.read_text("ascii").split()) == 5
    assert all(whole.find(key_id) for key_id in made)

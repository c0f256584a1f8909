"""What files have to show beyond what every store does."""

import errno
import json
from pathlib import Path

import pytest

from goondan_tasks.clocks import wall_clock
from goondan_tasks.oauth import file_store
from goondan_tasks.oauth.file_store import write_private
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from tests.unit.goondan_tasks.oauth.records import APP, SUBJECT, grant, session
from tests.unit.goondan_tasks.oauth.stores import OTHER_KEY, FileVault


@pytest.mark.requirement("oauth.store.no-direct-access")
def test_only_the_owner_can_look_into_the_store(tmp_path: Path) -> None:
    store = FileVault(tmp_path).open()
    store.replace_grant(grant(), generation=0)
    store.open_session(session(now=wall_clock()))

    modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "oauth").rglob("*")}

    assert len(modes) > 5
    assert set(modes.values()) == {0}


@pytest.mark.parametrize("which", ["oauth", "oauth/grants", "record"])
def test_a_store_that_others_may_read_is_refused(tmp_path: Path, which: str) -> None:
    vault = FileVault(tmp_path)
    vault.open().replace_grant(grant(), generation=0)
    (record,) = (tmp_path / "oauth" / "grants").iterdir()
    path = record if which == "record" else tmp_path / which
    path.chmod(0o755)

    with pytest.raises(OAuthStoreError, match="open to others"):
        vault.open().grant(APP, SUBJECT)


def test_what_was_begun_before_a_death_is_ended_by_the_next_writer(
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


def test_a_damaged_journal_is_an_error_and_stays(tmp_path: Path) -> None:
    store = FileVault(tmp_path).open()
    write_private(tmp_path / "oauth" / "journal", b'{"grants/x.json": "')

    with pytest.raises(OAuthStoreError, match="journal is damaged"):
        store.replace_grant(grant(), generation=0)
    assert (tmp_path / "oauth" / "journal").read_bytes() == b'{"grants/x.json": "'


def test_a_writer_that_fails_leaves_no_file_behind(tmp_path: Path) -> None:
    store = FileVault(tmp_path).open()
    (tmp_path / "oauth" / "grants" / f"{grant().name.removeprefix('sha256:')}.json").mkdir(mode=0o700)

    with pytest.raises(OAuthStoreError, match="Is a directory"):
        store.replace_grant(grant(), generation=0)
    assert len(list((tmp_path / "oauth" / "grants").iterdir())) == 1


def test_a_disk_that_is_full_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileVault(tmp_path).open()

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_store, "write_private", full)

    with pytest.raises(OAuthStoreError, match="oauth cannot be used: No space left on device"):
        store.replace_grant(grant(), generation=0)


def test_an_expired_session_takes_its_traces_with_it(tmp_path: Path) -> None:
    store = FileVault(tmp_path).open()
    store.open_session(session(1, now=wall_clock(), lives_ms=-3_600_001))
    other = store.open_session(session(2, now=wall_clock(), subject="other"))

    assert [path.stem for path in (tmp_path / "oauth" / "sessions").iterdir()] == [other.id]
    assert len(list((tmp_path / "oauth" / "asked").iterdir())) == 1
    json.loads((tmp_path / "oauth" / "sessions" / f"{other.id}.json").read_text("utf-8"))


def test_a_session_whose_key_is_lost_is_in_nobodys_way_once_it_is_over(tmp_path: Path) -> None:
    vault = FileVault(tmp_path)
    lost = vault.open(OTHER_KEY).open_session(session(1, now=wall_clock(), lives_ms=-3_600_001))
    store = vault.open()

    assert list(store.pending_sessions(APP, SUBJECT)) == []
    assert store.open_session(session(2, now=wall_clock())).id == session(2).id
    assert f"{lost.id}.json" not in vault.texts()

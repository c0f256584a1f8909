"""The keys of a store, found and compared with its grants."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_config.settings import Settings
from goondan_tasks.contract.errors import OAuthStoreError
from goondan_tasks.oauth.crypto import Key, Keyring
from goondan_tasks.oauth.manager import open_keys, require_keys
from tests.unit.goondan_tasks.oauth.records import grant
from tests.unit.goondan_tasks.oauth.stores import KEY, KINDS, OTHER_KEY, FileVault, vault_of


def test_missing_key_creates_owner_only_key_file(tmp_path: Path) -> None:
    settings = Settings.load(state_root=tmp_path / "root")
    first, second = open_keys(settings), open_keys(settings)

    assert first.current.id == second.current.id
    path = tmp_path / "root" / "oauth" / "keys"
    modes = [one.stat().st_mode & 0o777 for one in (path, path.parent, settings.state_root_path)]
    assert modes == [0o600, 0o700, 0o700]
    assert [name.name for name in path.parent.iterdir()] == ["keys"]


@pytest.mark.parametrize("kind", KINDS)
def test_key_reading_no_grants_is_refused(kind: str, tmp_path: Path) -> None:
    vault = vault_of(kind, tmp_path)
    vault.open().replace_grant(grant(), generation=0)
    other, both = Keyring.of([OTHER_KEY]), Keyring.of([OTHER_KEY, KEY])

    with pytest.raises(OAuthStoreError, match=Key.parse(KEY).id) as refused:
        require_keys(vault.open(), other)

    assert "GOONDAN_OAUTH_KEY" in (refused.value.suggestion or "")
    require_keys(vault.open(), both)


def test_key_reading_only_some_grants_is_logged(tmp_path: Path) -> None:
    vault = FileVault(tmp_path)
    vault.open().replace_grant(grant(), generation=0)
    vault.open(OTHER_KEY).replace_grant(grant(subject="another"), generation=0)

    with capture_logs() as logs:
        require_keys(vault.open(), Keyring.of([OTHER_KEY]))

    assert [one["event"] for one in logs] == ["oauth.key_missing"]
    assert Key.parse(KEY).id in logs[0]["error"]


def test_store_without_grants_takes_any_key(tmp_path: Path) -> None:
    require_keys(FileVault(tmp_path).open(), Keyring.of([OTHER_KEY]))

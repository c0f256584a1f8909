"""Grants that are taken back, here and at the provider."""

import pytest
from pydantic import SecretStr

from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.oauth_errors import OAuthError
from goondan_tasks.oauth.revocation import Revocation
from goondan_tasks.oauth.store import OAuthStore
from tests.unit.goondan_tasks.oauth.records import APP, NOW, SUBJECT, grant
from tests.unit.goondan_tasks.oauth.stores import RedisVault
from tests.unit.goondan_tasks.oauth.test_manager import FAILURES, FakeProvider, an_app, ask, manager_of


@pytest.fixture
def store() -> OAuthStore:
    return RedisVault().open()


def test_a_revoked_grant_is_revoked_at_the_provider_too(store: OAuthStore) -> None:
    store.replace_grant(grant(), generation=0)
    provider = FakeProvider()

    assert Revocation(store, provider, lambda: NOW).revoke(APP, SUBJECT, an_app())

    assert provider.revoked == [
        ("refresh_token", "secret-refresh-token"),
        ("access_token", "secret-access-token"),
    ]
    assert ask(manager_of(store))["status"] == "authorization_required"
    with pytest.raises(OAuthError) as caught:
        Revocation(store, provider, lambda: NOW).revoke(APP, "nobody", None)
    assert caught.value.code == "grant_not_found"


@pytest.mark.parametrize("failure", FAILURES)
def test_a_provider_that_cannot_be_told_of_one_token_is_told_of_the_other(
    store: OAuthStore, failure: Exception
) -> None:
    store.replace_grant(grant(), generation=0)

    class Refusing(FakeProvider):
        def revoke(self, app: OAuthApp, token: SecretStr, *, hint: str) -> bool:
            super().revoke(app, token, hint=hint)
            if hint == "refresh_token":
                raise failure
            return True

    provider = Refusing()

    assert not Revocation(store, provider, lambda: NOW).revoke(APP, SUBJECT, an_app())
    assert [hint for hint, _ in provider.revoked] == ["refresh_token", "access_token"]
    assert ask(manager_of(store))["status"] == "authorization_required"

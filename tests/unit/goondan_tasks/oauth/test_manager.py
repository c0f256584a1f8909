"""Requests for tokens (000 §12.5.1), their answers (§12.5.2), and grants that are revoked."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr

from goondan_tasks.contract.messages import iso_time
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.records import OAuthError, OAuthToken
from goondan_tasks.oauth.store import OAuthStore
from tests.unit.goondan_tasks.oauth.managers import (
    AUTH,
    FAILURES,
    REF,
    FakeProvider,
    an_app,
    ask,
    expiring,
    manager_of,
    revoke,
)
from tests.unit.goondan_tasks.oauth.records import APP, NOW, SUBJECT, grant
from tests.unit.goondan_tasks.oauth.stores import OTHER_KEY, RedisVault


@pytest.fixture
def store() -> OAuthStore:
    return RedisVault().open()


@pytest.mark.requirement("oauth.request.form", "oauth.request.ready", "oauth.result.ready")
@pytest.mark.parametrize("ref", [REF, f"OAuthApp/{APP}", {"ref": f"OAuthApp/{APP}"}])
def test_grant_with_valid_token_is_ready(store: OAuthStore, ref: Any) -> None:
    store.replace_grant(grant(), generation=0)

    assert ask(manager_of(store), ref, ["chat:write"], 60) == {
        "status": "ready",
        "accessToken": "secret-access-token",
        "tokenType": "bearer",
        "expiresAt": iso_time(NOW + 3_600_000),
        "scopes": ("chat:write", "channels:read"),
    }


def test_token_without_expiry_is_valid_for_ever(store: OAuthStore) -> None:
    store.replace_grant(grant(token=OAuthToken(access_token=SecretStr("eternal-token"))), generation=0)

    answer = ask(manager_of(store, now=NOW * 2), REF)

    assert (answer["status"], "expiresAt" in answer) == ("ready", False)


@pytest.mark.requirement("oauth.request.subject")
def test_subject_mode_decides_whose_token_is_used(store: OAuthStore) -> None:
    store.replace_grant(grant(subject="slack:user:T111:U1"), generation=0)

    assert ask(manager_of(store, app=an_app(subjectMode="user")))["status"] == "ready"
    assert ask(manager_of(store))["status"] == "authorization_required"


@pytest.mark.requirement("oauth.result.error")
@pytest.mark.parametrize(
    "auth", [None, {}, {"subjects": None}, {"subjects": {"global": ""}}, {"subjects": {"global": 5}}, []]
)
def test_missing_subject_gives_neither_token_nor_session(store: OAuthStore, auth: Any) -> None:
    answer = ask(manager_of(store), auth=auth)

    assert (answer["status"], answer["error"]["code"]) == ("error", "subjectUnavailable")
    assert "turn.auth.subjects.global" in answer["error"]["message"]
    assert list(store.sessions()) == []


@pytest.mark.requirement("oauth.request.scopes-within-app", "oauth.request.no-widening")
@pytest.mark.parametrize(
    "scopes", [["chat:write", "admin"], ["chat:write channels:read"], "chat:write", [5], {"a": 1}]
)
def test_scopes_not_listed_by_app_are_refused(store: OAuthStore, scopes: Any) -> None:
    store.replace_grant(grant(scopes_granted=("chat:write", "channels:read", "admin")), generation=0)

    answer = ask(manager_of(store), REF, scopes)

    assert answer["error"]["code"] == "scopeNotAllowed"
    assert list(store.sessions()) == []


@pytest.mark.requirement("oauth.request.no-widening")
def test_consent_is_asked_for_requested_scopes_alone(store: OAuthStore) -> None:
    store.replace_grant(grant(scopes_granted=("chat:write",)), generation=0)

    answer = ask(manager_of(store), REF, ["channels:read"])

    (opened,) = store.sessions()
    kept = store.grant(APP, SUBJECT)
    assert opened.requested_scopes == ("channels:read",)
    assert parse_qs(urlsplit(answer["authorizationUrl"]).query)["scope"] == ["channels:read"]
    assert kept is not None and kept.scopes_granted == ("chat:write",)


@pytest.mark.requirement("oauth.request.default-scopes")
def test_without_scopes_those_of_app_are_asked_for(store: OAuthStore) -> None:
    ask(manager_of(store), REF, None)

    (opened,) = store.sessions()
    assert opened.requested_scopes == ("chat:write", "channels:read")


@pytest.mark.parametrize("scopes", [[], ()])
def test_empty_list_of_scopes_asks_for_none(store: OAuthStore, scopes: Any) -> None:
    answer = ask(manager_of(store), REF, scopes)

    (opened,) = store.sessions()
    assert opened.requested_scopes == ()
    assert "scope" not in parse_qs(urlsplit(answer["authorizationUrl"]).query)

    store.replace_grant(grant(scopes_granted=()), generation=0)
    assert ask(manager_of(store), REF, scopes)["status"] == "ready"
    assert ask(manager_of(store), REF, ["chat:write"])["status"] == "authorization_required"


@pytest.mark.parametrize("scopes", ["", 0, False, {}])
def test_empty_non_list_scopes_are_refused(store: OAuthStore, scopes: Any) -> None:
    assert ask(manager_of(store), REF, scopes)["error"]["code"] == "scopeNotAllowed"


@pytest.mark.parametrize(
    ("ref", "code"),
    [
        ({"kind": "OAuthApp", "name": "slack-bto"}, "oauthAppNotFound"),
        ({"kind": "Tool", "name": APP}, "oauthAppNotFound"),
        ("slack-bot", "configurationError"),
        (None, "configurationError"),
        ({"name": APP}, "configurationError"),
    ],
)
def test_ref_that_leads_nowhere_is_error(store: OAuthStore, ref: Any, code: str) -> None:
    assert ask(manager_of(store), ref)["error"]["code"] == code


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "300", True, None])
def test_invalid_minimum_time_to_live_is_error(store: OAuthStore, seconds: Any) -> None:
    assert ask(manager_of(store), REF, None, seconds)["error"]["code"] == "configurationError"


@pytest.mark.requirement(
    "oauth.request.authorization-required", "oauth.result.authorization-required", "oauth.flow.session-stored"
)
@pytest.mark.parametrize(
    "standing",
    [
        None,
        grant(revoked=True),
        grant(scopes_granted=("chat:write",)),
        expiring(-1, refresh_token=None),
    ],
)
def test_missing_useless_or_narrow_grant_asks_user(store: OAuthStore, standing: Any) -> None:
    if standing is not None:
        store.replace_grant(standing, generation=0)

    answer = ask(manager_of(store))

    (opened,) = store.sessions()
    assert answer["status"] == "authorization_required"
    assert answer["authSessionId"] == opened.id
    assert answer["authorizationUrl"].startswith("https://slack.example/a?")
    assert answer["expiresAt"] == opened.expires_at
    assert answer["message"]
    assert opened.code_verifier is not None
    assert opened.state is not None


def test_without_resume_no_user_is_asked(store: OAuthStore) -> None:
    assert ask(manager_of(store), resume=None)["error"]["code"] == "configurationError"
    store.replace_grant(grant(revoked=True), generation=0)

    assert ask(manager_of(store), resume=None)["error"]["code"] == "tokenRevoked"
    assert list(store.sessions()) == []


def test_unreadable_grant_is_error_and_stays(store: OAuthStore) -> None:
    vault = RedisVault()
    vault.open(OTHER_KEY).replace_grant(grant(), generation=0)
    before = vault.texts()

    answer = ask(manager_of(vault.open()))

    assert answer["error"]["code"] == "E_OAUTH_STORE"
    assert vault.texts() == before


def test_no_answer_prints_its_token(store: OAuthStore) -> None:
    store.replace_grant(grant(), generation=0)
    answer = manager_of(store).get_access_token(REF, auth=AUTH, resume=None)

    assert "secret-access-token" not in f"{answer} {answer!r} {store.grant(APP, SUBJECT)!r}"


def test_revoked_grant_is_revoked_at_provider_too(store: OAuthStore) -> None:
    store.replace_grant(grant(), generation=0)
    provider = FakeProvider()

    assert revoke(store, provider, an_app())

    assert provider.revoked == [
        ("refresh_token", "secret-refresh-token"),
        ("access_token", "secret-access-token"),
    ]
    assert ask(manager_of(store))["status"] == "authorization_required"
    with pytest.raises(OAuthError) as caught:
        revoke(store, provider, subject="nobody")
    assert caught.value.code == "grant_not_found"


@pytest.mark.parametrize("failure", FAILURES)
def test_failed_revocation_of_token_revokes_other_anyway(store: OAuthStore, failure: Exception) -> None:
    store.replace_grant(grant(), generation=0)

    class Refusing(FakeProvider):
        def revoke(self, app: OAuthApp, token: SecretStr, *, hint: str) -> bool:
            super().revoke(app, token, hint=hint)
            if hint == "refresh_token":
                raise failure
            return True

    provider = Refusing()

    assert not revoke(store, provider, an_app())
    assert [hint for hint, _ in provider.revoked] == ["refresh_token", "access_token"]
    assert ask(manager_of(store))["status"] == "authorization_required"

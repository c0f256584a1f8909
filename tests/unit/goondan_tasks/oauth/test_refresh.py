"""One refresh at a time, and what becomes of its answer (000 §12.5.1 rule 6)."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.lock import Lock

from goondan_tasks.contract.messages import iso_time
from goondan_tasks.oauth.manager import OAuthManager, Refresher, RefreshesInFlight
from goondan_tasks.oauth.provider import TokenReply
from goondan_tasks.oauth.records import ProviderRefusedError, ProviderUnavailableError
from goondan_tasks.oauth.store import OAuthStore
from tests.unit.goondan_tasks.oauth.managers import (
    FAILURES,
    REF,
    FakeProvider,
    an_app,
    ask,
    expiring,
    manager_of,
    revoke,
    says,
)
from tests.unit.goondan_tasks.oauth.records import APP, NOW, SUBJECT, grant
from tests.unit.goondan_tasks.oauth.stores import KINDS, RedisVault, vault_of
from tests.waiting import wait_until


@pytest.fixture
def store() -> OAuthStore:
    return RedisVault().open()


@pytest.mark.requirement("oauth.refresh", "oauth.refresh.stored", "oauth.request.min-ttl")
@pytest.mark.parametrize(("left", "min_ttl"), [(-1, 0), (0, 0), (299, 300), (300, 300), (3000, 3600)])
def test_expired_or_expiring_token_is_refreshed_and_stored(
    store: OAuthStore, left: float, min_ttl: float
) -> None:
    store.replace_grant(expiring(left), generation=0)
    provider = FakeProvider(
        answer=lambda: TokenReply(
            SecretStr("new-access-token"),
            "mac",
            SecretStr("new-refresh-token"),
            7200,
            ("chat:write", "channels:read"),
        )
    )

    answer = ask(manager_of(store, provider), REF, None, min_ttl)

    assert (answer["accessToken"], answer["tokenType"]) == ("new-access-token", "mac")
    assert answer["expiresAt"] == iso_time(NOW + 7_200_000)
    stored = store.grant(APP, SUBJECT)
    assert stored is not None
    assert stored.token.refresh_token == SecretStr("new-refresh-token")
    assert (stored.generation, stored.token.access_token) == (2, SecretStr("new-access-token"))
    assert ask(manager_of(store, provider))["status"] == "ready"
    assert provider.refreshed == ["secret-refresh-token"]


def test_refresh_without_new_refresh_token_keeps_old_token(store: OAuthStore) -> None:
    store.replace_grant(expiring(10), generation=0)
    ask(manager_of(store))

    stored = store.grant(APP, SUBJECT)
    assert stored is not None
    assert stored.token.refresh_token == SecretStr("secret-refresh-token")
    assert stored.scopes_granted == ("chat:write", "channels:read")


def test_short_lived_token_is_refreshed_after_half_life(
    store: OAuthStore,
) -> None:
    store.replace_grant(expiring(10), generation=0)
    provider = FakeProvider(answer=lambda: TokenReply(SecretStr("new-access-token"), expires_in=300))

    answers = [ask(manager_of(store, provider, now=NOW + after)) for after in (0, 1, 149_000)]
    assert {answer["expiresAt"] for answer in answers} == {iso_time(NOW + 300_000)}
    assert len(provider.refreshed) == 1

    assert ask(manager_of(store, provider, now=NOW + 151_000))["expiresAt"] == iso_time(NOW + 451_000)
    assert len(provider.refreshed) == 2


@pytest.mark.parametrize("error", ["invalid_grant", "bad_refresh_token", "invalid_refresh_token"])
def test_invalid_refresh_token_revokes_grant_and_asks_user_once(store: OAuthStore, error: str) -> None:
    store.replace_grant(expiring(10), generation=0)
    provider = FakeProvider(answer=says(ProviderRefusedError("no", error=error)))

    answers = [ask(manager_of(store, provider)) for _ in range(3)]

    assert {answer["status"] for answer in answers} == {"authorization_required"}
    assert len({answer["authSessionId"] for answer in answers}) == 1
    assert len(provider.refreshed) == 1
    stored = store.grant(APP, SUBJECT)
    assert stored is not None
    assert stored.revoked


def test_refused_refresh_does_not_revoke_newer_consent(store: OAuthStore) -> None:
    store.replace_grant(expiring(10), generation=0)

    def consent_comes() -> TokenReply:
        store.replace_grant(grant(), generation=1)
        raise ProviderRefusedError("no", error="invalid_grant")

    answer = ask(manager_of(store, FakeProvider(answer=consent_comes)))

    assert (answer["status"], answer["expiresAt"]) == ("ready", iso_time(NOW + 3_600_000))


def test_refresh_does_not_overwrite_revocation_that_came_meanwhile(store: OAuthStore) -> None:
    store.replace_grant(expiring(10), generation=0)

    def revocation_comes() -> TokenReply:
        revoke(store, FakeProvider())
        return TokenReply(SecretStr("new-access-token"), expires_in=3600)

    answer = ask(manager_of(store, FakeProvider(answer=revocation_comes)))

    assert answer["status"] == "authorization_required"


@pytest.mark.requirement("oauth.refresh.single-flight")
def test_answer_after_lock_expiry_is_stored() -> None:
    vault = RedisVault()
    store = vault.open()
    store.replace_grant(expiring(10), generation=0)

    def answer() -> TokenReply:
        vault.drop_lock()
        return TokenReply(SecretStr("new-access-token"), expires_in=3600)

    assert ask(manager_of(store, FakeProvider(answer=answer)))["accessToken"] == "new-access-token"
    stored = store.grant(APP, SUBJECT)
    assert stored is not None
    assert stored.token.access_token == SecretStr("new-access-token")


def test_refused_refresh_without_lock_awaits_lock_holder() -> None:
    vault = RedisVault()
    store = vault.open()
    store.replace_grant(expiring(10), generation=0)
    has_lock, is_refused = threading.Event(), threading.Event()

    def other() -> None:
        with store.lock(APP, SUBJECT, wait_seconds=10):
            has_lock.set()
            assert is_refused.wait(10)
            store.replace_grant(grant(), generation=1)

    def answer() -> TokenReply:
        vault.drop_lock()
        thread.start()
        assert has_lock.wait(10)
        threading.Timer(0.1, is_refused.set).start()
        raise ProviderRefusedError("already used", error="invalid_grant")

    thread = threading.Thread(target=other)
    answered = ask(manager_of(store, FakeProvider(answer=answer)))
    thread.join(10)

    assert (answered["status"], answered["expiresAt"]) == ("ready", iso_time(NOW + 3_600_000))
    stored = store.grant(APP, SUBJECT)
    assert stored is not None
    assert not stored.revoked


def test_refreshed_token_is_stored_when_redis_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RedisVault().open()
    store.replace_grant(expiring(10), generation=0)
    replace, failures = (
        store.replace_grant,
        iter([RedisConnectionError("away"), RedisConnectionError("away")]),
    )

    def away_at_first(*arguments: Any, **named: Any) -> bool:
        for failure in failures:
            raise failure
        return replace(*arguments, **named)

    monkeypatch.setattr(store, "replace_grant", away_at_first)

    assert ask(manager_of(store))["accessToken"] == "new-access-token"
    stored = store.grant(APP, SUBJECT)
    assert stored is not None
    assert stored.token.access_token == SecretStr("new-access-token")


def test_lasting_redis_outage_is_error_after_store_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RedisVault().open()
    store.replace_grant(expiring(10), generation=0)

    def away(*_: Any, **__: Any) -> bool:
        raise RedisConnectionError("away")

    monkeypatch.setattr(store, "replace_grant", away)
    refresher = Refresher(store, FakeProvider(), lambda: NOW, store_seconds=0.1)

    with pytest.raises(RedisConnectionError):
        refresher.refresh(an_app(), expiring(10))


def test_refresh_token_with_pending_answer_is_not_resent() -> None:
    store = RedisVault().open(lock_seconds=1.5)
    store.replace_grant(expiring(10), generation=0)
    second = FakeProvider()

    def answer() -> TokenReply:
        threading.Event().wait(2)  # longer than the lock's first time
        assert ask(manager_of(store, second))["accessToken"] == "secret-access-token"
        return TokenReply(SecretStr("new-access-token"), expires_in=3600)

    assert ask(manager_of(store, FakeProvider(answer=answer)))["accessToken"] == "new-access-token"
    assert second.refreshed == []


DOUBTFUL = ProviderUnavailableError("The answer is not complete after 60 s.")


CLEAR = [
    ProviderUnavailableError("It cannot be reached.", is_in_doubt=False),
    ProviderRefusedError("no", error="invalid_client"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("left", "status"), [(10, "ready"), (-10, "error")])
def test_lost_answer_delays_resending_refresh_token_until_doubt_ends(
    kind: str, left: float, status: str, tmp_path: Path
) -> None:
    vault = vault_of(kind, tmp_path)
    vault.open().replace_grant(expiring(left), generation=0)
    provider = FakeProvider(answer=says(DOUBTFUL))

    answers = [ask(manager_of(vault.open(), provider)) for _ in range(3)]

    assert [answer["status"] for answer in answers] == [status] * 3
    assert len(provider.refreshed) == 1
    assert "lost" in answers[-1].get("error", {"message": "lost"})["message"]
    standing = vault.open().grant(APP, SUBJECT)
    assert standing is not None
    vault.open().doubt(standing, seconds=0)
    wait_until(lambda: not vault.open().is_doubted(standing))
    assert ask(manager_of(vault.open()))["accessToken"] == "new-access-token"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failure", CLEAR)
def test_unused_refresh_token_is_resent_at_once(kind: str, failure: Exception, tmp_path: Path) -> None:
    store = vault_of(kind, tmp_path).open()
    store.replace_grant(expiring(10), generation=0)

    ask(manager_of(store, FakeProvider(answer=says(failure))))

    assert ask(manager_of(store))["accessToken"] == "new-access-token"


@pytest.mark.parametrize("kind", KINDS)
def test_refresh_token_doubt_spares_later_consent(kind: str, tmp_path: Path) -> None:
    store = vault_of(kind, tmp_path).open()
    store.replace_grant(expiring(10), generation=0)
    ask(manager_of(store, FakeProvider(answer=says(DOUBTFUL))))

    assert store.replace_grant(expiring(20), generation=1)

    assert ask(manager_of(store))["accessToken"] == "new-access-token"


def test_answer_absent_beyond_doubt_time_ends_doubt(store: OAuthStore) -> None:
    store.replace_grant(expiring(10), generation=0)
    refresher = Refresher(store, FakeProvider(answer=says(DOUBTFUL)), lambda: NOW, in_doubt_seconds=0.001)
    standing = store.grant(APP, SUBJECT)
    assert standing is not None

    assert refresher.refresh(an_app(), standing) == standing
    wait_until(lambda: not store.is_doubted(standing))


@pytest.mark.parametrize(("left", "status"), [(10, "ready"), (-10, "error")])
def test_ending_process_begins_no_refresh(store: OAuthStore, left: float, status: str) -> None:
    store.replace_grant(expiring(left), generation=0)
    provider, in_flight = FakeProvider(), RefreshesInFlight()
    manager = replace(
        manager_of(store), refresher=Refresher(store, provider, lambda: NOW, in_flight=in_flight)
    )
    assert in_flight.close()

    assert ask(manager)["status"] == status
    assert provider.refreshed == []


def test_refresh_is_in_flight_until_lock_release(store: OAuthStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.replace_grant(expiring(10), generation=0)
    in_flight = RefreshesInFlight()
    are_none: list[bool] = []
    release = Lock.release

    def noted(lock: Lock) -> None:
        are_none.append(in_flight.close())
        release(lock)

    def answer() -> TokenReply:
        monkeypatch.setattr(Lock, "release", noted)
        return TokenReply(SecretStr("new-access-token"), expires_in=3600)

    standing = store.grant(APP, SUBJECT)
    assert standing is not None
    Refresher(store, FakeProvider(answer=answer), lambda: NOW, in_flight=in_flight).refresh(
        an_app(), standing
    )

    assert are_none == [False]
    assert in_flight.close()


def test_refresh_drops_provider_secrets_of_earlier_version(store: OAuthStore) -> None:
    said = {"team": {"id": "T1"}, "incoming_webhook": {"url": "https://hooks.slack.example/a-secret"}}
    store.replace_grant(expiring(10, lifetime=7200).model_copy(update={"provider_data": said}), generation=0)

    ask(manager_of(store))

    stored = store.grant(APP, SUBJECT)
    assert stored is not None and stored.provider_data == {"team": {"id": "T1"}}


@pytest.mark.parametrize("failure", FAILURES)
def test_provider_failure_with_expired_token_is_error(store: OAuthStore, failure: Exception) -> None:
    store.replace_grant(expiring(-10), generation=0)

    answer = ask(manager_of(store, FakeProvider(answer=says(failure))))

    assert (answer["status"], answer["error"]["code"]) == ("error", "refreshFailed")
    assert list(store.sessions()) == []


def test_overlong_wait_keeps_valid_token_or_fails(
    store: OAuthStore,
) -> None:
    for left, outcome in ((10, "ready"), (-10, "error")):
        standing = store.grant(APP, SUBJECT)
        store.replace_grant(expiring(left), generation=standing.generation if standing else 0)
        manager = manager_of(store)
        with store.lock(APP, SUBJECT, wait_seconds=0):
            impatient = Refresher(store, FakeProvider(), lambda: NOW, wait_seconds=0.02)
            answer = OAuthManager(manager.apps, store, impatient, manager.consent, manager.clock)

            assert ask(answer)["status"] == outcome


@pytest.mark.parametrize("failure", FAILURES)
def test_provider_failure_keeps_valid_token_in_use(store: OAuthStore, failure: Exception) -> None:
    store.replace_grant(expiring(10), generation=0)

    answer = ask(manager_of(store, FakeProvider(answer=says(failure))))

    assert (answer["status"], answer["accessToken"]) == ("ready", "secret-access-token")

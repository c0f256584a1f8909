"""What every store does."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from goondan_tasks.contract.errors import OAuthStoreError
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.oauth import file_store, redis_store
from goondan_tasks.oauth.crypto import Key
from goondan_tasks.oauth.records import AuthSession
from goondan_tasks.oauth.store import OAuthStore, UnreadableRecord
from tests.unit.goondan_tasks.oauth.records import (
    APP,
    SECRETS,
    SUBJECT,
    device_session,
    grant,
    resume,
    session,
)
from tests.unit.goondan_tasks.oauth.stores import KEY, KINDS, OTHER_KEY, FileVault, RedisVault, vault_of
from tests.waiting import wait_until


@pytest.fixture(params=KINDS)
def vault(request: pytest.FixtureRequest, tmp_path: Path) -> FileVault | RedisVault:
    return vault_of(request.param, tmp_path)


@pytest.fixture
def store(vault: FileVault | RedisVault) -> OAuthStore:
    return vault.open()


def live(number: int = 1, **changes: Any) -> AuthSession:
    return session(number, **{"now": wall_clock(), **changes})


@pytest.mark.requirement("oauth.request.grant-key", "oauth.store.grants-and-sessions")
def test_grant_is_kept_by_app_and_subject(store: OAuthStore) -> None:
    assert store.replace_grant(grant(), generation=0)

    assert store.grant(APP, SUBJECT) == grant(generation=1)
    assert store.grant(APP, "slack:team:T222") is None
    assert store.grant("slack", f"-bot{SUBJECT}") is None


def test_grant_replaces_only_generation_that_was_read(store: OAuthStore) -> None:
    newer = grant(scopes_granted=("chat:write",))
    assert store.replace_grant(grant(), generation=0)
    assert not store.replace_grant(newer, generation=0)
    assert store.replace_grant(newer, generation=1)
    assert not store.replace_grant(grant(), generation=1)

    standing = store.grant(APP, SUBJECT)
    assert standing is not None
    assert (standing.generation, standing.scopes_granted) == (2, ("chat:write",))


def test_one_of_many_concurrent_grant_replacements_succeeds(store: OAuthStore) -> None:
    store.replace_grant(grant(), generation=0)
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda _: store.replace_grant(grant(), generation=1), range(8)))

    assert outcomes.count(True) == 1


@pytest.mark.requirement(
    "oauth.store.encrypted", "oauth.session.verifier-encrypted", "oauth.session.state-encrypted"
)
def test_stored_secrets_are_encrypted(vault: FileVault | RedisVault) -> None:
    store = vault.open()
    store.replace_grant(grant(), generation=0)
    store.open_session(live())
    store.open_session(device_session(now=wall_clock()))

    kept = "\n".join(vault.texts().values())

    assert kept.count('"aes-256-gcm"') == len(SECRETS)
    assert [secret for secret in SECRETS if secret in kept] == []


@pytest.mark.requirement("oauth.grant.record", "oauth.grant.flow")
def test_grant_is_written_as_documents_record(vault: FileVault | RedisVault) -> None:
    vault.open().replace_grant(grant(), generation=0)

    (text,) = vault.texts().values()
    document = json.loads(text)

    assert document["kind"] == "OAuthGrantRecord"
    assert document["metadata"] == {"name": grant().name}
    spec = document["spec"]
    assert spec["oauthAppRef"] == {"kind": "OAuthApp", "name": APP}
    assert (spec["provider"], spec["subject"], spec["flow"]) == ("slack", SUBJECT, "authorization_code")
    assert spec["scopesGranted"] == ["chat:write", "channels:read"]
    assert spec["token"]["tokenType"] == "bearer"
    assert set(spec["token"]["accessToken"]) == {"algorithm", "keyId", "iv", "ciphertext"}
    assert {"expiresAt", "refreshToken"} <= set(spec["token"])
    assert (spec["revoked"], spec["providerData"]["team"]["name"]) == (False, None)
    assert {"createdAt", "updatedAt"} <= set(spec)


@pytest.mark.requirement("oauth.session.record", "oauth.session.expected-subject", "oauth.session.resume")
def test_session_is_written_as_documents_record(vault: FileVault | RedisVault) -> None:
    vault.open().open_session(live())

    (text,) = vault.texts().values()
    document = json.loads(text)

    assert (document["kind"], document["metadata"]["name"]) == ("AuthSessionRecord", live().id)
    spec = document["spec"]
    assert (spec["subjectMode"], spec["subject"], spec["status"]) == ("global", SUBJECT, "pending")
    assert spec["requestedScopes"] == ["chat:write", "channels:read"]
    assert spec["flow"]["type"] == "authorization_code"
    assert (spec["flow"]["pkce"]["method"], spec["flow"]["pkce"]["codeChallenge"]) == ("S256", "a-challenge")
    assert {"codeVerifier", "state"} <= {*spec["flow"]["pkce"], *spec["flow"]}
    assert spec["resume"]["swarmRef"] == {"kind": "Swarm", "name": "default"}
    assert (spec["resume"]["agentName"], spec["resume"]["instanceKey"]) == ("planner", "1700000000.000100")
    assert spec["resume"]["origin"]["channel"] == "C123"
    assert spec["resume"]["auth"]["subjects"] == {"global": SUBJECT}


def test_sessions_of_both_flows_are_read_unchanged(store: OAuthStore) -> None:
    code, device = live(), device_session(now=wall_clock())
    assert (store.open_session(code), store.open_session(device)) == (code, device)

    assert (store.session(code.id), store.session(device.id)) == (code, device)
    assert {one.id for one in store.sessions()} == {code.id, device.id}
    assert {one.id for one in store.pending_sessions(APP, SUBJECT)} == {code.id, device.id}
    assert list(store.pending_sessions(APP, "another")) == []


@pytest.mark.parametrize("session_id", ["as-000000000000000000000009", "../grants/x", "", "a\x00b", "한"])
def test_unknown_session_is_none(store: OAuthStore, session_id: str) -> None:
    assert store.session(session_id) is None
    assert not store.advance(session_id, status="pending", to="exchanging")


def test_second_request_for_same_joins_live_session(store: OAuthStore) -> None:
    first = store.open_session(live(1))
    second = store.open_session(
        live(2, resume=resume("other"), requested_scopes=("channels:read", "chat:write"))
    )
    third = store.open_session(live(3, resume=resume("other")))

    assert (second.id, third.id) == (first.id, first.id)
    assert [one.instance_key for one in third.resumes] == [resume().instance_key, "other"]
    assert store.session(first.id) == third
    assert len(list(store.sessions())) == 1


@pytest.mark.parametrize(
    "change", [{"requested_scopes": ("chat:write",)}, {"subject": "other"}, {"oauth_app": "other"}]
)
def test_session_that_asks_for_something_else_is_another(store: OAuthStore, change: Any) -> None:
    store.open_session(live(1))

    assert store.open_session(live(2, **change)).id == live(2).id


def test_session_no_longer_pending_is_not_offered(store: OAuthStore) -> None:
    store.open_session(live(1))
    store.advance(live(1).id, status="pending", to="exchanging")

    assert store.open_session(live(2)).id == live(2).id


def test_of_many_admissions_at_once_one_succeeds(store: OAuthStore) -> None:
    opened = store.open_session(live())
    with ThreadPoolExecutor(8) as threads:
        outcomes = threads.map(
            lambda _: store.advance(opened.id, status="pending", to="exchanging"), range(8)
        )

    assert list(outcomes).count(True) == 1


def test_session_that_failed_says_why(store: OAuthStore) -> None:
    opened = store.open_session(live())
    assert store.advance(opened.id, status="pending", to="failed", reason="access_denied")

    failed = store.session(opened.id)
    assert failed is not None
    assert (failed.status, failed.reason) == ("failed", "access_denied")


@pytest.mark.requirement("oauth.session.cleaned")
def test_expired_session_is_reported_then_removed(store: OAuthStore) -> None:
    expired = store.open_session(live(1, lives_ms=-1))
    gone = store.open_session(live(2, lives_ms=-3_600_001))
    fresh = store.open_session(live(3))

    kept = store.session(expired.id)
    assert kept is not None
    assert kept.status == "expired"
    assert not store.advance(expired.id, status="pending", to="exchanging")
    assert store.session(gone.id) is None
    assert [one.id for one in store.pending_sessions(APP, SUBJECT)] == [fresh.id]
    assert {one.id for one in store.sessions()} == {expired.id, fresh.id}


@pytest.mark.requirement("oauth.session.cleaned")
def test_completed_session_expires_with_all_its_data(
    vault: FileVault | RedisVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (file_store, redis_store):
        monkeypatch.setattr(module, "KEPT_AFTER_SECONDS", 0.5)
    store = vault.open()
    completed = store.open_session(live(lives_ms=1_500))
    assert store.advance(completed.id, status="pending", to="exchanging")
    assert store.complete(completed, grant())
    assert [one.status for one in store.sessions()] == ["completed"]

    wait_until(lambda: store.session(completed.id) is None)
    fresh = store.open_session(live(2))

    assert [one.id for one in store.sessions()] == [fresh.id]
    assert not any(completed.id in name for name in vault.texts())


@pytest.mark.requirement("oauth.flow.grant-and-session")
def test_grant_and_completed_session_are_written_together_once(store: OAuthStore) -> None:
    store.replace_grant(grant(scopes_granted=()), generation=0)
    opened = store.open_session(live())

    assert not store.complete(opened, grant())
    store.advance(opened.id, status="pending", to="exchanging")
    assert store.complete(opened, grant())
    assert not store.complete(opened, grant())

    assert store.grant(APP, SUBJECT) == grant(generation=2)
    completed = store.session(opened.id)
    assert completed is not None
    assert completed.status == "completed"
    assert not store.advance(opened.id, status="pending", to="exchanging")


def test_grant_is_refreshed_by_one_at_time(store: OAuthStore) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> bool:
        with store.lock(APP, SUBJECT, wait_seconds=0) as is_mine:
            entered.set()
            return is_mine is not None and leave.wait(30)

    with ThreadPoolExecutor(1) as thread:
        holder = thread.submit(hold)
        assert entered.wait(30)
        with store.lock(APP, SUBJECT, wait_seconds=0) as is_mine:
            assert not is_mine
        with store.lock(APP, "another", wait_seconds=0) as is_mine:
            assert is_mine
        leave.set()
        assert holder.result(30)
    with store.lock(APP, SUBJECT, wait_seconds=1) as is_mine:
        assert is_mine


def damaged(change: Callable[[Any], None]) -> Callable[[str], str]:
    def damage(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return damage


def swap_tokens(document: Any) -> None:
    token = document["spec"]["token"]
    token["accessToken"], token["refreshToken"] = token["refreshToken"], token["accessToken"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        damaged(swap_tokens),
        damaged(lambda document: document["spec"].update(subject="slack:team:T999")),
        damaged(lambda document: document["metadata"].update(name="sha256:0")),
        damaged(lambda document: document["spec"]["token"].update(accessToken="plain")),
        damaged(lambda document: document["spec"]["token"]["accessToken"].update(ciphertext="%%%")),
        damaged(lambda document: document["spec"]["token"]["accessToken"].update(iv="")),
        damaged(lambda document: document["spec"]["token"]["accessToken"].update(keyId="k-000")),
        damaged(lambda document: document.update(v=2)),
        damaged(lambda document: document["spec"].pop("scopesGranted")),
    ],
)
def test_damaged_grant_is_error_and_stays_unchanged(
    vault: FileVault | RedisVault, damage: Callable[[str], str]
) -> None:
    store = vault.open()
    store.replace_grant(grant(), generation=0)
    ((name, text),) = vault.texts().items()
    vault.put(name, damage(text))
    opened = store.open_session(live())
    store.advance(opened.id, status="pending", to="exchanging")

    with pytest.raises(OAuthStoreError) as caught:
        store.grant(APP, SUBJECT)
    with pytest.raises(OAuthStoreError):
        store.complete(opened, grant())

    assert vault.texts()[name] == damage(text)
    assert [secret for secret in SECRETS if secret in str(caught.value)] == []
    assert store.forget(grant().name)
    assert store.grant(APP, SUBJECT) is None


def test_grant_of_other_key_is_error_but_listed(
    vault: FileVault | RedisVault,
) -> None:
    vault.open(KEY).replace_grant(grant(), generation=0)
    stranger = vault.open(OTHER_KEY)

    with pytest.raises(OAuthStoreError, match="encrypted with the key 'k-"):
        stranger.grant(APP, SUBJECT)

    (summary,) = stranger.grants()
    assert (summary.subject, summary.has_refresh_token, len(summary.key_ids)) == (SUBJECT, True, 1)
    assert vault.open(KEY).grant(APP, SUBJECT) is not None


def test_unreadable_session_is_removable_hiding_no_other(
    vault: FileVault | RedisVault,
) -> None:
    lost, kept = vault.open(OTHER_KEY).open_session(live(1)), vault.open().open_session(live(2, subject="U2"))
    store, unreadable = vault.open(), list[UnreadableRecord]()

    with pytest.raises(OAuthStoreError):
        list(store.sessions())
    assert [one.id for one in store.sessions(unreadable.append)] == [kept.id]
    (found,) = unreadable
    assert (found.name, found.summary and found.summary.subject) == (lost.id, SUBJECT)
    assert f"goondan oauth revoke {lost.id}" in found.error.suggestion

    assert store.forget(lost.id)
    assert not store.forget(lost.id)
    assert not store.forget("../../keys")
    assert [one.id for one in store.sessions()] == [kept.id]
    assert store.open_session(live(3)).id == live(3).id


def test_session_that_cannot_be_read_is_not_reused(
    vault: FileVault | RedisVault,
) -> None:
    lost = vault.open(OTHER_KEY).open_session(live(1))
    kept = vault.texts()
    store, wanted = vault.open(), live(2)

    opened = store.open_session(wanted)

    assert opened == wanted
    assert store.open_session(live(3)).id == opened.id
    assert [one.id for one in store.pending_sessions(APP, SUBJECT)] == [opened.id]
    assert kept.items() <= vault.texts().items()
    assert vault.open(OTHER_KEY).session(lost.id) == lost


def test_rotation_encrypts_everything_with_new_key(vault: FileVault | RedisVault) -> None:
    old = vault.open(KEY)
    old.replace_grant(grant(), generation=0)
    opened = old.open_session(live())
    store = vault.open(OTHER_KEY, KEY)

    assert store.encrypt_again() == 2
    assert store.encrypt_again() == 0

    alone = vault.open(OTHER_KEY)
    assert alone.grant(APP, SUBJECT) == grant(generation=1)
    assert alone.session(opened.id) == opened


def test_damaged_grant_stops_no_others_listing_or_rotation(
    vault: FileVault | RedisVault,
) -> None:
    old = vault.open(KEY)
    for subject in ("U1", "U2", "U3"):
        old.replace_grant(grant(subject=subject), generation=0)
    name, text = min(vault.texts().items())
    vault.put(name, text[:100])
    store, unreadable = vault.open(OTHER_KEY, KEY), list[UnreadableRecord]()

    with pytest.raises(OAuthStoreError, match="damaged"):
        store.encrypt_again()
    listed = [one.key_ids for one in store.grants(unreadable.append)]

    assert listed == [(Key.parse(OTHER_KEY).id,)] * 2
    [lost] = unreadable
    assert f"goondan oauth revoke {lost.name}" in lost.error.suggestion


def test_subject_may_be_any_text(store: OAuthStore) -> None:
    odd = grant(
        subject="../\ud800 \x00한/|",
        token=grant().token.model_copy(update={"access_token": SecretStr("\ud800")}),
    )
    assert store.replace_grant(odd, generation=0)

    assert store.grant(APP, odd.subject) == odd.model_copy(update={"generation": 1})

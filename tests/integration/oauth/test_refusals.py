"""Redirects that nobody may get a grant by; each is refused with a code of its own."""

import dataclasses
import threading
from typing import Any

import pytest

from goondan_tasks.contract.errors import OAuthStoreError
from goondan_tasks.oauth.manager import AuthorizationRequired
from goondan_tasks.oauth.records import ConsentError, OAuthError
from tests.integration.oauth.conftest import MakeStage
from tests.oauth_server.apps import CALLBACK
from tests.oauth_server.stage import Stage


def _refused(stage: Stage, query: dict[str, str], path: str = CALLBACK) -> str:
    """Return the code with which a redirect is refused; no grant may come of it, and nobody is resumed."""
    before = stage.grants()
    with pytest.raises(OAuthError) as refused:
        stage.receive(query, path)
    assert stage.grants() == before
    return refused.value.code


def _status(stage: Stage, required: AuthorizationRequired) -> tuple[str, str | None]:
    session = stage.store.session(required.auth_session_id)
    assert session is not None
    return session.status, session.reason


@pytest.mark.requirement("oauth.flow.state-checked")
@pytest.mark.parametrize(
    "state", ["", "as-1", "x" * 5000, "as-" + "0" * 24, "\u0000", "as-" + "0" * 24 + ".é"]
)
def test_state_that_is_none_is_invalid(stage: Stage, state: str) -> None:
    query = stage.redirect(stage.begin())

    assert _refused(stage, {**query, "state": state}) == "invalid_state"


@pytest.mark.requirement("oauth.flow.state-checked")
def test_forged_state_is_refused_and_session_kept(stage: Stage) -> None:
    query = stage.redirect(stage.begin())
    forged = query["state"][:-1] + ("A" if query["state"][-1] != "A" else "B")

    assert _refused(stage, {**query, "state": forged}) == "invalid_state"

    stage.receive(query)
    assert stage.grants() == ["slack:user:U1"]


@pytest.mark.requirement("oauth.flow.state-checked")
def test_state_put_together_of_two_sessions_is_refused(stage: Stage) -> None:
    one, other = stage.redirect(stage.begin(("chat:write",))), stage.redirect(stage.begin(("channels:read",)))
    mixed = one["state"].split(".")[0] + "." + other["state"].split(".")[1]

    assert _refused(stage, {**one, "state": mixed}) == "invalid_state"


@pytest.mark.requirement("oauth.flow.state-checked")
def test_redirect_at_other_apps_callback_is_refused_keeping_session(stage: Stage) -> None:
    query = stage.redirect(stage.begin())

    assert _refused(stage, query, "/other/callback") == "invalid_state"

    stage.receive(query)
    assert stage.grants() == ["slack:user:U1"]


@pytest.mark.requirement("oauth.flow.verifier-used")
def test_code_with_state_of_another_session_fails_verifier(stage: Stage) -> None:
    mine, theirs = stage.begin(("chat:write",)), stage.begin(("channels:read",))
    swapped = {**stage.redirect(mine), "code": stage.redirect(theirs)["code"]}

    assert _refused(stage, swapped) == "token_exchange_failed"
    assert _status(stage, mine) == ("failed", "token_exchange_failed")


def test_state_of_no_session_is_not_found(stage: Stage) -> None:
    query = stage.redirect(stage.begin())
    nobody = "as-" + "0" * 24 + "." + query["state"].split(".")[1]

    assert _refused(stage, {**query, "state": nobody}) == "session_not_found"


@pytest.mark.requirement("oauth.flow.state-checked", "oauth.flow.grant-and-session")
def test_redirect_that_comes_again_is_refused(stage: Stage) -> None:
    query = stage.redirect(stage.begin())
    stage.receive(query)

    assert _refused(stage, query) == "session_already_used"
    assert len(stage.sent) == 1


@pytest.mark.requirement("oauth.flow.state-checked")
def test_one_of_two_concurrent_session_redirects_passes(stage: Stage) -> None:
    query = stage.redirect(stage.begin())
    before = stage.server.seen()["counts"].get("authorization_code", 0)
    stage.server.behave(delay=0.3)
    codes: list[str] = []

    def receive() -> None:
        try:
            stage.receive(query)
            codes.append("granted")
        except ConsentError as error:
            codes.append(error.code)

    threads = [threading.Thread(target=receive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert sorted(codes) == ["granted"] + ["session_already_used"] * 3
    assert stage.server.seen()["counts"]["authorization_code"] == before + 1


@pytest.mark.requirement("oauth.flow.state-checked")
def test_redirect_after_session_has_expired_is_refused(stage: Stage) -> None:
    query = stage.redirect(stage.begin())
    stage.ahead_ms = 601_000

    assert _refused(stage, query) == "session_expired"


@pytest.mark.requirement("oauth.flow.subject-checked")
def test_another_users_consent_is_refused(stage: Stage) -> None:
    required = stage.begin()

    assert _refused(stage, stage.redirect(required, user="U2")) == "subject_mismatch"
    assert _status(stage, required) == ("failed", "subject_mismatch")
    assert stage.sent == []


@pytest.mark.requirement("oauth.flow.subject-checked")
def test_user_consent_without_stated_identity_does_not_count(make_stage: MakeStage, stage: Stage) -> None:
    endpoints = {"authorizationUrl": f"{stage.server.url}/authorize", "tokenUrl": f"{stage.server.url}/token"}
    silent = make_stage(endpoints=endpoints)

    assert _refused(silent, silent.redirect(silent.begin())) == "subject_mismatch"


@pytest.mark.requirement("oauth.flow.subject-checked")
def test_another_accounts_consent_for_shared_subject_is_refused(make_stage: MakeStage) -> None:
    stage = make_stage(subjectMode="global", options={"goondan": {"subject": "slack:admin:{sub}"}})
    stage.subject = "slack:admin:U1"
    required = stage.begin()

    assert _refused(stage, stage.redirect(required, user="U2")) == "subject_mismatch"
    assert (_status(stage, required), stage.sent) == (("failed", "subject_mismatch"), [])

    stage.receive(stage.redirect(stage.begin(), user="U1"))
    assert stage.grants() == ["slack:admin:U1"]


@pytest.mark.requirement("oauth.flow.subject-checked")
def test_shared_subject_needs_apps_permission(make_stage: MakeStage) -> None:
    silent = make_stage(subjectMode="global")
    silent.subject = "slack:team:T1"
    assert _refused(silent, silent.redirect(silent.begin())) == "subject_mismatch"

    open_to_all = make_stage(subjectMode="global", options={"goondan": {"anyone": True}})
    open_to_all.subject = "slack:team:T1"
    open_to_all.receive(open_to_all.redirect(open_to_all.begin(), user="U2"))
    assert open_to_all.grants() == ["slack:team:T1"]


def test_subject_template_without_value_refuses_consent(make_stage: MakeStage) -> None:
    stage = make_stage(subjectMode="global", options={"goondan": {"subject": "slack:team:{enterprise.id}"}})
    stage.subject = "slack:team:None"

    assert _refused(stage, stage.redirect(stage.begin())) == "subject_mismatch"


def test_fewer_scopes_than_requested_are_no_grant(stage: Stage) -> None:
    required = stage.begin(("chat:write", "channels:read"))
    stage.server.behave(scope="chat:write")

    assert _refused(stage, stage.redirect(required)) == "scope_not_granted"


def test_users_refusal_is_reported_with_providers_code(stage: Stage) -> None:
    required = stage.begin()

    assert _refused(stage, stage.redirect(required, allow=False)) == "access_denied"
    assert _status(stage, required) == ("failed", "access_denied")
    assert stage.begin().auth_session_id != required.auth_session_id


def test_error_code_that_is_markup_is_not_repeated(stage: Stage) -> None:
    query = stage.redirect(stage.begin())

    assert _refused(stage, {**query, "error": "<script>"}) == "unknown_error"


def test_redirect_without_code_ends_its_session(stage: Stage) -> None:
    required = stage.begin()
    query = stage.redirect(required)

    assert _refused(stage, {"state": query["state"]}) == "token_exchange_failed"
    assert _refused(stage, query) == "session_already_used"


def test_grant_that_cannot_be_replaced_ends_session(stage: Stage) -> None:
    stage.receive(stage.redirect(stage.begin()))
    [record] = (stage.root / "oauth" / "grants").iterdir()
    record.write_text(record.read_text()[:100])
    required = stage.begin(("channels:read",))

    with pytest.raises(OAuthStoreError):
        stage.receive(stage.redirect(required))

    assert _status(stage, required) == ("failed", "E_OAUTH_STORE")


def test_unreachable_provider_ends_session_and_next_request_starts_anew(stage: Stage) -> None:
    required = stage.begin()
    query = stage.redirect(required)
    stage.server.behave(is_out=True)

    assert _refused(stage, query) == "token_exchange_failed"
    assert stage.begin().auth_session_id != required.auth_session_id


def test_wrong_client_secret_is_refused_but_not_shown(make_stage: MakeStage) -> None:
    client = {"clientId": {"value": "goondan"}, "clientSecret": {"value": "wrong-secret"}}
    stage = make_stage(client=client)
    query = stage.redirect(stage.begin())

    with pytest.raises(ConsentError) as refused:
        stage.receive(query)

    assert refused.value.code == "token_exchange_failed"
    assert "wrong-secret" not in refused.value.message and query["code"] not in refused.value.message


def test_missing_callback_address_sends_no_user_to_provider(stage: Stage) -> None:
    nowhere = dataclasses.replace(stage.manager.consent, public_url=None)

    with pytest.raises(OAuthError, match="callback") as refused:
        nowhere.begin(stage.app, stage.subject, ("chat:write",), None)
    assert refused.value.code == "configurationError"
    assert list(stage.store.sessions()) == []


@pytest.mark.parametrize(
    ("lacking", "named"),
    [
        (
            {"client": {"clientId": {"valueFrom": {"env": "SET_NOWHERE"}}, "clientSecret": {"value": "s"}}},
            "clientId",
        ),
        ({"endpoints": {"tokenUrl": "https://provider.example/token"}}, "authorizationUrl"),
    ],
)
def test_app_that_lacks_something_stores_no_session(
    make_stage: MakeStage, lacking: dict[str, Any], named: str
) -> None:
    stage = make_stage(**lacking)

    with pytest.raises(OAuthError, match=named):
        stage.begin()
    assert list(stage.store.sessions()) == []


def test_app_without_device_endpoint_gets_no_device_code(make_stage: MakeStage, stage: Stage) -> None:
    endpoints = {"authorizationUrl": f"{stage.server.url}/authorize", "tokenUrl": f"{stage.server.url}/token"}
    lacking = make_stage(flow="deviceCode", endpoints=endpoints)

    with pytest.raises(OAuthError, match="deviceAuthorizationUrl") as refused:
        lacking.begin()
    assert refused.value.code == "deviceCodeUnsupported"

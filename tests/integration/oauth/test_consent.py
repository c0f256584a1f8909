"""From a request for consent to the grant and the event, against a real authorization server."""

import base64
import hashlib

import pytest

from goondan_tasks.contract.messages import epoch_milliseconds
from tests.integration.oauth.conftest import MakeStage
from tests.oauth_server.stage import PLANNER, REDIRECT_URI, Stage, query_of


@pytest.mark.requirement("oauth.flow.url")
def test_link_carries_challenge_and_state_of_stored_session(stage: Stage) -> None:
    required = stage.begin()

    session = stage.store.session(required.auth_session_id)
    assert session is not None and session.code_verifier is not None and session.state is not None
    verifier = session.code_verifier.get_secret_value()
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    assert query_of(required.authorization_url) == {
        "response_type": "code",
        "client_id": "goondan",
        "redirect_uri": REDIRECT_URI,
        "scope": "chat:write",
        "state": session.state.get_secret_value(),
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    assert len(verifier) == 43
    assert required.message and required.expires_at == session.expires_at


@pytest.mark.requirement("oauth.flow.session-stored", "oauth.session.resume")
def test_verifier_and_state_are_encrypted_on_disk_before_link(stage: Stage) -> None:
    required = stage.begin()

    session = stage.store.session(required.auth_session_id)
    assert session is not None and session.code_verifier is not None and session.state is not None
    on_disk = b"".join(path.read_bytes() for path in stage.root.rglob("*") if path.is_file())
    assert session.id.encode() in on_disk
    assert session.code_verifier.get_secret_value().encode() not in on_disk
    assert session.state.get_secret_value().encode() not in on_disk
    assert session.resume == PLANNER


@pytest.mark.requirement(
    "oauth.flow.verifier-used", "oauth.flow.grant-and-session", "oauth.session.expected-subject"
)
def test_consent_becomes_grant_with_token_and_ends_session(stage: Stage) -> None:
    required = stage.begin()
    stage.server.behave(extra={"team": {"id": "T1", "access_token": "another secret"}})

    stage.receive(stage.redirect(required))

    grant = stage.store.grant("slack-bot", "slack:user:U1")
    assert grant is not None
    assert (grant.flow, grant.scopes_granted, grant.generation) == ("authorization_code", ("chat:write",), 1)
    assert grant.provider_data == {"team": {"id": "T1"}}
    assert grant.token.refresh_token is not None and grant.token.expires_at is not None
    assert 3_500_000 < epoch_milliseconds(grant.token.expires_at) - stage.clock() <= 3_600_000
    session = stage.store.session(required.auth_session_id)
    assert session is not None and session.status == "completed"


@pytest.mark.requirement("oauth.flow.auth-granted", "oauth.flow.resume-context")
def test_asker_gets_auth_granted_with_turn_origin_and_auth(stage: Stage) -> None:
    required = stage.begin()

    stage.receive(stage.redirect(required))

    [sent] = stage.sent
    grant = stage.store.grant("slack-bot", "slack:user:U1")
    assert grant is not None and sent.agent == "planner"
    assert sent.fields == {
        "instance_key": "thread-1",
        "auth": PLANNER.auth,
        "origin": PLANNER.origin,
        "correlation_id": "corr-1",
    }
    assert (sent.event.type, sent.event.trace_id) == ("auth.granted", "ab" * 16)
    assert sent.event.input == {
        "type": "auth.granted",
        "oauthAppRef": {"kind": "OAuthApp", "name": "slack-bot"},
        "provider": "slack",
        "subject": "slack:user:U1",
        "scopesGranted": ["chat:write"],
        "grantId": grant.name,
        "authSessionId": required.auth_session_id,
    }


def test_second_asker_gets_same_link_and_is_resumed(stage: Stage) -> None:
    first = stage.begin(("chat:write", "channels:read"))
    again = stage.begin(("channels:read", "chat:write"))
    other = stage.begin(
        ("chat:write", "channels:read"), PLANNER.model_copy(update={"instance_key": "thread-2"})
    )

    stage.receive(stage.redirect(first))

    assert first == again == other
    assert [sent.fields["instance_key"] for sent in stage.sent] == ["thread-1", "thread-2"]


def test_other_scopes_get_their_own_session(stage: Stage) -> None:
    first, second = stage.begin(("chat:write",)), stage.begin(("channels:read",))

    assert first.auth_session_id != second.auth_session_id


def test_agent_unreachable_after_consent_is_notified_later(stage: Stage) -> None:
    required = stage.begin()
    stage.is_broker_away = True
    stage.receive(stage.redirect(required))
    assert (stage.grants(), stage.sent) == (["slack:user:U1"], [])

    stage.is_broker_away = False
    stage.maintenance.check()
    stage.maintenance.check()

    assert [sent.event.id for sent in stage.sent] == [f"auth-granted-{required.auth_session_id}"]


def test_consent_without_waiting_call_notifies_no_agent(stage: Stage) -> None:
    stage.receive(stage.redirect(stage.begin(resume=None)))

    assert (stage.grants(), stage.sent) == (["slack:user:U1"], [])


def test_new_consent_takes_place_of_grant_before(stage: Stage) -> None:
    stage.receive(stage.redirect(stage.begin(("chat:write",))))
    stage.receive(stage.redirect(stage.begin(("channels:read",))))

    grant = stage.store.grant("slack-bot", "slack:user:U1")
    assert grant is not None
    assert (grant.generation, grant.scopes_granted) == (2, ("channels:read",))


def test_texts_among_options_are_added_to_link(make_stage: MakeStage) -> None:
    options = {"prompt": "consent", "slack": {"tokenMode": "bot"}}
    required = make_stage(options=options).begin()

    query = query_of(required.authorization_url)
    assert query["prompt"] == "consent" and "slack" not in query


def test_client_that_has_to_authenticate_by_header_does(make_stage: MakeStage) -> None:
    stage = make_stage(options={"goondan": {"clientAuth": "client_secret_basic"}})

    stage.receive(stage.redirect(stage.begin()))

    assert stage.grants() == ["slack:user:U1"]


def test_subject_of_several_parts_is_proved_by_template(make_stage: MakeStage) -> None:
    stage = make_stage(options={"goondan": {"subject": "slack:user:{team.id}:{sub}"}})
    stage.subject = "slack:user:T111:U1"

    stage.receive(stage.redirect(stage.begin()))

    assert stage.grants() == ["slack:user:T111:U1"]


def test_reply_without_expiry_type_and_scopes_grants_requested_scopes(stage: Stage) -> None:
    required = stage.begin()
    stage.server.behave(token_lifetime=None, extra={"token_type": None, "scope": None})

    stage.receive(stage.redirect(required))

    grant = stage.store.grant("slack-bot", "slack:user:U1")
    assert grant is not None
    assert (grant.token.expires_at, grant.token.token_type) == (None, "bearer")
    assert grant.scopes_granted == ("chat:write",)

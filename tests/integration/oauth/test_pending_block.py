"""``auth.pending``, the block that tells a model what its user has to consent to."""

import pytest

from tests.integration.oauth.conftest import MakeStage
from tests.oauth_server.stage import Stage


def _block(stage: Stage) -> object:
    sessions = stage.store.pending_sessions(stage.app.name, stage.subject)
    return stage.manager.consent.pending_block(sessions, {stage.app.name: stage.app})


@pytest.mark.requirement("oauth.pending-block", "oauth.pending-block.minimal")
def test_pending_consent_is_shown_with_link_only(stage: Stage) -> None:
    required = stage.begin()

    assert _block(stage) == {
        "type": "auth.pending",
        "items": [
            {
                "authSessionId": required.auth_session_id,
                "oauthAppRef": {"kind": "OAuthApp", "name": "slack-bot"},
                "provider": "slack",
                "subjectMode": "user",
                "authorizationUrl": required.authorization_url,
                "expiresAt": required.expires_at,
                "message": required.message,
            }
        ],
    }


@pytest.mark.requirement("oauth.pending-block.no-secrets")
def test_device_block_shows_user_not_device_code(make_stage: MakeStage) -> None:
    stage = make_stage(flow="deviceCode", redirect=None)
    required = stage.begin()
    session = stage.store.session(required.auth_session_id)
    assert session is not None and session.device is not None

    shown = str(_block(stage))

    assert session.device.user_code in shown
    assert session.device.device_code.get_secret_value() not in shown


@pytest.mark.requirement("oauth.pending-block.no-secrets")
def test_verifier_is_not_shown(stage: Stage) -> None:
    session = stage.store.session(stage.begin().auth_session_id)
    assert session is not None and session.code_verifier is not None

    assert session.code_verifier.get_secret_value() not in str(_block(stage))


def test_without_anything_that_waits_there_is_no_block(stage: Stage) -> None:
    assert _block(stage) is None

    stage.receive(stage.redirect(stage.begin()))

    assert _block(stage) is None

"""The device code flow, against a real authorization server."""

import pytest
import structlog

from goondan_tasks.oauth.manager import AuthorizationRequired
from tests.integration.oauth.conftest import MakeStage
from tests.oauth_server.stage import Stage
from tests.waiting import wait_until


@pytest.fixture
def device_stage(make_stage: MakeStage) -> Stage:
    return make_stage(flow="deviceCode", redirect=None)


def _code(required: AuthorizationRequired) -> str:
    assert required.device_code is not None
    return str(required.device_code["userCode"])


def _looks_until(stage: Stage, required: AuthorizationRequired, status: str) -> None:
    """Look after the sessions, as ``goondan oauth serve`` does, until one of them has a status."""

    def stands() -> bool:
        stage.maintenance.check()
        session = stage.store.session(required.auth_session_id)
        return session is not None and session.status == status

    wait_until(stands)


@pytest.mark.requirement("oauth.device-code", "oauth.device-code.user-code")
def test_user_gets_code_and_verification_address(device_stage: Stage) -> None:
    required = device_stage.begin()

    assert required.device_code is not None
    assert set(required.device_code) == {"verificationUri", "userCode", "expiresIn", "interval"}
    assert required.authorization_url.endswith(f"?user_code={_code(required)}")
    assert _code(required) in required.message


@pytest.mark.requirement("oauth.device-code", "oauth.device-code.same-principles")
def test_typing_code_becomes_grant_and_resumes_agent(device_stage: Stage) -> None:
    required = device_stage.begin()
    device_stage.maintenance.check()
    device_stage.server.type_code(_code(required), user="U1")

    _looks_until(device_stage, required, "completed")

    grant = device_stage.store.grant("slack-bot", "slack:user:U1")
    assert grant is not None and grant.flow == "device_code"
    assert [sent.event.type for sent in device_stage.sent] == ["auth.granted"]


def test_unreadable_session_holds_up_no_other_session(device_stage: Stage) -> None:
    lost = device_stage.begin(("channels:read",))
    record = device_stage.root / "oauth" / "sessions" / f"{lost.auth_session_id}.json"
    required = device_stage.begin(("chat:write",))
    record.write_text(record.read_text().replace('"ciphertext":"', '"ciphertext":"A'))
    device_stage.server.type_code(_code(required), user="U1")

    with structlog.testing.capture_logs() as logs:
        _looks_until(device_stage, required, "completed")

    assert [lost.auth_session_id in one["error"] for one in logs if one["event"] == "oauth.unreadable"] == [
        True
    ]


def test_repeated_request_gets_same_user_code(device_stage: Stage) -> None:
    first = device_stage.begin()

    assert device_stage.begin() == first


def test_another_users_code_is_refused(device_stage: Stage) -> None:
    required = device_stage.begin()
    device_stage.server.type_code(_code(required), user="U2")

    _looks_until(device_stage, required, "failed")

    session = device_stage.store.session(required.auth_session_id)
    assert session is not None and session.reason == "subject_mismatch"
    assert (device_stage.grants(), device_stage.sent) == ([], [])


def test_no_ends_session(device_stage: Stage) -> None:
    required = device_stage.begin()
    device_stage.server.type_code(_code(required), user="U1", allow=False)

    _looks_until(device_stage, required, "failed")

    session = device_stage.store.session(required.auth_session_id)
    assert session is not None and session.reason == "access_denied"


def test_provider_saying_slow_down_is_polled_less(device_stage: Stage) -> None:
    required = device_stage.begin()
    device_stage.server.behave(slow_down=1)

    def was_slowed() -> bool:
        device_stage.maintenance.check()
        return device_stage.maintenance._polls[required.auth_session_id].interval == 6

    wait_until(was_slowed)


def test_device_code_is_on_disk_only_encrypted(device_stage: Stage) -> None:
    required = device_stage.begin()

    session = device_stage.store.session(required.auth_session_id)
    assert session is not None and session.device is not None
    secret = session.device.device_code.get_secret_value().encode()
    assert all(secret not in path.read_bytes() for path in device_stage.root.rglob("*") if path.is_file())

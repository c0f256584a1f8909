"""Grants and sessions for tests; each secret's text says what it is."""

from pydantic import SecretStr

from goondan_tasks.contract.messages import JsonObject, iso_time
from goondan_tasks.oauth.records import AuthSession, DeviceCode, OAuthGrant, OAuthToken, Resume

#: a moment that is whole milliseconds, after every record that is written by these functions
NOW = 1_790_000_000_000.0
APP, SUBJECT = "slack-bot", "slack:team:T111"
SECRETS = (
    "secret-access-token",
    "secret-refresh-token",
    "secret-verifier",
    "secret-state",
    "secret-device-code",
)


def grant(**changes: object) -> OAuthGrant:
    """Make a grant whose token lives for an hour from NOW."""
    token = OAuthToken(
        access_token=SecretStr("secret-access-token"),
        refresh_token=SecretStr("secret-refresh-token"),
        expires_at=iso_time(NOW + 3_600_000),
    )
    fields: JsonObject = {
        "oauth_app": APP,
        "provider": "slack",
        "subject": SUBJECT,
        "flow": "authorization_code",
        "scopes_granted": ("chat:write", "channels:read"),
        "token": token,
        "created_at": iso_time(NOW),
        "updated_at": iso_time(NOW),
        "provider_data": {"team": {"id": "T111", "name": None}},
    }
    return OAuthGrant(**{**fields, **changes})


def resume(instance_key: str = "1700000000.000100") -> Resume:
    """Return the resume of an agent instance."""
    return Resume(
        swarm="default",
        agent_name="planner",
        instance_key=instance_key,
        origin={"connector": "slack-main", "channel": "C123"},
        auth={"actor": {"type": "user", "id": "slack:U1"}, "subjects": {"global": SUBJECT}},
    )


def session(
    number: int = 1, *, lives_ms: float = 600_000, now: float = NOW, **changes: object
) -> AuthSession:
    """Make a session of the authorization code flow, which ends ``lives_ms`` after ``now``."""
    session_id = f"as-{number:024x}"
    fields: JsonObject = {
        "id": session_id,
        "oauth_app": APP,
        "provider": "slack",
        "subject_mode": "global",
        "subject": SUBJECT,
        "requested_scopes": ("chat:write", "channels:read"),
        "flow": "authorization_code",
        "code_verifier": SecretStr("secret-verifier"),
        "code_challenge": "a-challenge",
        "state": SecretStr(f"{session_id}.secret-state"),
        "redirect_uri": "https://agents.example/oauth/callback",
        "created_at": iso_time(now),
        "expires_at": iso_time(now + lives_ms),
        "resume": resume(),
    }
    return AuthSession(**{**fields, **changes})


def device_session(number: int = 2, *, now: float = NOW) -> AuthSession:
    """Make a session of the device code flow."""
    device = DeviceCode(
        verification_uri="https://slack.example/device",
        user_code="WDJB-MJHT",
        expires_in=600,
        device_code=SecretStr("secret-device-code"),
    )
    return session(
        number,
        now=now,
        flow="device_code",
        device=device,
        code_verifier=None,
        code_challenge=None,
        state=None,
        redirect_uri=None,
    )

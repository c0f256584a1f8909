"""Managers for tests, and a provider that answers as it is told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from goondan_tasks.bundle.oauth_app_spec import OAuthAppResource
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.consent import Consent
from goondan_tasks.oauth.manager import OAuthManager, Refresher, revoke_grant
from goondan_tasks.oauth.provider import Provider, TokenReply
from goondan_tasks.oauth.records import OAuthError, ProviderRefusedError, ProviderUnavailableError
from goondan_tasks.oauth.store import OAuthStore
from tests.unit.goondan_tasks.oauth.records import APP, NOW, SUBJECT, grant, resume

REF = {"kind": "OAuthApp", "name": APP}


AUTH = {"subjects": {"global": SUBJECT, "user": "slack:user:T111:U1"}}


def an_app(name: str = APP, **changes: Any) -> OAuthApp:
    spec = {
        "provider": "slack",
        "flow": "authorizationCode",
        "subjectMode": "global",
        "client": {"clientId": {"value": "our-id"}, "clientSecret": {"value": "secret-of-client"}},
        "endpoints": {"authorizationUrl": "https://slack.example/a", "tokenUrl": "https://slack.example/t"},
        "scopes": ["chat:write", "channels:read"],
        "redirect": {"callbackPath": "/oauth/callback"},
        **changes,
    }
    return OAuthApp.of(
        OAuthAppResource.model_validate(
            {"apiVersion": "goondan.ai/v1", "kind": "OAuthApp", "metadata": {"name": name}, "spec": spec}
        )
    )


@dataclass(frozen=True)
class FakeProvider(Provider):
    """Answers refreshes as it is told, and remembers what was asked of it."""

    answer: Callable[[], TokenReply] = lambda: TokenReply(SecretStr("new-access-token"), expires_in=3600)
    refreshed: list[str] = field(default_factory=list)
    revoked: list[tuple[str, str]] = field(default_factory=list)

    def refresh(self, app: OAuthApp, refresh_token: SecretStr) -> TokenReply:
        self.refreshed.append(refresh_token.get_secret_value())
        return self.answer()

    def revoke(self, app: OAuthApp, token: SecretStr, *, hint: str) -> bool:
        self.revoked.append((hint, token.get_secret_value()))
        return True


def says(error: Exception) -> Callable[[], TokenReply]:
    def answer() -> TokenReply:
        raise error

    return answer


def manager_of(
    store: OAuthStore, provider: FakeProvider | None = None, *, now: float = NOW, app: OAuthApp | None = None
) -> OAuthManager:
    provider = provider or FakeProvider()
    app = app or an_app()

    def clock() -> float:
        return now

    return OAuthManager(
        apps={app.name: app},
        store=store,
        refresher=Refresher(store, provider, clock, wait_seconds=1),
        consent=Consent(store, provider, lambda: now_of_redis(store), "https://agents.example"),
        clock=clock,
    )


def revoke(
    store: OAuthStore, provider: FakeProvider, app: OAuthApp | None = None, subject: str = SUBJECT
) -> bool:
    return revoke_grant(store, provider, lambda: NOW, oauth_app=APP, subject=subject, app=app)


def now_of_redis(store: OAuthStore) -> float:
    seconds, micros = store._redis.time()  # type: ignore[attr-defined]
    return float(seconds * 1000 + micros // 1000)


def ask(manager: OAuthManager, ref: Any = REF, *arguments: Any, **named: Any) -> dict[str, Any]:
    answer = manager.get_access_token(ref, *arguments, **{"auth": AUTH, "resume": resume(), **named})
    return answer.to_wire()


def expiring(in_seconds: float, *, lifetime: float = 7200, **changes: Any) -> Any:
    expires_at = NOW + in_seconds * 1000
    token = grant().token.model_copy(update={"expires_at": iso_time(expires_at), **changes})
    return grant(token=token, updated_at=iso_time(expires_at - lifetime * 1000))


FAILURES = [
    ProviderUnavailableError("down"),
    ProviderRefusedError("no", error="invalid_client"),
    OAuthError("no secret"),
]

"""Where redirects arrive, and what is said if the store fails."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr
from redis.exceptions import ReadOnlyError
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.contract.errors import ConfigError, OAuthStoreError
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.consent import Callback
from goondan_web.application import Application, make_application
from goondan_web.door import DoorContext
from goondan_web.doors.oauth import oauth_door, opened
from tests.unit.goondan_tasks.oauth.managers import FakeProvider, an_app
from tests.unit.goondan_tasks.oauth.records import session
from tests.unit.goondan_tasks.oauth.stores import RedisVault

STATE = f"as-{1:024x}.{'s' * 43}"


def make_app(callback: Callback) -> Application:
    """Make an application with this door alone."""
    return make_application([oauth_door(callback, "https://help/")], Settings.load(), "127.0.0.1")


def no_agent(*_: Any, **__: Any) -> None:
    raise AssertionError


class Broken:
    """A store that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def session(self, session_id: str) -> None:
        """Fail."""
        raise self._error


def door(error: Exception, public_url: str | None = None, **spec: Any) -> TestClient:
    """Return a client of the callback over a store that fails."""
    app = an_app(**spec)
    broken: Any = Broken(error)
    return TestClient(make_app(Callback({app.name: app}, broken, no_agent, wall_clock, public_url)))


def test_bundle_without_apps_opens_no_door() -> None:
    bundle: Any = SimpleNamespace(oauth_apps={})
    client: Any = None

    with (
        pytest.raises(ConfigError, match="has no OAuthApps"),
        opened(DoorContext(Settings.load(), client, lambda: bundle, print)),
    ):
        pass


@pytest.mark.parametrize(
    ("public_url", "base_url", "path"),
    [
        ("https://agents.example/swarm/", None, "/swarm/oauth/callback"),
        ("https://agents.example/swarm", "https://other.example/a", "/a/oauth/callback"),
        (None, None, "/oauth/callback"),
    ],
)
def test_proxy_may_leave_path_of_public_url(public_url: str | None, base_url: str | None, path: str) -> None:
    redirect = {"callbackPath": "/oauth/callback", **({"baseUrl": base_url} if base_url else {})}
    client = door(ReadOnlyError(), public_url, redirect=redirect)

    answers = [client.get(place).status_code for place in (path, "/oauth/callback", f"/no{path}", "/")]

    assert answers == [400, 400, 404, 404]


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT"])
def test_only_get_ends_consent(method: str) -> None:
    answer = door(ReadOnlyError(), redirect={"callbackPath": "/cb"}).request(method, "/cb")

    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")


SECRETLESS = {"clientId": {"value": "our-id"}, "clientSecret": {"valueFrom": {"env": "SET_NOWHERE"}}}


@pytest.mark.parametrize(
    ("app", "code"),
    [(an_app("another"), "oauthAppNotFound"), (an_app(client=SECRETLESS), "configurationError")],
)
def test_mistake_of_operator_does_not_use_link_up(app: OAuthApp, code: str) -> None:
    store = RedisVault().open()
    state = SecretStr(STATE)
    store.open_session(session(now=wall_clock(), state=state))
    receiving = Callback({app.name: app}, store, no_agent, wall_clock, None, FakeProvider())

    answer = TestClient(make_app(receiving)).get(
        "/oauth/callback", params={"state": STATE, "code": "c"}, headers={"Accept": "application/json"}
    )

    assert (answer.status_code, answer.json()["error"]["code"]) == (500, code)
    [kept] = store.sessions()
    assert kept.status == "pending"


@pytest.mark.parametrize("named", [{}, {"iss": ""}, {"iss": "https://evil.example"}])
def test_callback_of_other_issuer_leaves_link_usable(named: dict[str, str]) -> None:
    app = an_app(options={"goondan": {"issuer": "https://id.example", "anyone": True}}, subjectMode="global")
    store = RedisVault().open()
    store.open_session(session(now=wall_clock(), state=SecretStr(STATE)))
    client = TestClient(
        make_app(Callback({app.name: app}, store, no_agent, wall_clock, None, FakeProvider())),
        headers={"Accept": "application/json"},
    )

    refused = client.get("/oauth/callback", params={"state": STATE, "code": "c", **named})
    [kept] = store.sessions()
    named_well = {"state": STATE, "error": "access_denied", "iss": "https://id.example"}
    received = client.get("/oauth/callback", params=named_well)

    assert (refused.status_code, refused.json()["error"]["code"], kept.status) == (
        400,
        "invalid_state",
        "pending",
    )
    assert (received.status_code, received.json()["error"]["code"]) == (403, "access_denied")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ReadOnlyError("a replica"), 503, "E_BROKER_UNREACHABLE"),
        (OAuthStoreError("no space left"), 500, "E_OAUTH_STORE"),
        (ConfigError("no key"), 500, ConfigError.code),
    ],
)
def test_failing_store_is_error_page(error: Exception, status: int, code: str) -> None:
    client = door(error)

    answer = client.get("/oauth/callback", params={"state": STATE}, headers={"Accept": "application/json"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)

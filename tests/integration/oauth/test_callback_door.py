"""What a browser sees at the callback."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import structlog
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.oauth.consent import Callback
from goondan_web.application import Application, make_application
from goondan_web.doors.oauth import oauth_door
from tests.integration.oauth.conftest import MakeStage
from tests.oauth_server.stage import REDIRECT_URI, Stage


def make_app(callback: Callback) -> Application:
    """Make an application with this door alone."""
    return make_application([oauth_door(callback, "https://help/")], Settings.load(), "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Browser:
    """A browser at the callback of a stage."""

    client: TestClient
    stage: Stage


@pytest.fixture
def browser(stage: Stage) -> Iterator[Browser]:
    with TestClient(make_app(stage.callback), base_url=REDIRECT_URI.rsplit("/", 2)[0]) as client:
        yield Browser(client, stage)


def test_consent_ends_with_uncacheable_confirmation_page(browser: Browser) -> None:
    query = browser.stage.redirect(browser.stage.begin())

    page = browser.client.get("/oauth/callback", params=query)

    assert page.status_code == 200
    assert "slack is connected" in page.text
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert browser.stage.grants() == ["slack:user:U1"]


def test_refusal_is_page_with_its_code(browser: Browser) -> None:
    query = browser.stage.redirect(browser.stage.begin(), user="U2")

    page = browser.client.get("/oauth/callback", params=query)

    assert page.status_code == 403
    assert "subject_mismatch" in page.text
    assert query["code"] not in page.text and query["state"] not in page.text


def test_program_is_answered_in_json(browser: Browser) -> None:
    answer = browser.client.get("/oauth/callback", headers={"Accept": "application/json"})

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_state"


def test_prefetching_browser_does_not_use_up_link(browser: Browser) -> None:
    query = browser.stage.redirect(browser.stage.begin())

    assert browser.client.head("/oauth/callback", params=query).status_code == 405
    assert browser.client.post("/oauth/callback", params=query).status_code == 405

    assert browser.client.get("/oauth/callback", params=query).status_code == 200


def test_parameter_that_comes_twice_is_refused(browser: Browser) -> None:
    query = browser.stage.redirect(browser.stage.begin())

    twice = browser.client.get("/oauth/callback", params=[*query.items(), ("code", "another")])

    assert twice.status_code == 400
    assert browser.client.get("/oauth/callback", params=query).status_code == 200


def test_neither_code_nor_state_is_logged(browser: Browser) -> None:
    query = browser.stage.redirect(browser.stage.begin())

    with structlog.testing.capture_logs() as logs:
        browser.client.get("/oauth/callback", params=query)
        browser.client.get("/oauth/callback", params=query)

    assert [entry["event"] for entry in logs] == ["oauth.callback", "http.request"] * 2
    assert logs[2]["code"] == "session_already_used"
    assert query["code"] not in str(logs) and query["state"] not in str(logs)


def test_proxy_may_keep_or_strip_base_url_path(make_stage: MakeStage) -> None:
    redirect = {"callbackPath": "/oauth/callback", "baseUrl": "https://agents.example/swarm/"}
    with TestClient(make_app(make_stage(redirect=redirect).callback)) as client:
        answers = [client.get(path).status_code for path in ("/oauth/callback", "/swarm/oauth/callback", "/")]

    assert answers == [400, 400, 404]

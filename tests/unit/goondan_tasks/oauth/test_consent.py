"""Where and in which session somebody is asked."""

from typing import Any

import pytest

from broker_config.settings import Settings
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.flows import public_url_of
from goondan_tasks.oauth.records import DeviceCode
from tests.unit.goondan_tasks.oauth.records import device_session
from tests.unit.goondan_tasks.oauth.stores import RedisVault
from tests.unit.goondan_tasks.oauth.test_manager import FakeProvider, an_app, ask, manager_of


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:8765"),
        ({"http_host": "::1", "http_port": 80}, "http://[::1]:80"),
        ({"http_port": 0}, None),
        ({"http_host": "0.0.0.0"}, None),
        ({"http_host": "0.0.0.0", "public_url": "https://agents.example"}, "https://agents.example"),
    ],
)
def test_unless_it_is_said_browsers_come_to_this_machine_if_they_can(
    settings: dict[str, Any], url: str | None
) -> None:
    assert public_url_of(Settings(**settings)) == url


def test_an_app_that_now_takes_device_codes_asks_for_one_though_a_link_is_out() -> None:
    store = RedisVault().open()

    class Devices(FakeProvider):
        def device_authorization(self, app: OAuthApp, scopes: tuple[str, ...]) -> DeviceCode:
            device = device_session().device
            assert device is not None
            return device

    ask(manager_of(store))
    endpoints = {"tokenUrl": "https://slack.example/t", "deviceAuthorizationUrl": "https://slack.example/d"}
    app = an_app(flow="deviceCode", endpoints=endpoints)
    answers = [ask(manager_of(store, Devices(), app=app)) for _ in range(2)]

    assert [answer["deviceCode"]["userCode"] for answer in answers] == ["WDJB-MJHT"] * 2
    assert len({answer["authSessionId"] for answer in answers}) == 1

"""Which session somebody is asked in."""

from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.records import DeviceCode
from tests.unit.goondan_tasks.oauth.records import device_session
from tests.unit.goondan_tasks.oauth.stores import RedisVault
from tests.unit.goondan_tasks.oauth.test_manager import FakeProvider, an_app, ask, manager_of


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

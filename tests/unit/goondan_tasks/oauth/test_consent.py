"""Requests for consent, and the maintenance of their sessions."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.exceptions import ResponseError

from broker_config.settings import Settings
from goondan_tasks.contract.errors import AgentNotFoundError, ConfigError, OAuthStoreError
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.oauth import consent
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.consent import Callback, Maintenance, Schedule, public_url_of
from goondan_tasks.oauth.provider import Provider, TokenReply
from goondan_tasks.oauth.records import DeviceCode, OAuthError
from goondan_tasks.oauth.redis_store import RedisStore
from tests.unit.goondan_tasks.oauth.managers import FakeProvider, an_app, ask, manager_of
from tests.unit.goondan_tasks.oauth.records import APP, device_session, grant, session
from tests.unit.goondan_tasks.oauth.stores import RedisVault
from tests.waiting import wait_until


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
def test_public_url_defaults_to_this_machine(settings: dict[str, Any], url: str | None) -> None:
    assert public_url_of(Settings(**settings)) == url


def test_app_now_using_device_codes_ignores_link() -> None:
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


class SecretlessProvider(Provider):
    """A provider that this process cannot ask: it does not know the client's secret."""

    def device_token(self, app: OAuthApp, device: DeviceCode) -> TokenReply:
        raise OAuthError("no secret")


@dataclass
class House:
    """A store, an agent's mailbox, and the maintenance of both."""

    vault: RedisVault = field(default_factory=RedisVault)
    told: list[str] = field(default_factory=list)
    is_agent_known: bool = True

    def __post_init__(self) -> None:
        self.store = self.vault.open()
        self.maintenance = self.maintenance_of(self.store)

    def maintenance_of(self, store: RedisStore) -> Maintenance:
        """Return the maintenance of a store."""
        return Maintenance(
            Callback({APP: an_app()}, store, self.send, wall_clock, None, SecretlessProvider())
        )

    def send(self, agent: str, input: Any, **_: Any) -> None:
        """Take an event."""
        self.told.append(input.id)
        if not self.is_agent_known:
            raise AgentNotFoundError(agent)

    def complete(self, number: int, subject: str) -> str:
        """Complete a session whose agent was not told."""
        opened = self.store.open_session(session(number, now=wall_clock(), subject=subject))
        self.store.advance(opened.id, status="pending", to="exchanging")
        assert self.store.complete(opened, grant(subject=subject))
        return f"auth-granted-{opened.id}"


@pytest.fixture
def house() -> House:
    return House()


def test_app_without_its_secret_keeps_no_agent_waiting(house: House) -> None:
    waiting = device_session(now=wall_clock())
    assert waiting.device is not None
    house.store.open_session(
        waiting.model_copy(update={"device": waiting.device.model_copy(update={"interval": 0})})
    )
    event = house.complete(1, "U1")

    house.maintenance.check()
    house.maintenance.check()

    pending = house.store.session(waiting.id)
    assert (pending and pending.status, house.told) == ("pending", [event])


def test_unreadable_grant_keeps_no_other_agent_waiting(house: House) -> None:
    lost, event = house.complete(1, "U1"), house.complete(2, "U2")
    name = f"spec:oauth:grant:{grant(subject='U1').name}"
    whole = house.vault.texts()[name]
    house.vault.put(name, whole[:100])

    house.maintenance.check()
    assert house.told == [event]

    house.vault.put(name, whole)
    house.maintenance._retries[lost.removeprefix("auth-granted-")].due = 0
    house.maintenance.check()
    assert house.told == [event, lost]


def test_unknown_agent_is_retried_with_back_off(house: House) -> None:
    event = house.complete(1, "U1")
    house.is_agent_known = False

    for _ in range(5):
        house.maintenance.check()
    [schedule] = house.maintenance._retries.values()
    assert house.told == [event]

    for _ in range(20):
        schedule.due = 0
        house.maintenance.check()
    assert (len(house.told), schedule.interval) == (21, 60)

    schedule.due, house.is_agent_known = 0, True
    house.maintenance.check()
    house.maintenance.check()
    assert len(house.told) == 22


class Moody:
    """A store that fails before it can be looked at."""

    def __init__(self, store: RedisStore, errors: list[Exception]) -> None:
        self._store, self._errors = store, errors

    def sessions(self, unreadable: Callable[..., object]) -> Any:
        """Return the sessions, or fail."""
        if self._errors:
            raise self._errors.pop()
        return self._store.sessions(unreadable)

    def grant(self, oauth_app: str, subject: str) -> Any:
        """Return a grant."""
        return self._store.grant(oauth_app, subject)


def test_stopping_waits_for_one_provider_at_most(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = device_session(now=wall_clock())
    assert waiting.device is not None
    for number, subject in enumerate(("U1", "U2", "U3"), start=1):
        asked = {"device": waiting.device.model_copy(update={"interval": 0}), "subject": subject}
        house.store.open_session(waiting.model_copy(update={**asked, "id": f"as-{number:024x}"}))
    asks: list[str] = []

    def slow(_: Provider, app: OAuthApp, device: DeviceCode) -> TokenReply:
        asks.append(app.name)
        raise OAuthError("no answer")

    monkeypatch.setattr(SecretlessProvider, "device_token", slow)
    house.maintenance.check(lambda: bool(asks))

    assert asks == [APP]


def test_no_failure_of_store_ends_maintenance(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consent, "_TICK_SECONDS", 0.01)
    event = house.complete(1, "U1")
    failures = [OAuthStoreError("no space left"), ResponseError("READONLY"), ConfigError("no key")]
    moody: Any = Moody(house.store, failures)

    with house.maintenance_of(moody).running():
        wait_until(lambda: house.told == [event])

    assert failures == []


def test_back_off_doubles_interval_up_to_minute() -> None:
    schedule = Schedule(2)
    assert schedule.due > time.monotonic()
    waits = []
    for _ in range(7):
        schedule.back_off()
        waits.append(schedule.interval)

    assert waits == [4, 8, 16, 32, 60, 60, 60]
    slow = Schedule(300)
    slow.back_off()
    assert slow.interval == 300

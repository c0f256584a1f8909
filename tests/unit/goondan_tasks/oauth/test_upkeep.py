"""What is looked after in the background, and what must not end it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.exceptions import ResponseError

from goondan_tasks.clocks import wall_clock
from goondan_tasks.errors import AgentNotFoundError, ConfigError
from goondan_tasks.oauth import upkeep as upkeep_module
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.device_poll import DevicePoll
from goondan_tasks.oauth.granting import Granting
from goondan_tasks.oauth.oauth_errors import OAuthError, OAuthStoreError
from goondan_tasks.oauth.pace import Pace
from goondan_tasks.oauth.provider import Provider
from goondan_tasks.oauth.records import DeviceCode
from goondan_tasks.oauth.redis_store import RedisStore
from goondan_tasks.oauth.resume import Resumption
from goondan_tasks.oauth.token_reply import TokenReply
from goondan_tasks.oauth.upkeep import Upkeep
from tests.unit.goondan_tasks.oauth.records import APP, device_session, grant, session
from tests.unit.goondan_tasks.oauth.stores import RedisVault
from tests.unit.goondan_tasks.oauth.test_manager import an_app
from tests.waiting import wait_until


class SecretlessProvider(Provider):
    """A provider that this process cannot ask: it does not know the client's secret."""

    def device_token(self, app: OAuthApp, device: DeviceCode) -> TokenReply:
        raise OAuthError("no secret")


@dataclass
class House:
    """A store, an agent's mailbox, and who looks after both."""

    vault: RedisVault = field(default_factory=RedisVault)
    told: list[str] = field(default_factory=list)
    is_agent_known: bool = True

    def __post_init__(self) -> None:
        self.store = self.vault.open()
        self.upkeep = self.kept(self.store)

    def kept(self, store: RedisStore) -> Upkeep:
        """Return who looks after a store."""
        resumption = Resumption(self.send, wall_clock)
        granting = Granting(store, SecretlessProvider(), resumption, wall_clock)
        poll = DevicePoll({APP: an_app()}, store, SecretlessProvider(), granting)
        return Upkeep(store, poll, resumption)

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
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(upkeep_module, "_TICK_SECONDS", 0.01)
    return House()


def test_an_app_without_its_secret_keeps_no_agent_waiting(house: House) -> None:
    waiting = device_session(now=wall_clock())
    assert waiting.device is not None
    house.store.open_session(
        waiting.model_copy(update={"device": waiting.device.model_copy(update={"interval": 0})})
    )
    event = house.complete(1, "U1")

    house.upkeep.look()
    house.upkeep.look()

    pending = house.store.session(waiting.id)
    assert (pending and pending.status, house.told) == ("pending", [event])


def test_a_grant_that_cannot_be_read_keeps_no_other_agent_waiting(house: House) -> None:
    lost, event = house.complete(1, "U1"), house.complete(2, "U2")
    name = f"spec:oauth:grant:{grant(subject='U1').name}"
    whole = house.vault.texts()[name]
    house.vault.put(name, whole[:100])

    house.upkeep.look()
    assert house.told == [event]

    house.vault.put(name, whole)
    house.upkeep._paces[lost.removeprefix("auth-granted-")].due = 0
    house.upkeep.look()
    assert house.told == [event, lost]


def test_an_agent_that_nobody_knows_is_tried_less_and_less_often(house: House) -> None:
    event = house.complete(1, "U1")
    house.is_agent_known = False

    for _ in range(5):
        house.upkeep.look()
    [pace] = house.upkeep._paces.values()
    assert house.told == [event]

    for _ in range(20):
        pace.due = 0
        house.upkeep.look()
    assert (len(house.told), pace.interval) == (21, 60)

    pace.due, house.is_agent_known = 0, True
    house.upkeep.look()
    house.upkeep.look()
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


def test_who_stops_waits_for_one_provider_at_most(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
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
    house.upkeep.look(lambda: bool(asks))

    assert asks == [APP]


def test_no_failure_of_the_store_ends_the_upkeep(house: House) -> None:
    event = house.complete(1, "U1")
    failures = [OAuthStoreError("no space left"), ResponseError("READONLY"), ConfigError("no key")]
    moody: Any = Moody(house.store, failures)

    with house.kept(moody).running():
        wait_until(lambda: house.told == [event])

    assert failures == []


def test_what_is_tried_again_waits_ever_longer_but_no_longer_than_a_minute() -> None:
    pace = Pace(2)
    assert not pace.is_due
    waits = []
    for _ in range(7):
        pace.slow_down()
        waits.append(pace.interval)

    assert waits == [4, 8, 16, 32, 60, 60, 60]
    slow = Pace(300)
    slow.slow_down()
    assert slow.interval == 300

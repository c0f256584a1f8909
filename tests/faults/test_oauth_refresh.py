"""Refreshes at a real provider that rotates its refresh tokens, and takes one that comes twice for stolen."""

import hashlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_config.embedded import EmbeddedRedis
from goondan_tasks.contract.messages import iso_time, wall_clock
from goondan_tasks.oauth.records import OAuthGrant
from goondan_tasks.oauth.redis_store import LOCK_SECONDS
from goondan_tasks.oauth.store import OAuthStore
from tests.faults.conftest import Say
from tests.integration.oauth.asker import open_store
from tests.integration.oauth.askers import SUBJECT, Asker, Askers
from tests.oauth_server.stage import REDIRECT_URI, Stage
from tests.oidc_provider.running import OidcProvider, oidc_provider
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

_APP = "slack-bot"
_PROCESSES = 8


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    with oidc_provider(REDIRECT_URI) as running:
        yield running


@pytest.fixture(scope="module")
def idle() -> Iterator[list[Asker]]:
    idle: list[Asker] = []
    yield idle
    for asker in idle:
        asker.end()


@pytest.fixture(params=["file", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield str(tmp_path / "oauth")
        return
    with EmbeddedRedis() as redis:
        yield redis.url


@pytest.fixture
def store(place: str, provider: OidcProvider, tmp_path: Path) -> OAuthStore:
    """A store in which the user has consented, by way of the provider's own pages."""
    provider.behave()
    stage = Stage(provider, tmp_path / "stage", provider.spec)
    stage.receive(stage.redirect(stage.begin(stage.app.scopes)))
    grant = stage.store.grant(_APP, SUBJECT)
    assert grant is not None
    store = open_store(place)
    assert store.replace_grant(grant, generation=0)
    return store


@pytest.fixture
def askers(provider: OidcProvider, store: OAuthStore, place: str, idle: list[Asker]) -> Askers:
    return Askers(provider, place, idle, **provider.spec)


def stored(store: OAuthStore) -> OAuthGrant:
    grant = store.grant(_APP, SUBJECT)
    assert grant is not None
    return grant


def let_it_live(store: OAuthStore, seconds: float) -> None:
    """Have the stored token expire so soon, as the store knows it."""
    grant = stored(store)
    moment = wall_clock() + seconds * 1000
    token = grant.token.model_copy(update={"expires_at": iso_time(moment)})
    changed = grant.model_copy(update={"token": token, "updated_at": iso_time(moment - 3_600_000)})
    assert store.replace_grant(changed, generation=grant.generation)


def ready(store: OAuthStore) -> dict[str, str]:
    """Return the answer that holds the stored token."""
    token = stored(store).token.access_token.get_secret_value()
    return {"status": "ready", "token": hashlib.sha256(token.encode()).hexdigest()}


def require_kept(askers: Askers, store: OAuthStore) -> None:
    """Show that the provider still knows the grant: its refresh token works once more."""
    before = askers.server.seen()["counts"]
    let_it_live(store, -1)

    assert askers.ask(1) == [ready(store)]
    assert askers.server.seen()["counts"] == {**before, "refresh_token": before["refresh_token"] + 1}


@pytest.mark.requirement("oauth.refresh.single-flight")
@pytest.mark.parametrize(
    ("ways", "lives_seconds"),
    [
        ({"headerSeconds": 3}, 1),
        pytest.param({"bodySeconds": 3}, 1, marks=pytest.mark.long),
        # the token has expired: all of them wait for the answer
        pytest.param({"headerSeconds": 38}, -1, marks=pytest.mark.long),
        pytest.param({"bodySeconds": 38}, -1, marks=pytest.mark.long),
    ],
)
def test_eight_processes_refresh_once_however_slowly_provider_answers(
    provider: OidcProvider,
    askers: Askers,
    store: OAuthStore,
    ways: dict[str, Any],
    lives_seconds: float,
    say: Say,
) -> None:
    before = provider.seen()["counts"]
    provider.behave(**ways)
    let_it_live(store, lives_seconds)

    answers = askers.ask(_PROCESSES)

    seen = provider.seen()["counts"]
    say([f"{_PROCESSES} asked, {seen['refresh_token'] - before['refresh_token']} refreshes at the provider"])
    assert seen == {**before, "refresh_token": before["refresh_token"] + 1}
    assert answers == [ready(store)] * _PROCESSES
    provider.behave()
    require_kept(askers, store)


@pytest.mark.parametrize("lock_seconds", [0.5, pytest.param(LOCK_SECONDS, marks=pytest.mark.long)])
def test_process_frozen_beyond_lock_stores_provider_answer(
    provider: OidcProvider, askers: Askers, store: OAuthStore, lock_seconds: float, say: Say
) -> None:
    before = provider.seen()["counts"]
    provider.behave(isHeld=True)
    let_it_live(store, 200)
    old = ready(store)
    [frozen] = askers.go(1, lock_seconds=lock_seconds)
    wait_until(lambda: provider.seen()["counts"]["refresh_token"] > before["refresh_token"])
    frozen.process.send_signal(signal.SIGSTOP)
    provider.behave()  # the answer comes, and waits in the socket
    end = time.monotonic() + lock_seconds + 1

    wait_until(lambda: time.monotonic() > end)
    others = askers.ask(_PROCESSES, lock_seconds=lock_seconds)
    frozen.process.send_signal(signal.SIGCONT)
    [late] = askers.answers([frozen])

    seen = provider.seen()["counts"]
    say([f"frozen for over {lock_seconds:g} s, {seen['refresh_token'] - before['refresh_token']} refreshes"])
    assert seen == {**before, "refresh_token": before["refresh_token"] + 1}
    assert others == [old] * _PROCESSES
    assert late == ready(store) != old
    require_kept(askers, store)

"""Refreshing in many processes at once, against a server that rotates its refresh tokens."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.embedded import EmbeddedRedis
from goondan_tasks.oauth.records import OAuthGrant
from goondan_tasks.oauth.store import OAuthStore
from tests.integration.oauth.asker import open_store
from tests.integration.oauth.askers import SUBJECT, Asker, Askers
from tests.integration.oauth.conftest import MakeStage
from tests.oauth_server.running import OAuthServer
from tests.waiting import wait_until

#: how long one that is killed while it refreshes keeps the others from it
_DYING_SECONDS = 2.0


@pytest.fixture(params=["file", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield str(tmp_path / "oauth")
        return
    with EmbeddedRedis() as redis:
        yield redis.url


@pytest.fixture
def store(place: str) -> OAuthStore:
    return open_store(place)


@pytest.fixture(scope="module")
def idle() -> Iterator[list[Asker]]:
    idle: list[Asker] = []
    yield idle
    for asker in idle:
        asker.end()


@pytest.fixture
def askers(server: OAuthServer, place: str, idle: list[Asker]) -> Askers:
    return Askers(server, place, idle)


def consent(make_stage: MakeStage, store: OAuthStore, *, lives_seconds: float) -> None:
    """Let the user have consented, almost an hour ago, to a token that still lives so long."""
    stage = make_stage()
    stage.ahead_ms = (lives_seconds - 3600) * 1000
    stage.server.behave(token_lifetime=3600)
    stage.receive(stage.redirect(stage.begin(("chat:write", "channels:read"))))
    stage.server.behave(token_lifetime=3600, delay=0.3)
    standing, grant = store.grant("slack-bot", SUBJECT), stage.store.grant("slack-bot", SUBJECT)
    assert grant is not None
    if standing is None:
        assert store.replace_grant(grant, generation=0)


def stored(store: OAuthStore) -> OAuthGrant:
    grant = store.grant("slack-bot", SUBJECT)
    assert grant is not None
    return grant


@pytest.mark.requirement("oauth.refresh.single-flight")
def test_eight_processes_at_expiry_cause_one_refresh(
    make_stage: MakeStage, store: OAuthStore, askers: Askers
) -> None:
    consent(make_stage, store, lives_seconds=1)
    before = askers.refreshes()

    answers = askers.ask(8)

    assert askers.refreshes() - before == 1
    token = stored(store).token.access_token.get_secret_value()
    assert answers == [{"status": "ready", "token": hashlib.sha256(token.encode()).hexdigest()}] * 8
    assert stored(store).generation == 2


def test_worker_killed_between_refresh_and_store_requires_consent(
    make_stage: MakeStage, store: OAuthStore, askers: Askers
) -> None:
    consent(make_stage, store, lives_seconds=100)
    before = askers.refreshes()

    assert askers.ask(1, dies=True, in_doubt_seconds=_DYING_SECONDS) == []
    assert [answer["status"] for answer in askers.ask(3)] == ["authorization_required"] * 3
    assert [answer["status"] for answer in askers.ask(2)] == ["authorization_required"] * 2

    # the one that was lost, and the one that showed it: the server has rotated the refresh token
    assert askers.refreshes() - before == 2
    assert stored(store).revoked
    assert len(list(store.pending_sessions("slack-bot", SUBJECT))) == 1


def test_next_worker_refreshes_grant_after_kill_awaiting_provider(
    make_stage: MakeStage, store: OAuthStore, askers: Askers
) -> None:
    consent(make_stage, store, lives_seconds=100)
    askers.server.behave(is_out=True, delay=30)
    before = askers.refreshes()
    (victim,) = askers.start(1, in_doubt_seconds=_DYING_SECONDS)
    victim.tell("go")
    wait_until(lambda: askers.refreshes() > before)
    victim.end()
    askers.server.behave(token_lifetime=3600)

    assert [answer["status"] for answer in askers.ask(2)] == ["ready", "ready"]
    assert stored(store).generation == 2

"""Refreshing in many processes at once, against a server that rotates its refresh tokens."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker_config.embedded import EmbeddedRedis
from goondan_tasks.oauth.records import OAuthGrant
from goondan_tasks.oauth.store import OAuthStore
from tests.integration.oauth.asker import open_store
from tests.integration.oauth.conftest import MakeStage
from tests.oauth_server.running import OAuthServer
from tests.waiting import wait_until

_ROOT = Path(__file__).parents[3]
_SUBJECT = "slack:user:U1"
_PATIENCE_SECONDS = 60


class Askers:
    """Processes that ask for one subject's token."""

    def __init__(self, server: OAuthServer, place: str) -> None:
        self.server, self.place = server, place
        self.processes = ExitStack()

    def start(self, count: int, *, dies: bool = False) -> list["subprocess.Popen[str]"]:
        asked = {"server": self.server.url, "store": self.place, "subject": _SUBJECT, "dies": dies}
        command = [sys.executable, "-m", "tests.integration.oauth.asker", json.dumps(asked)]
        started = [
            subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        for process in started:
            self.processes.enter_context(process)
            self.processes.callback(process.kill)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        return started

    def ask(self, count: int, *, dies: bool = False) -> list[dict[str, Any]]:
        """Have so many ask at once; who dies answers nothing."""
        started = self.start(count, dies=dies)
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        texts = [process.communicate(timeout=_PATIENCE_SECONDS)[0] for process in started]
        return [json.loads(text) for text in texts if text]

    def refreshes(self) -> int:
        """Return how often the server was asked for a refresh."""
        return int(self.server.seen()["counts"].get("refresh_token", 0))


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


@pytest.fixture
def askers(server: OAuthServer, place: str) -> Iterator[Askers]:
    askers = Askers(server, place)
    with askers.processes:
        yield askers


def consent(make_stage: MakeStage, store: OAuthStore, *, lives_seconds: float) -> None:
    """Let the user consent to a token that lives so long; later ones live an hour."""
    stage = make_stage()
    stage.server.behave(token_lifetime=lives_seconds)
    stage.receive(stage.redirect(stage.begin(("chat:write", "channels:read"))))
    stage.server.behave(token_lifetime=3600, delay=0.3)
    standing, grant = store.grant("slack-bot", _SUBJECT), stage.store.grant("slack-bot", _SUBJECT)
    assert grant is not None
    if standing is None:
        assert store.replace_grant(grant, generation=0)


def stored(store: OAuthStore) -> OAuthGrant:
    grant = store.grant("slack-bot", _SUBJECT)
    assert grant is not None
    return grant


@pytest.mark.requirement("oauth.refresh.single-flight")
def test_eight_processes_that_ask_at_the_moment_of_expiry_cause_one_refresh(
    make_stage: MakeStage, store: OAuthStore, askers: Askers
) -> None:
    consent(make_stage, store, lives_seconds=1)
    before = askers.refreshes()

    answers = askers.ask(8)

    assert askers.refreshes() - before == 1
    token = stored(store).token.access_token.get_secret_value()
    assert answers == [{"status": "ready", "token": hashlib.sha256(token.encode()).hexdigest()}] * 8
    assert stored(store).generation == 2


def test_a_worker_killed_between_refresh_and_store_leaves_a_clear_request_for_consent(
    make_stage: MakeStage, store: OAuthStore, askers: Askers
) -> None:
    consent(make_stage, store, lives_seconds=100)
    before = askers.refreshes()

    assert askers.ask(1, dies=True) == []
    assert [answer["status"] for answer in askers.ask(3)] == ["authorization_required"] * 3
    assert [answer["status"] for answer in askers.ask(2)] == ["authorization_required"] * 2

    # the one that was lost, and the one that showed it: the server has rotated the refresh token
    assert askers.refreshes() - before == 2
    assert stored(store).revoked
    assert len(list(store.pending_sessions("slack-bot", _SUBJECT))) == 1


def test_a_worker_killed_while_it_waits_for_the_provider_leaves_a_grant_that_the_next_one_refreshes(
    make_stage: MakeStage, store: OAuthStore, askers: Askers
) -> None:
    consent(make_stage, store, lives_seconds=100)
    askers.server.behave(is_out=True, delay=30)
    before = askers.refreshes()
    (victim,) = askers.start(1)
    assert victim.stdin is not None
    victim.stdin.write("go\n")
    victim.stdin.flush()
    wait_until(lambda: askers.refreshes() > before)
    victim.kill()
    victim.wait()
    askers.server.behave(token_lifetime=3600)

    assert [answer["status"] for answer in askers.ask(2)] == ["ready", "ready"]
    assert stored(store).generation == 2

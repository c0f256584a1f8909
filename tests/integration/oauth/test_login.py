"""``goondan oauth login``: a person at a terminal, and a browser."""

import base64
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from broker_config.embedded import EmbeddedRedis
from tests.integration.goondan_process import environment, goondan, goondan_program, start
from tests.oauth_server.apps import CALLBACK, app_document
from tests.oauth_server.running import OAuthServer, oauth_server
from tests.oauth_server.stage import KEY

OTHER_KEY = base64.b64encode(bytes([2]) * 32).decode()

LOGIN = ("oauth", "login", "slack-bot", "--subject", "slack:user:U1", "--no-browser", "--json")


@contextmanager
def _terminal(place: Path, **spec: Any) -> Iterator[tuple[OAuthServer, dict[str, str]]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with oauth_server(f"http://127.0.0.1:{port}{CALLBACK}") as server, EmbeddedRedis() as redis:
        agent = {"apiVersion": "goondan.ai/v1", "kind": "Agent", "metadata": {"name": "herald"}, "spec": {}}
        documents = [agent, app_document(server.url, **spec)]
        bundle = place / "goondan.yaml"
        bundle.write_text("---\n".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
        yield (
            server,
            environment(
                REDIS_URL=redis.url, BUNDLE=place, HTTP_PORT=port, OAUTH_KEY=KEY, STATE_ROOT=place / "state"
            ),
        )


def _link(login: "subprocess.Popen[str]") -> str:
    """Return the link that was printed."""
    assert login.stderr is not None
    for line in login.stderr:
        if line.startswith("http"):
            return line.strip()
    raise AssertionError("no link was printed")


def test_login_waits_for_browser_and_reports_grant(tmp_path: Path) -> None:
    with _terminal(tmp_path) as (server, env), start(*LOGIN, "--scope", "chat:write", env=env) as login:
        page = httpx2.get(server.decide(_link(login), user="U1"))
        stdout, _ = login.communicate(timeout=30)

        assert page.status_code == 200
        assert login.returncode == 0
        assert json.loads(stdout)["scopesGranted"] == ["chat:write"]
        assert [grant["subject"] for grant in goondan("oauth", "grants", "--json", env=env).document] == [
            "slack:user:U1"
        ]


def test_later_login_listens_where_open_link_leads(tmp_path: Path) -> None:
    with _terminal(tmp_path) as (server, env):
        with start(*LOGIN, env=env) as first:
            link = _link(first)
            first.terminate()
        env["GOONDAN_HTTP_PORT"] = "1"
        with start(*LOGIN, env=env) as login:
            again = _link(login)
            page = httpx2.get(server.decide(again, user="U1"))
            login.communicate(timeout=30)

    assert (again, page.status_code, login.returncode) == (link, 200, 0)


def test_login_reports_other_program_at_link_target(tmp_path: Path) -> None:
    with _terminal(tmp_path) as (_, env), socket.create_server(("127.0.0.1", 0)) as other:
        env["GOONDAN_HTTP_PORT"] = str(other.getsockname()[1])
        with start(*LOGIN, env=env) as login:
            assert login.stderr is not None
            said = login.stderr.readline()
            login.terminate()

    callback = f"http://127.0.0.1:{env['GOONDAN_HTTP_PORT']}{CALLBACK}"
    assert f"leads back to {callback}, where this command cannot listen" in said


def test_denied_login_ends_with_provider_code(tmp_path: Path) -> None:
    with _terminal(tmp_path) as (server, env), start(*LOGIN, env=env) as login:
        httpx2.get(server.decide(_link(login), user="U1", allow=False))
        stdout, _ = login.communicate(timeout=30)

    assert login.returncode == 1
    assert json.loads(stdout)["error"]["code"] == "access_denied"


def test_login_by_device_waits_for_typed_code(tmp_path: Path) -> None:
    with _terminal(tmp_path, flow="deviceCode") as (server, env), start(*LOGIN, env=env) as login:
        server.type_code(_link(login).partition("user_code=")[2], user="U1")
        stdout, _ = login.communicate(timeout=30)

    assert login.returncode == 0
    assert json.loads(stdout)["status"] == "granted"


def test_listed_session_of_another_key_blocks_no_login(tmp_path: Path) -> None:
    with _terminal(tmp_path) as (server, env):
        with start(*LOGIN, env=env) as login:
            _link(login)
            login.terminate()
        env["GOONDAN_OAUTH_KEY"] = OTHER_KEY
        (lost,) = goondan("oauth", "sessions", "--json", env=env).document
        with start(*LOGIN, env=env) as login:
            httpx2.get(server.decide(_link(login), user="U1"))
            login.communicate(timeout=30)
        stands = goondan("oauth", "sessions", env=env)
        goondan("oauth", "revoke", lost["id"], env=env)
        left = goondan("oauth", "sessions", "--json", env=env).document

    assert (lost["status"], lost["subject"], login.returncode) == ("unreadable", "slack:user:U1", 0)
    assert f"goondan oauth revoke {lost['id']}" in stands.stderr
    assert [one["status"] for one in left] == ["completed"]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A terminal where nobody gets as far as to the server."""
    with _terminal(tmp_path_factory.mktemp("terminal")) as (_, env):
        yield env


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (("oauth", "login", "slak-bot", "--subject", "U1"), 3, "oauthAppNotFound"),
        (("oauth", "login", "slack-bot", "--subject", ""), 1, "subjectUnavailable"),
        (("oauth", "login", "slack-bot", "--subject", "U1", "--scope", "admin"), 1, "scopeNotAllowed"),
        (("oauth", "login", "slack-bot", "--subject", "U1", "--agent", "herlad"), 3, "E_AGENT_NOT_FOUND"),
        (("oauth", "login", "slack-bot"), 2, "E_USAGE"),
        (("oauth", "login"), 2, "E_USAGE"),
    ],
)
def test_login_that_cannot_be_is_refused_at_once(
    env: dict[str, str], arguments: tuple[str, ...], exit_code: int, code: str
) -> None:
    done = goondan_program(*arguments, "--json", env=env)

    assert (done.exit_code, done.document["error"]["code"]) == (exit_code, code)

"""goondan tokens: add, list, revoke; and what doctor says of the settings for HTTP."""

from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.cli import tokens
from goondan_tasks.cli.http_checks import http_checks, stored_token_checks
from goondan_tasks.fleet.http_tokens import TokenStore, digest_of
from tests.unit.goondan_tasks.cli.invoke import goondan


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenStore]:
    server = fakeredis.FakeServer()
    monkeypatch.setattr(tokens, "require_broker", lambda _: None)
    monkeypatch.setattr(tokens, "connect", lambda url, name: fakeredis.FakeRedis(server=server))
    with fakeredis.FakeRedis(server=server) as redis:
        yield TokenStore(redis, Keys("goondan"))


def test_token_is_printed_once_and_alone(store: TokenStore) -> None:
    done = goondan("tokens", "add", "ci", "--scope", "call:coder", "--scope", "read", "--user", "U1")

    [kept] = store.tokens()
    assert digest_of(done.stdout.strip().encode()) == kept.digest
    assert (kept.scopes, kept.user, kept.expires_at) == (("call:coder", "read"), "U1", None)
    assert "only time" in done.stderr
    assert done.stdout.strip() not in goondan("tokens", "list", "--json").stdout


def test_json_has_token_once_and_no_hash(store: TokenStore) -> None:
    added = goondan("tokens", "add", "ci", "--scope", "admin", "--expires", "90d", "--json").document
    store.note_use("ci", 4_102_444_800_000)
    [listed] = goondan("tokens", "--json").document

    assert digest_of(added.pop("token").encode()) == store.tokens()[0].digest
    assert set(added) == {"name", "scopes", "createdAt", "expiresAt"}
    assert listed == {**added, "lastUsedAt": "2100-01-01T00:00:00.000Z"}


def test_tokens_are_listed_with_expiry(store: TokenStore) -> None:
    assert "goondan tokens add" in goondan("tokens").stderr
    goondan("tokens", "add", "ci", "--scope", "read", "--expires", "2100-01-01")
    store.add(store.tokens()[0].model_copy(update={"name": "old", "expires_at": "2001-01-01T00:00:00Z"}))

    done = goondan("tokens", "list")

    assert "2100-01-01" in done.stdout
    assert "expired" in done.stdout


def test_revoked_token_is_gone(store: TokenStore) -> None:
    goondan("tokens", "add", "ci", "--scope", "read")

    missed = goondan("tokens", "revoke", "cii", "--json")
    done = goondan("tokens", "revoke", "ci")

    assert missed.document["error"]["suggestion"] == "Did you mean ci?"
    assert (done.stdout, store.tokens()) == ("ci is revoked\n", [])


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("ci",), "--scope"),
        (("ci", "--scope", "raed"), "Did you mean read"),
        (("", "--scope", "read"), "must have 1 to 100"),
        (("ci\n", "--scope", "read"), "must have 1 to 100"),
        (("ci", "--scope", "read", "--user", " "), "printable"),
        (("ci", "--scope", "read", "--expires", "2001-01-01"), "not a time to come"),
        (("ci", "--scope", "read", "--expires", "0"), "not a time to come"),
        (
            ("ci", "--scope", "read", "--expires", "1e300"),
            "is neither a time from now, such as 12h or 90d, nor",
        ),
        (
            ("ci", "--scope", "read", "--expires", "soon"),
            "is neither a time from now, such as 12h or 90d, nor",
        ),
        (("ci", "--scope", "call"), "call:*, call:AGENT. Did you mean call:*? "),
    ],
)
def test_bad_words_are_refused_and_add_nothing(
    arguments: tuple[str, ...], fault: str, store: TokenStore
) -> None:
    done = goondan("tokens", "add", *arguments)

    assert (done.exit_code, store.tokens()) == (2, [])
    assert fault in " ".join(done.stderr.replace("│", " ").split()) + " "


def test_name_that_is_taken_is_refused(store: TokenStore) -> None:
    goondan("tokens", "add", "ci", "--scope", "read")
    [kept] = store.tokens()

    done = goondan("tokens", "add", "ci", "--scope", "admin", "--json")

    assert done.document["error"]["suggestion"].endswith("`goondan tokens revoke ci` first.")
    assert store.tokens() == [kept]


@pytest.mark.parametrize(
    ("settings", "levels"),
    [
        ({}, []),
        ({"http_token": "t" * 32}, ["ok"]),
        ({"http_token": "short"}, ["warning"]),
        ({"http_tokens": "/no/such/file"}, ["problem"]),
        ({"http_user_header": "X-User"}, ["warning"]),
        ({"http_trusted_proxies": "10.0.0.1"}, ["warning"]),
        ({"http_user_header": "X-User", "http_trusted_proxies": "10.0.0.1"}, ["ok"]),
        ({"http_user_header": "X-User", "http_trusted_proxies": "::/0"}, ["problem"]),
    ],
)
def test_doctor_checks_settings_for_http(settings: dict[str, Any], levels: list[str]) -> None:
    assert [check.level for check in http_checks(Settings.load(**settings), 0)] == levels


def test_doctor_names_expired_tokens(store: TokenStore) -> None:
    settings = Settings.load(
        http_tokens='{"old": {"token": "o", "scopes": ["read"], "expiresAt": "1970-01-01T00:00:05Z"}}'
    )
    assert stored_token_checks(store, 0) == []
    goondan("tokens", "add", "ci", "--scope", "read", "--expires", "1d")
    goondan("tokens", "add", "for-ever", "--scope", "read")

    assert [check.level for check in stored_token_checks(store, 0)] == ["ok"]
    [stored] = stored_token_checks(store, 10**14)
    [own] = http_checks(settings, 10**14)
    assert (stored.level, stored.message) == ("warning", "expired, so they open nothing: ci")
    assert (own.level, own.message) == ("warning", "expired, so they open nothing: old")


def test_doctor_says_that_another_program_overwrote_tokens(store: TokenStore) -> None:
    store._redis.set("goondan:http-tokens", "x")

    [check] = stored_token_checks(store, 0)

    assert check.level == "problem"
    assert "goondan:http-tokens" in check.message

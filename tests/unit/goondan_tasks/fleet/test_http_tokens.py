"""Tokens for HTTP, in Redis and in the environment."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.contract.errors import ConfigError, RecordDamagedError
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.fleet.http_tokens import (
    PREFIX,
    TTL_SECONDS,
    HttpToken,
    TokenStore,
    digest_of,
    environment_tokens,
    new_token,
    require_name,
    require_scope,
    token_with,
)

KEYS = Keys("goondan")


@pytest.fixture
def redis() -> Iterator[Any]:
    with fakeredis.FakeRedis() as redis:
        yield redis


def token(name: str, **fields: Any) -> HttpToken:
    return HttpToken(
        name=name, digest=digest_of(name.encode()), scopes=("read",), created_at=iso_time(1_000), **fields
    )


def test_256_bit_random_token_is_kept_only_hashed(redis: Any) -> None:
    text = new_token()
    TokenStore(redis, KEYS).add(HttpToken(name="ci", digest=digest_of(text.encode()), scopes=("read",)))

    assert text != new_token()
    assert len(text) == len(PREFIX) + 43
    assert text.encode() not in redis.hget(KEYS.http_tokens, "ci")
    assert 0 < redis.ttl(KEYS.http_tokens) <= TTL_SECONDS


def test_name_that_is_taken_is_not_replaced(redis: Any) -> None:
    store = TokenStore(redis, KEYS)

    assert (store.add(token("ci")), store.add(token("ci", user="U2"))) == (True, False)
    assert store.tokens() == [token("ci")]


def test_late_use_does_not_restore_revoked_token(redis: Any) -> None:
    store = TokenStore(redis, KEYS)
    store.add(token("ci"))

    assert (store.revoke("ci"), store.revoke("ci")) == (True, False)
    store.note_use("ci", 999)
    assert store.tokens() == []
    store.add(token("ci"))
    assert [one.last_used for one in store.listed()] == [0]
    store.note_use("ci", 5_000)
    assert [one.last_used for one in store.listed()] == [5_000]


def test_damaged_token_opens_nothing_and_others_stay(redis: Any) -> None:
    store = TokenStore(redis, KEYS)
    store.add(token("ci"))
    redis.hset(KEYS.http_tokens, "bad", "{}")
    redis.hset(KEYS.http_tokens_used, "ci", "soon")

    assert [one.name for one in store.tokens()] == ["ci"]
    assert [one.last_used for one in store.listed()] == [0]


def test_key_of_another_program_is_named(redis: Any) -> None:
    redis.set(KEYS.http_tokens, "x")

    with pytest.raises(RecordDamagedError, match="http-tokens"):
        TokenStore(redis, KEYS).tokens()


def test_token_is_found_by_its_digest() -> None:
    tokens = [token("a"), token("b")]

    assert token_with(digest_of(b"b"), tokens) is tokens[1]
    assert token_with(digest_of(b"c"), tokens) is None


@pytest.mark.parametrize("scope", ["admin", "read", "approve", "call:*", "call:coder", "call:*".upper()])
def test_scopes_are_checked(scope: str) -> None:
    if scope == "CALL:*":
        with pytest.raises(ValueError, match="Did you mean"):
            require_scope(scope)
    else:
        assert require_scope(scope) == scope


@pytest.mark.parametrize(
    "scope", ["", "call:", "call: ", "call:co*", "write", "*", "call:coder,read", "call:coder ", "call:Coder"]
)
def test_invalid_scope_is_refused(scope: str) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        require_scope(scope)


@pytest.mark.parametrize("name", ["GOONDAN_HTTP_TOKEN", "local", "anyone", "nobody"])
def test_name_of_caller_without_such_token_names_none(name: str) -> None:
    with pytest.raises(ValueError, match="must not be the name"):
        require_name(name)


def test_environment_has_admin_token_and_scoped_tokens(tmp_path: Path) -> None:
    several = {
        "ci": {"token": "t2", "scopes": ["call:coder", "read"], "user": "U1", "expiresAt": "2030-01-01"}
    }
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps(several))

    for given in (json.dumps(several), str(file)):
        one, other = environment_tokens(Settings.load(http_token="t1", http_tokens=given))
        assert (one.name, one.scopes, one.digest) == ("GOONDAN_HTTP_TOKEN", ("admin",), digest_of(b"t1"))
        assert (other.name, other.user, other.digest) == ("ci", "U1", digest_of(b"t2"))
        assert other.scopes == ("call:coder", "read")
        assert other.has_expired(1_893_456_000_000)
        assert not other.has_expired(1_893_455_999_999)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("{", "neither JSON"),
        ("s3cret", "neither a JSON object nor a file"),
        ("~nobody-of-that-name/s3cret", "neither a JSON object nor a file"),
        ('{"ci": "s3cret"}', "ci: "),
        ('{"ci": {"token": "s3cret"}}', "scopes"),
        ('{"ci": {"token": "", "scopes": ["read"]}}', "token"),
        ('{"ci": {"token": "s3cret", "scopes": []}}', "scopes"),
        ('{"ci": {"token": "s3cret", "scopes": ["raed"]}}', "Did you mean read"),
        ('{"ci": {"token": "s3cret", "scopes": ["read"], "expiresAt": "soon"}}', "expiresAt"),
        ('{"ci": {"token": "s3cret", "scopes": ["read"], "expires": 1}}', "expires"),
        ('{"ci": {"token": "s3cret", "scopes": ["read"], "user": ""}}', "user"),
        ('{" ": {"token": "s3cret", "scopes": ["read"]}}', "the name of a token"),
        (
            '{"a": {"token": "s3cret", "scopes": ["read"]}, "b": {"token": "s3cret", "scopes": ["admin"]}}',
            "a and b are the same",
        ),
    ],
)
def test_bad_tokens_of_environment_are_named_without_token(given: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as refused:
        environment_tokens(Settings.load(http_tokens=given))
    assert "s3cret" not in refused.value.message

"""Redis clients of URLs with options."""

import pytest
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.connections import connect, is_script_fault, reason_unreachable, remedy_of
from broker_config.settings import SettingsError


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/0?foo=1",
        "redis://h/0?socket_timeout=soon",
        "redis://h/0?protocol=9",
        "rediss://h/0?ssl_cert_reqs=perhaps",
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(SettingsError, match=r"GOONDAN_REDIS_URL: .* cannot be used"):
        connect(url)


def test_script_position_is_cut_from_the_reason() -> None:
    error = ResponseError(
        "Error running script (call to f_83): @user_script:43: @user_script: 43: -READONLY You can't write."
    )
    reason = reason_unreachable("redis://:hush@host/0", error)
    assert reason == "Redis at redis://:***@host/0 answers with an error: READONLY You can't write."


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("You can't write against a read only replica.", "master"),
        ("command not allowed when used memory > 'maxmemory'.", "Raise maxmemory"),
        ("BUSY Redis is busy running a script.", "SCRIPT KILL"),
        ("max number of clients reached", "maxclients"),
    ],
)
def test_a_known_refusal_has_its_remedy(said: str, remedy: str) -> None:
    assert remedy in str(remedy_of(ResponseError(said)))


def test_an_unknown_refusal_has_no_remedy_of_its_own() -> None:
    assert remedy_of(ResponseError("ERR unknown command")) is None


AWAY = RedisConnectionError("Error 111 connecting to 127.0.0.1:7000. Connection refused.")
OF_DEV = "goondan dev"


@pytest.mark.parametrize(
    "said",
    [
        "invalid username-password pair or user is disabled.",
        "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH …",
        "Authentication required.",
    ],
)
def test_refused_credentials_are_to_be_corrected_and_no_redis_to_be_started(said: str) -> None:
    told = remedy_of(AuthenticationError(said), "redis://:x@redis.internal/0")

    assert told == "Correct user and password in GOONDAN_REDIS_URL: redis://user:password@host:6379/0."


@pytest.mark.parametrize(
    ("url", "start", "is_of_dev"),
    [
        ("redis://:x@127.0.0.1:7000/0", "Start the Redis that GOONDAN_REDIS_URL or --redis-url names", True),
        ("redis://redis.internal/0", "Start the Redis that GOONDAN_REDIS_URL or --redis-url names", False),
        ("unix:///run/redis.sock", "Start the Redis that GOONDAN_REDIS_URL or --redis-url names", False),
    ],
)
def test_a_url_that_leads_nowhere_is_told_from_none(url: str, start: str, is_of_dev: bool) -> None:
    told = str(remedy_of(AWAY, url))

    assert told.startswith(start)
    assert (OF_DEV in told) is is_of_dev


def test_where_another_dev_has_taken_the_port_its_line_is_to_be_pasted() -> None:
    told = str(remedy_of(AuthenticationError("WRONGPASS"), "redis://:old@127.0.0.1:7000/0"))

    assert told.startswith("Correct user and password")
    assert OF_DEV in told


def test_the_default_url_that_leads_nowhere_has_no_remedy_of_its_own() -> None:
    assert remedy_of(AWAY, "redis://127.0.0.1:6379/0") is None


@pytest.mark.parametrize(
    "said",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value script: 2, on @user_script:1.",
        "Error running script (call to f_2): @user_script:3: user_script:3: attempt to index a nil value",
        "user_script:3: attempt to index a nil value script: 2, on @user_script:3.",
    ],
)
def test_a_script_that_met_with_what_it_cannot_use_would_do_so_again(said: str) -> None:
    assert is_script_fault(ResponseError(said))


@pytest.mark.parametrize(
    "error",
    [
        ResponseError("OOM command not allowed when used memory > 'maxmemory'. script: 2, @user_script:5."),
        ResponseError("You can't write against a read only replica. script: 2, on @user_script:5."),
        ResponseError("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
        ResponseError("an error of a proxy"),
        RedisConnectionError("user_script"),
    ],
)
def test_an_error_of_the_server_is_no_fault_of_a_script(error: RedisError) -> None:
    assert not is_script_fault(error)

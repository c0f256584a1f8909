"""Redis clients of URLs with options."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

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

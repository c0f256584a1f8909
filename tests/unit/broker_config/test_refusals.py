"""What the errors of Redis mean, and what is to be done about them."""

import pytest
from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.refusals import (
    RefusalParser,
    RefusedError,
    code_of,
    is_demotion,
    is_script_fault,
    reason_unreachable,
    remedy_of,
)

READONLY = "READONLY You can't write against a read only replica."


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (READONLY, "READONLY"),
        (
            f"ERR Error running script (call to f_83): @user_script:43: @user_script: 43: -{READONLY}",
            "READONLY",
        ),
        (f"EXECABORT Transaction discarded because of: {READONLY}", "READONLY"),
        ("OOM command not allowed when used memory > 'maxmemory'. script: 2, on @user_script:5.", "OOM"),
        ("MISCONF Redis is configured to save RDB snapshots, but it is unable to", "MISCONF"),
        ("LOADING Redis is loading the dataset in memory", "LOADING"),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", "BUSY"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "TRYAGAIN"),
        ("CLUSTERDOWN The cluster is down", "CLUSTERDOWN"),
        ("MASTERDOWN Link with MASTER is down", "MASTERDOWN"),
        ("NOREPLICAS Not enough good replicas to write.", "NOREPLICAS"),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", "UNBLOCKED"),
    ],
)
def test_refusal_that_passes_is_outage_wherever_it_occurred(answer: str, code: str) -> None:
    error = RefusalParser.parse_error(answer)

    assert isinstance(error, RefusedError)
    assert isinstance(error, RedisConnectionError)
    assert code_of(error) == code
    assert is_demotion(error) is (code in {"READONLY", "MASTERDOWN", "UNBLOCKED"})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("WRONGTYPE Operation against a key holding the wrong kind of value", ResponseError),
        ("BUSYGROUP Consumer Group name already exists", ResponseError),
        ("NOSCRIPT No matching script.", NoScriptError),
        ("ERR user_script:3: OOM said a handler script: 2, on @user_script:3.", ResponseError),
        ("MOVED 3999 127.0.0.1:6381", ResponseError),
        ("WRONGPASS invalid username-password pair or user is disabled.", AuthenticationError),
    ],
)
def test_recurring_error_is_no_temporary_refusal(answer: str, kind: type[RedisError]) -> None:
    error = RefusalParser.parse_error(answer)

    assert isinstance(error, kind)
    assert not isinstance(error, RefusedError)


def test_cluster_is_named_and_remedy_is_another_server() -> None:
    error = RefusalParser.parse_error("MOVED 3999 127.0.0.1:6381")

    assert "MOVED 3999" in reason_unreachable("redis://h/0", error)
    assert "not part of a Cluster" in str(remedy_of(error))


def test_script_position_is_cut_from_reason() -> None:
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
def test_known_refusal_has_its_remedy(said: str, remedy: str) -> None:
    assert remedy in str(remedy_of(ResponseError(said)))


def test_unknown_refusal_has_no_remedy_of_its_own() -> None:
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
def test_refused_credentials_suggest_correction_not_starting_redis(said: str) -> None:
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
def test_unreachable_configured_url_has_its_own_remedy(url: str, start: str, is_of_dev: bool) -> None:
    told = str(remedy_of(AWAY, url))

    assert told.startswith(start)
    assert (OF_DEV in told) is is_of_dev


def test_port_taken_by_another_dev_suggests_its_line() -> None:
    told = str(remedy_of(AuthenticationError("WRONGPASS"), "redis://:old@127.0.0.1:7000/0"))

    assert told.startswith("Correct user and password")
    assert OF_DEV in told


def test_unreachable_default_url_has_no_own_remedy() -> None:
    assert remedy_of(AWAY, "redis://127.0.0.1:6379/0") is None


@pytest.mark.parametrize(
    "said",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value script: 2, on @user_script:1.",
        "Error running script (call to f_2): @user_script:3: user_script:3: attempt to index a nil value",
        "user_script:3: attempt to index a nil value script: 2, on @user_script:3.",
        "user_script:3: no field Sentinel script: 2, on @user_script:3.",
    ],
)
def test_script_error_on_unusable_data_would_recur(said: str) -> None:
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
def test_error_of_server_is_no_fault_of_script(error: RedisError) -> None:
    assert not is_script_fault(error)

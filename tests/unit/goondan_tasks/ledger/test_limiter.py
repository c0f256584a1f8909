"""What a caller reads about a limit."""

from collections.abc import Iterator
from dataclasses import replace

import fakeredis
import pytest
from redis import Redis

from broker_config.settings import Settings
from goondan_tasks.contract.calls import Run, new_call
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import Limiter, LimitState, conflict, shared
from goondan_tasks.ledger.record import Claim, Verdict

STATE = LimitState(now=100_000, waiting=0, most=2, period=0, took=0, oldest=None, mark=None)
CALL = new_call("coder", "notes__find", {}, {"tool_call_id": "call_2"})


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


def a_claim(about: str) -> Claim:
    return Claim(Run("id-2", CALL, "w1", 1, 0, lambda: 5.0), "token", Verdict.LIMITED, about=about)


@pytest.mark.parametrize(
    ("state", "free_in"),
    [
        (replace(STATE, took=4_000, waiting=3), 6_000),
        (replace(STATE, took=4_000, waiting=0), 1_000),
        (replace(STATE, oldest=90_000, waiting=2), 10_000),
        (replace(STATE, period=60_000, mark=80_000), 40_000),
        (replace(STATE, period=60_000, mark=80_000, waiting=4), 160_000),
        (replace(STATE, period=60_000, mark=10_000), 0),
        (replace(STATE, period=60_000), 0),
    ],
)
def test_retry_time_is_exact_for_rates_else_estimated(state: LimitState, free_in: int) -> None:
    assert state.free_at - state.now == free_in


@pytest.mark.parametrize(
    ("limit", "period", "reason"),
    [
        ("concurrency:notes", 0, "notes is limited to 3 at a time"),
        ("rate:notes__find", 1_000, "notes__find is limited to 3/s"),
        ("serial:notes@a%20b", 0, "Calls of notes run one at a time in instance 'a b'"),
        ("key:0123", 0, "Another call with the same idempotencyKey is under way"),
    ],
)
def test_error_names_limit_and_when_to_retry(redis: Redis, limit: str, period: int, reason: str) -> None:
    redis.hset(f"goondan:limit:{limit}", mapping={"most": 3, "period": period, "took": 2_000})
    error = Limiter(Ledger(redis, Settings())).too_late(a_claim(limit))
    assert error.code == "E_LIMIT"
    assert error.message.startswith(
        f"{reason}, and the call's deadline came first: it was not run. Retry in "
    )
    assert error.message.endswith("Z.")


def test_error_names_no_unreadable_limit(redis: Redis) -> None:
    redis.hset("goondan:call:id-2", "waiting", b"\xff\xfe\x00")
    error = Limiter(Ledger(redis, Settings())).too_late(a_claim(""))
    assert error.code == "E_LIMIT"
    error.message.encode()


def test_shared_result_takes_only_others_outcome() -> None:
    other = Run("id-1", CALL.model_copy(update={"tool_call_id": "call_1"}), "w2", 1, 0, lambda: 9.0)
    result = shared(a_claim("id-1"), other.ok({"found": 1}, 3.0, output_file="a/b"))
    assert (result.status, result.output, result.tool_call_id) == ("ok", {"found": 1}, "call_2")
    assert (result.meta.id, result.meta.worker, result.meta.started_at) == ("id-2", "w1", None)
    assert result.meta.output_file == "a/b"


def test_conflict_names_other_call() -> None:
    assert "id-1" in conflict(a_claim("id-1")).message


@pytest.mark.parametrize("value", ["many", "", "0", "-1", "nan", "inf", "1e400", b"\xff"])
@pytest.mark.parametrize("field", ["most", "period", "took", "owner"])
def test_damaged_number_of_limit_counts_as_absent(redis: Redis, field: str, value: str | bytes) -> None:
    ledger = Ledger(redis, Settings())
    redis.hset(ledger.keys.limit("rate:coder"), field, value)

    state = Limiter(ledger).state("rate:coder")

    assert (state.most, state.period, state.took, state.oldest) == (1, 0, 0, None)
    assert state.free_at == state.now + 1_000


def test_limit_state_omits_time_of_damaged_call(redis: Redis) -> None:
    ledger = Ledger(redis, Settings())
    redis.hset(ledger.keys.limit("key:1"), "owner", "call_1")
    redis.hset(ledger.keys.call("call_1"), "claimedAt", "soon")

    assert Limiter(ledger).state("key:1").oldest is None

"""What the lead notes of Redis while it accepts no commands."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from workers.pool import outage
from workers.pool.outage import Outage


def test_each_reason_is_logged_once_until_redis_answers() -> None:
    it = Outage()
    with capture_logs() as logs:
        for error in (RedisConnectionError("away"), ResponseError("OOM"), RedisConnectionError("away")):
            it.note_error(error)
        it.note_answer([1])
        it.note_answer(RedisConnectionError("away"))
    assert len(logs) == 3


def test_fault_of_one_script_is_no_outage() -> None:
    it = Outage()
    with capture_logs() as logs:
        it.note_answer(ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"))
    assert not logs
    assert not it.must_pause


def test_one_pause_follows_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(outage, "sleep", pauses.append)
    it = Outage()
    it.note_error(RedisConnectionError("away"))
    it.pause()
    it.pause()
    assert len(pauses) == 1

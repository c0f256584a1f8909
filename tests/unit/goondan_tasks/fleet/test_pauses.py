"""Paused agents and tools in Redis."""

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.contract.errors import RecordDamagedError
from goondan_tasks.fleet.pauses import TTL_SECONDS, Paused, Pauses

KEYS = Keys("goondan")


def test_pause_has_its_reason_until_it_is_resumed() -> None:
    with fakeredis.FakeRedis() as redis:
        pauses = Pauses(redis, KEYS)
        pauses.pause("coder", None, "loops", "ann")
        pauses.pause("coder", "image__draw", "", "")

        found = pauses.read()

        assert found.agents(["coder", "planner"]) == {"coder"}
        assert found.tools("coder") == {"image__draw"}
        assert [pause.text for pause in found.about("coder")] == ["paused by ann: loops", "paused"]
        assert (pauses.resume("coder", None), pauses.resume("coder", None)) == (True, False)
        assert [pause.target for pause in pauses.read().pauses.values()] == ["image__draw of coder"]


def test_readers_that_live_renew_pauses_lifetime() -> None:
    with fakeredis.FakeRedis() as redis:
        pauses = Pauses(redis, KEYS)
        pauses.pause("coder", None, "", "")
        redis.expire(KEYS.paused, 10)

        pauses.read()
        assert redis.ttl(KEYS.paused) <= 10
        pauses.read_and_keep()
        assert redis.ttl(KEYS.paused) > TTL_SECONDS - 10


def test_damaged_pause_is_left_out_and_others_stay() -> None:
    with fakeredis.FakeRedis() as redis:
        pauses = Pauses(redis, KEYS)
        pauses.pause("coder", None, "", "")
        redis.hset(KEYS.paused, "planner", "not JSON")

        assert list(pauses.read().pauses) == ["coder"]


def test_reason_with_line_breaks_stays_on_one_line() -> None:
    with fakeredis.FakeRedis() as redis:
        pause = Pauses(redis, KEYS).pause("coder", None, "a\nforged line\x1b[2J", "ann")

        assert "\n" not in pause.text
        assert "\x1b" not in pause.text


def test_if_their_key_is_overwritten_nothing_is_paused() -> None:
    with fakeredis.FakeRedis() as redis:
        pauses = Pauses(redis, KEYS)
        redis.set(KEYS.paused, "overwritten")

        assert pauses.read() == pauses.read_and_keep() == Paused()
        with pytest.raises(RecordDamagedError):
            pauses.pause("coder", None, "", "")
        with pytest.raises(RecordDamagedError):
            pauses.resume("coder", None)

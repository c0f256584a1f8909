"""What Redis has to show beyond what every store does, and its clock."""

from dataclasses import dataclass
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.oauth.redis_store import GRANT_TTL_SECONDS, RedisClock
from tests.unit.goondan_tasks.oauth.records import APP, SUBJECT, device_session, grant, session
from tests.unit.goondan_tasks.oauth.stores import RedisVault


def test_every_key_has_namespace_and_expires() -> None:
    vault = RedisVault()
    store = vault.open()
    store.replace_grant(grant(), generation=0)
    opened = store.open_session(session(now=wall_clock()))
    store.open_session(device_session(now=wall_clock()))
    store.advance(opened.id, status="pending", to="exchanging")
    store.complete(opened, grant())
    with store.lock(APP, SUBJECT, wait_seconds=0):
        keys = list(vault.redis.scan_iter("*"))

        assert len(keys) == 7
        assert {key.split(b":")[0] for key in keys} == {b"spec"}
        assert all(vault.redis.pttl(key) > 0 for key in keys)


def test_grant_that_is_used_is_kept() -> None:
    vault = RedisVault()
    store = vault.open()
    store.replace_grant(grant(), generation=0)
    keys = [f"spec:oauth:grant:{grant().name}", "spec:oauth:grants"]
    for key in keys:
        vault.redis.expire(key, GRANT_TTL_SECONDS // 2 - 1)

    store.grant(APP, SUBJECT)

    assert all(vault.redis.ttl(key) > GRANT_TTL_SECONDS // 2 for key in keys)


def test_lock_whose_holder_died_runs_out() -> None:
    vault = RedisVault()
    dead = vault.open(lock_seconds=0.5).lock(APP, SUBJECT, wait_seconds=0)
    assert dead.__enter__()
    store = vault.open(lock_seconds=60)

    with store.lock(APP, SUBJECT, wait_seconds=30) as is_mine:
        assert is_mine
        dead.__exit__(None, None, None)
        with store.lock(APP, SUBJECT, wait_seconds=0) as is_free:
            assert not is_free  # a late holder has not released the lock of another one


@pytest.mark.parametrize("step", ["replace_grant", "advance", "complete", "open_session"])
def test_step_with_lost_answer_repeats_without_harm(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = RedisVault()
    store = vault.open()
    opened = session(now=wall_clock())
    if step in {"advance", "complete"}:
        store.open_session(opened)
    if step == "complete":
        store.advance(opened.id, status="pending", to="exchanging")
    run = store._run

    def twice(*script_call: object) -> object:
        run(*script_call)  # type: ignore[arg-type]
        return run(*script_call)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_run", twice)
    outcome = {
        "replace_grant": lambda: store.replace_grant(grant(), generation=0),
        "advance": lambda: store.advance(opened.id, status="pending", to="exchanging"),
        "complete": lambda: store.complete(opened, grant()),
        "open_session": lambda: store.open_session(opened) == opened,
    }[step]()

    assert outcome is True
    assert len(list(store.grants())) == (step in {"replace_grant", "complete"})


def test_namespaces_of_one_redis_are_separate() -> None:
    server = fakeredis.FakeServer()
    vault = RedisVault(lambda: fakeredis.FakeStrictRedis(server=server))
    vault.open().replace_grant(grant(), generation=0)

    assert vault.redis.exists(f"spec:oauth:grant:{grant().name}")
    assert not list(vault.redis.scan_iter("goondan:*"))


NOON = 1_790_000_000.0


@dataclass
class Machine:
    """A machine and its Redis; times are seconds."""

    #: by which Redis is ahead of this machine
    ahead: float = 5.0
    wall: float = NOON
    monotonic: float = 100.0
    trips: int = 0
    is_redis_away: bool = False

    def time(self) -> tuple[int, int]:
        """Answer as Redis does."""
        self.trips += 1
        if self.is_redis_away:
            raise RedisConnectionError
        return divmod(round((self.wall + self.ahead) * 1_000_000), 1_000_000)

    def passes(self, seconds: float) -> None:
        """Let time pass."""
        self.wall, self.monotonic = self.wall + seconds, self.monotonic + seconds

    def clock(self) -> RedisClock:
        """Return the clock of its Redis."""
        redis: Any = self
        return RedisClock(redis, lambda: self.monotonic, lambda: self.wall)


def test_clock_continues_from_time_of_redis() -> None:
    machine = Machine()
    clock = machine.clock()

    machine.passes(7)

    assert (clock(), machine.trips) == ((NOON + 12) * 1000, 1)


def test_redis_is_asked_again_each_minute() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passes(61)
    machine.ahead = 6

    assert (clock(), clock(), machine.trips) == ((NOON + 67) * 1000, (NOON + 67) * 1000, 2)


def test_machine_that_slept_knows_time_at_once() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall += 8 * 3600

    assert clock() == (NOON + 8 * 3600 + 5) * 1000


def test_while_redis_is_away_clock_goes_on() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.is_redis_away = True
    machine.passes(100)

    assert clock() == (NOON + 105) * 1000

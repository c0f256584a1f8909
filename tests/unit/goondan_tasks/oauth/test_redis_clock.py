"""The clock by which tokens and sessions expire."""

from dataclasses import dataclass
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from goondan_tasks.oauth.redis_clock import RedisClock

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


def test_it_counts_on_from_what_redis_said() -> None:
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


def test_a_machine_that_slept_knows_the_time_at_once() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall += 8 * 3600

    assert clock() == (NOON + 8 * 3600 + 5) * 1000


def test_while_redis_is_away_the_clock_goes_on() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.is_redis_away = True
    machine.passes(100)

    assert clock() == (NOON + 105) * 1000

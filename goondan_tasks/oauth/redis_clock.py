"""The clock of Redis, for a process that lives long: by it tokens and sessions expire."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from redis import Redis
from redis.exceptions import RedisError

#: how long the answer of Redis is counted on from
_TRUSTED_SECONDS = 60.0
#: a machine that slept finds its own clocks so far apart, at least
_LEAP_SECONDS = 1.0

Seconds = Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Answer:
    """A time that Redis gave, and this machine's clocks at that moment."""

    redis_ms: float
    monotonic: float
    wall: float


@dataclass(slots=True)
class RedisClock:
    """Milliseconds since the epoch by the clock of a Redis; safe in threads.

    Between two answers it counts on, which costs no trip. The clock by which it counts stands still while a
    machine sleeps, or is moved to another host: so Redis is asked again each minute, and at once if the
    other clock of this machine has leapt.
    """

    redis: Redis
    monotonic: Seconds = time.monotonic
    wall: Seconds = time.time
    _answer: _Answer = field(init=False)

    def __post_init__(self) -> None:
        """Ask for the first time.

        Raises:
            RedisError: there is no answer.
        """
        self._answer = self._asked()

    def __call__(self) -> float:
        """Return the time; while Redis is away as it follows from its last answer."""
        if self._is_doubtful():
            with contextlib.suppress(RedisError):
                self._answer = self._asked()
        answer = self._answer
        return answer.redis_ms + (self.monotonic() - answer.monotonic) * 1000

    def _asked(self) -> _Answer:
        seconds, micros = self.redis.time()
        return _Answer(seconds * 1000 + micros / 1000, self.monotonic(), self.wall())

    def _is_doubtful(self) -> bool:
        answer = self._answer
        passed = self.monotonic() - answer.monotonic
        leap = self.wall() - answer.wall - passed
        return passed > _TRUSTED_SECONDS or abs(leap) > _LEAP_SECONDS

"""Programs whose trips to Redis are interrupted: others act, answers are lost, the program dies."""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from redis import ConnectionPool, Redis, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

#: how likely it is before each trip that the program dies, and that others act; after it, that the answer
#: is lost
DIES, OTHERS_ACT, IS_LOST = 0.04, 0.15, 0.06
#: how often the answers of one operation are lost: after two failures in a row a client gives up
MOST_LOST = 1


class ProgramDiedError(BaseException):
    """The program has died before a trip; no handler of errors may catch this."""


class _Connection(UnixDomainSocketConnection):
    """A connection that tells its program of each trip."""

    def __init__(self, program: "Program", **options: Any) -> None:
        super().__init__(**options)
        self._program = program

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self._program.begin_trip()
        super().send_packed_command(command, check_health=check_health)

    def read_response(self, *args: Any, **options: Any) -> Any:
        answer = super().read_response(*args, **options)
        if self._program.loses_answer():
            self.disconnect()
            raise RedisConnectionError("the answer is lost")
        return answer


class Program:
    """A client, or a process, with connections of its own."""

    def __init__(self, redis: Redis, others_act: float = OTHERS_ACT) -> None:
        self._others_act = others_act
        path = redis.connection_pool.connection_kwargs["path"]
        retry = Retry(NoBackoff(), 1)
        pool = ConnectionPool(
            connection_class=_Connection, program=self, path=path, retry=retry, protocol=2,
            redis_connect_func=lambda connection: connection._parser.on_connect(connection),
        )  # fmt: skip
        self.redis = Redis(connection_pool=pool, retry=retry)
        self._pick: Random | None = None
        self._others: Callable[[Random], object] = lambda _: None
        self._is_dead = False
        self._lost = 0

    @property
    def is_busy(self) -> bool:
        """Whether it is within an operation."""
        return self._pick is not None

    @contextmanager
    def interrupted(self, pick: Random, others: Callable[[Random], object]) -> Iterator[None]:
        """Interrupt the trips of the operation in the block; ``others`` is called where others act.

        Raises:
            ProgramDiedError: the program has died.
        """
        self._pick, self._others, self._is_dead, self._lost = pick, others, False, 0
        try:
            yield
        except BaseException:
            self.begin_again()
            raise
        finally:
            self._pick = None
            self._is_dead = False

    def begin_again(self) -> None:
        """Let another process take its place: the connections that were in use are lost."""
        self.redis.connection_pool.disconnect()
        self.redis.connection_pool.reset()

    def begin_trip(self) -> None:
        if self._is_dead:  # what it would do while it unwinds
            raise ProgramDiedError
        pick = self._pick
        if pick is None:
            return
        if pick.random() < DIES:
            self._is_dead = True
            raise ProgramDiedError
        if pick.random() < self._others_act:
            for _ in range(pick.choice([1, 2, 3])):
                self._others(pick)

    def loses_answer(self) -> bool:
        pick = self._pick
        if pick is None or self._lost >= MOST_LOST or pick.random() >= IS_LOST:
            return False
        self._lost += 1
        return True

"""Waits until replicas have what the master has accepted, with ``WAIT`` or ``WAITAOF``; off by default.

A replica that takes the master's place lacks the last writes. If the settings ask for it, a *barrier* follows
the scripts of each packet: a write, and the command that waits for all writes before it. The answers of
scripts with a :class:`Confirmation` are withheld until the barrier is answered.
"""

# redis-py leaves some of its commands untyped
# mypy: disable-error-code="no-untyped-call"

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from broker_config.keys import Keys
from broker_config.refusals import is_demotion
from broker_config.settings import Settings

logger = logging.getLogger(__name__)

#: how long the key of the barrier's write is kept, in seconds
_KEPT_SECONDS = 60


class NotConfirmedError(RedisError):
    """The master has accepted a write, and too few replicas have confirmed it in time."""

    #: the answers of the scripts of a round trip
    answers: Sequence[Any] = ()


@dataclass(eq=False)
class Confirmation:
    """How many replicas must confirm the writes of a script, and what follows if they do not."""

    replicas: int
    #: whether master and replicas must have the writes in their append-only files, synced to disk
    on_disk: bool
    seconds: float
    #: of the barrier's write
    key: str
    #: whether a script without the confirmation has failed; else that is only logged
    is_required: bool
    _is_short: bool = field(default=False, init=False)

    @classmethod
    def of(cls, settings: Settings, *, is_required: bool) -> "Confirmation | None":
        """Make what the settings demand; ``None`` if they demand nothing."""
        on_disk = settings.wait_aof == "on"
        if not (settings.wait_replicas or on_disk):
            return None
        key = Keys(settings.namespace).barrier
        return cls(settings.wait_replicas, on_disk, settings.wait_seconds, key, is_required)

    @property
    def barrier(self) -> "list[Barrier]":
        """The commands of a barrier.

        Redis waits for the last write of the connection. A script may write nothing, above all that of a call
        which another connection has submitted before, so the barrier writes.
        """
        milliseconds = round(self.seconds * 1000)
        wait = ("WAITAOF", 1, self.replicas) if self.on_disk else ("WAIT", self.replicas)
        return [
            Barrier(("SET", self.key, 1, "EX", _KEPT_SECONDS)),
            Barrier((*wait, milliseconds), ends=self),
        ]

    def fault(self, written: Any, confirmed: Any) -> RedisError | None:
        """Return what is wrong with the answers to a barrier; log once what only a failover makes one."""
        for answer in (written, confirmed):
            if isinstance(answer, RedisError):
                return answer
        local, replicas = confirmed if self.on_disk else (1, confirmed)
        was_short, self._is_short = self._is_short, not local or replicas < self.replicas
        if not self._is_short:
            return None
        have = f"{replicas} of {self.replicas} replicas"
        if self.on_disk:
            have = f"{'the master' if local else 'not even the master'} and {have}"
        done = "synced it to disk" if self.on_disk else "confirmed it"
        error = NotConfirmedError(f"{have} have {done} within {self.seconds:g} s")
        if not (self.is_required or was_short):
            logger.warning("Redis has accepted a write that a failover may lose: %s", error)
        return error


@dataclass(frozen=True, slots=True)
class Barrier:
    """One command of a barrier, in the place of a script call."""

    command: tuple[Any, ...]
    #: set in the last command
    ends: Confirmation | None = None
    confirmation: ClassVar[None] = None

    @property
    def full_command(self) -> tuple[Any, ...]:
        return self.command

    @staticmethod
    def parse(answer: Any) -> Any:
        return answer


class _Sent(Protocol):
    @property
    def script_call(self) -> Any:
        """The script call, or the barrier."""


Sent = TypeVar("Sent", bound=_Sent)


class Unanswered(Generic[Sent]):
    """What was sent over a connection and has no answer yet, in order; and the answers that are withheld."""

    def __init__(self) -> None:
        self._sent: deque[Sent] = deque()
        self._withheld: list[Any] = []
        #: how many barriers are not answered
        self.barriers = 0

    @property
    def sent(self) -> Iterable[Sent]:
        """What must be sent again over a new connection."""
        return self._sent

    @property
    def due(self) -> int:
        """How many answers are to be read."""
        return len(self._sent) - len(self._withheld)

    def add(self, sent: Iterable[Sent]) -> None:
        """Expect further answers, not those to barriers."""
        self._sent.extend(sent)

    def add_barrier(self, commands: Iterable[Sent]) -> None:
        """Expect the answers to a barrier."""
        self._sent.extend(commands)
        self.barriers += 1

    def take(self, answer: Any) -> list[tuple[Sent, Any]]:
        """Take the next answer; return the scripts that are answered by now, with what counts as answers."""
        if not self._withheld and self._sent[0].script_call.confirmation is None:
            return [(self._sent.popleft(), answer)]
        script_call = self._sent[len(self._withheld)].script_call
        self._withheld.append(answer)
        if script_call.ends is None:
            return []
        answers, self._withheld = self._withheld, []
        self.barriers -= 1
        fault = script_call.ends.fault(*answers[-2:])
        taken = [(self._sent.popleft(), one) for one in answers]
        return [(one, counted(one.script_call, given, fault)) for one, given in taken if not _is_barrier(one)]

    def read_again(self) -> None:
        """Forget the answers that are withheld: everything is sent again."""
        self._withheld.clear()

    def give_up(self) -> list[Sent]:
        """Return the scripts without an answer; none is expected any more."""
        given_up = [one for one in self._sent if not _is_barrier(one)]
        self._sent.clear()
        self._withheld.clear()
        self.barriers = 0
        return given_up


def _is_barrier(sent: _Sent) -> bool:
    return isinstance(sent.script_call, Barrier)


def require_supported(redis: Redis, settings: Settings) -> None:
    """Check that the server and its user can wait as the settings demand, whether replicas are there or not.

    Raises:
        redis.exceptions.RedisError: they cannot, or the server cannot be reached.
    """
    confirmation = Confirmation.of(settings, is_required=True)
    if confirmation is not None:
        redis.execute_command(*replace(confirmation, replicas=0, seconds=0.001).barrier[-1].command)


def counted(script_call: Any, answer: Any, fault: RedisError | None) -> Any:
    """Return what counts as the answer of a script, given the fault of the barrier behind it."""
    confirmation: Confirmation | None = script_call.confirmation
    if fault is None or confirmation is None or isinstance(answer, RedisError):
        return answer
    return fault if confirmation.is_required or is_demotion(fault) else answer

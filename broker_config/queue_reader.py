"""Reserves messages from queues over one connection; the same round trips carry results.

A worker waits for the *wake-up keys* of its queues with a blocking pop. It sends a reservation right behind
it, so Redis runs that as soon as a key is filled: the message arrives with the wake-up, which saves a trip.
This reservation is for few messages, because a worker that freezes while it waits keeps them for a lease, and
because other workers wait, too. It takes only events, and messages whose calls are claimed with them. Calls
that must wait for a limit would be spread over workers and overtake each other; events have no limits, and
mailboxes keep their order.
"""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from redis import Redis
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from broker_config.confirmation import Barrier, Confirmation, Unanswered
from broker_config.in_flight import SLEEP_SECONDS, Reservation, ReservationFactory
from broker_config.queues import WAKE_UP_SUFFIX, wake_up_key
from broker_config.refusals import is_demotion
from broker_config.scripts import ClaimOnReserve, Script, ScriptCall, answer_of, packet, send_all, unparsed

logger = logging.getLogger(__name__)

#: with more queues than this, a reservation behind the blocking pop costs more than the trip that it saves
MOST_RESERVED_AHEAD = 8
#: how many queues one reservation names; the names of more cost more than another trip
MOST_HOT = 32

#: gets the answer to a script call, or its error
Receiver = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages and claims of one reservation."""

    #: ``time.monotonic()`` before it was sent
    asked_at: float = 0.0
    #: for each claimed message: its queue, the claim's token, and the answer of ``claim_on_reserve``
    claims: list[tuple[str, str, Sequence[Any]]] = field(default_factory=list)
    #: for each other message: its tag, queue and text
    messages: list[tuple[str, str, bytes]] = field(default_factory=list)
    #: whether the queues may hold more
    is_full: bool = False


class _Posted(NamedTuple):
    script_call: ScriptCall[Any] | Barrier
    receiver: Receiver


@dataclass(frozen=True, slots=True)
class _ReportingLoss:
    """Reports an error of its block; a generator would take four times as long."""

    report: Callable[[BaseException], None]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.report(error)


class QueueReader:
    """Reserves messages, and sends script calls in the same trips. Any thread may :meth:`wake` it.

    ``preloaded`` scripts are loaded into Redis by each new connection.
    """

    def __init__(self, redis: Redis, preloaded: Sequence[Script]) -> None:
        self._redis = redis
        self._preloaded = preloaded
        self._connection: Connection = redis.connection_pool.make_connection()  # type: ignore[assignment]
        self._is_connected = False
        #: Redis's id of the connection; 0 if the user may not ask for it
        self._client_id = 0
        self._is_waiting = False
        self._reporting_loss = _ReportingLoss(self._report_loss)
        self._reservations = ReservationFactory()
        #: the queues that may hold messages, in the order in which they are read
        self._hot: dict[str, None] = {}
        self._looked_at = 0.0
        self._unsent: list[tuple[Any, ...]] = []
        self._unanswered: Unanswered[_Posted] = Unanswered()
        #: set if scripts were posted that no barrier follows yet
        self._unconfirmed: Confirmation | None = None

    def claim_with(self, claim_on_reserve: ClaimOnReserve) -> None:
        """Claim calls on these terms from the next reservation on."""
        self._reservations.claim_with(claim_on_reserve)

    def wake(self) -> None:
        """End the wait for a wake-up key, if there is one."""
        if self._is_waiting and self._client_id:
            with contextlib.suppress(RedisError):
                self._redis.client_unblock(self._client_id)

    def post(self, call: ScriptCall[Any], receiver: Receiver) -> None:
        """Add a script call to the next packet; ``receiver`` gets its answer or error."""
        self._post(call.command, call, receiver)

    def send(self) -> None:
        """Send what was posted, without waiting for the answers.

        Raises:
            redis.exceptions.RedisError: the connection is lost; every receiver got the error.
        """
        commands = self._take_unsent()
        if commands:
            with self._reporting_loss:
                self._write(commands)

    def settle(self) -> None:
        """Send what was posted, and deliver all outstanding answers. Raises as :meth:`send` does."""
        self.send()
        while self._unanswered.due:  # scripts unknown to Redis are sent again
            with self._reporting_loss:
                self._settle()
            self.send()

    def reserve(self, queues: Sequence[str], credit: int, extra: int, *, ahead: int = 1) -> Batch:
        """Reserve ``credit`` messages, and up to ``extra`` more, in the trip that carries what was posted.

        If no queue is known to hold messages, wait for a wake-up key for up to half a second, and take up to
        ``ahead`` messages along. Raises as :meth:`send` does.
        """
        if monotonic() - self._looked_at >= SLEEP_SECONDS:
            self._check_all(queues)
        served = frozenset(queues)
        hot = list(itertools.islice((queue for queue in self._hot if queue in served), MOST_HOT))
        commands = self._take_unsent()
        with self._reporting_loss:
            if hot:
                reservation = self._reservations.make(hot, credit, extra)
                self._write([*commands, reservation.script_call.command])
                self._settle()
                return self._batch(reservation, self._answer(reservation))
            self._connect()
            is_claiming = self._client_id and self._reservations.is_claiming
            taken_along = None
            commands.append(("BRPOP", *map(wake_up_key, queues), SLEEP_SECONDS))
            if is_claiming and len(queues) <= MOST_RESERVED_AHEAD:
                taken_along = self._reservations.make(queues, ahead, claimed_only=True)
                commands.append(taken_along.script_call.command)
            self._write(commands)
            self._settle()
            return self._woken(queues, taken_along)

    def is_hot(self, queues: Sequence[str]) -> bool:
        """Return whether one of ``queues`` is known to hold messages: then :meth:`reserve` does not wait."""
        return any(queue in self._hot for queue in queues)

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()
        self._is_connected = False

    def _post(self, command: tuple[Any, ...], call: ScriptCall[Any] | Barrier, receiver: Receiver) -> None:
        self._unsent.append(command)
        self._unanswered.add((_Posted(call, receiver),))
        self._unconfirmed = call.confirmation or self._unconfirmed

    def _take_unsent(self) -> list[tuple[Any, ...]]:
        """Return the commands that were posted, with a barrier if their answers need one."""
        if self._unconfirmed is not None:
            barrier, self._unconfirmed = self._unconfirmed.barrier, None
            self._unsent += [one.command for one in barrier]
            self._unanswered.add_barrier([_Posted(one, unparsed) for one in barrier])
        commands, self._unsent = self._unsent, []
        return commands

    def _woken(self, queues: Sequence[str], ahead: Reservation | None) -> Batch:
        self._is_waiting = True
        try:
            woken = answer_of(self._connection)
        finally:
            self._is_waiting = False
        reserved = None if ahead is None else answer_of(self._connection)
        if isinstance(reserved, NoScriptError):  # nothing was reserved; the next reservation loads the script
            ahead, reserved = None, None
        if isinstance(reserved, RedisError):
            raise reserved
        if isinstance(woken, RedisError):
            if ahead is None:
                raise woken
            woken = None  # the messages that were reserved must be delivered
        if woken is None:
            self._check_all(queues)
        else:
            queue = woken[0].decode().removesuffix(WAKE_UP_SUFFIX)
            self._hot = {queue: None, **self._hot}
        if ahead is None:
            return Batch(is_full=True)
        self._hot.update(dict.fromkeys(ahead.queues))
        return self._batch(ahead, reserved)

    def _check_all(self, queues: Sequence[str]) -> None:
        self._hot = dict.fromkeys([*self._hot, *queues])
        self._looked_at = monotonic()

    def _answer(self, reservation: Reservation) -> Any:
        answer = answer_of(self._connection)
        if isinstance(answer, NoScriptError):
            self._write([reservation.script_call.full_command])
            answer = answer_of(self._connection)
        if isinstance(answer, RedisError):
            raise answer
        return answer

    def _batch(self, reservation: Reservation, answer: Any) -> Batch:
        emptied, taken = answer
        for number in emptied:
            self._hot.pop(reservation.queues[number], None)
        first = reservation.queues[0]
        if first in self._hot:  # the other queues come first next time
            del self._hot[first]
            self._hot[first] = None
        batch = Batch(reservation.sent_at, is_full=bool(self._hot))
        for tag, number, message, claim in zip(*[iter(taken)] * 4, strict=True):
            queue = reservation.queues[number]
            if claim is None:
                batch.messages.append((tag.decode(), queue, message))
            elif isinstance(claim, bytes):
                reason = claim.decode(errors="replace")
                logger.error(
                    "a call of %s cannot be claimed; it is tried again after a lease: %s", queue, reason
                )
            else:
                batch.claims.append((queue, tag.decode(), claim))
        return batch

    def _settle(self) -> None:
        demotion: RedisError | None = None
        for _ in range(self._unanswered.due):
            answer = answer_of(self._connection)
            if isinstance(answer, RedisError) and is_demotion(answer):
                demotion = answer
            for posted, counted in self._unanswered.take(answer):
                call, receiver = posted
                if isinstance(counted, NoScriptError):  # sent again with the next packet
                    self._post(call.full_command, call, receiver)
                else:
                    receiver(counted if isinstance(counted, RedisError) else call.parse(counted))
        if demotion is not None:  # a new connection may reach the new master
            raise demotion

    def _write(self, commands: Sequence[tuple[Any, ...]]) -> None:
        self._connect()
        # redis-py's health check would read the answer to a script call, or reconnect and lose it
        self._connection.send_packed_command([packet(commands)], check_health=False)

    def _connect(self) -> None:
        if self._is_connected:
            return
        self._connection.connect()
        # one trip for all: with a slow network, leases might run out during many
        load = [("SCRIPT", "LOAD", script.text) for script in self._preloaded]
        # if the user may not load scripts, their texts are sent later
        *_, client_id = send_all(self._connection, [*load, ("CLIENT", "ID")], check_health=False)
        self._client_id = client_id if isinstance(client_id, int) else 0
        self._is_connected = True

    def _report_loss(self, error: BaseException) -> None:
        """Give every receiver the error: the connection is lost.

        After an error of another kind, too, the connection is closed: the answers that are left in it would
        go to the receivers of later commands.
        """
        if not isinstance(error, RedisError):
            error = RedisConnectionError("closed, because an answer could not be handled")
        self.close()
        self._unsent, self._unconfirmed = [], None
        for posted in self._unanswered.give_up():
            posted.receiver(error)

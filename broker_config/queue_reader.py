"""Taking messages off queues over one connection, in the same trips in which results go out.

A worker waits on the *wake-up keys* of its queues. Behind the blocking pop it sends a reservation already, so
Redis makes it the moment a key is filled: the message comes with the wake-up, and a trip is saved. It is for
one message, since a worker that is frozen while it waits takes that along for a lease; and only for an event,
or one whose call is claimed with it: calls that must wait for a limit would be spread among workers, and
overtake each other. Events have no limits, and their mailboxes keep their order.
"""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from redis import Redis
from redis.connection import Connection
from redis.exceptions import NoScriptError, RedisError

from broker_config.in_flight import SLEEP_SECONDS, Order, Orders
from broker_config.queues import WAKE_UP_SUFFIX, wake_up_key
from broker_config.scripts import ClaimOnReserve, Script, ScriptCall, answer_of, packet

logger = logging.getLogger(__name__)

#: to look at more queues than these costs more than the trip that is saved
MOST_ORDERED = 8
#: how many queues one order names, of those that may hold messages: their names cost more than another trip
MOST_HOT = 32

#: gets the answer to a script call, or the error that came in its place
Receiver = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one trip has brought."""

    #: ``time.monotonic()`` before it was asked for
    asked_at: float = 0.0
    #: of each message that was claimed: its queue, the claim's token, and what ``claim_on_reserve`` returned
    claims: list[tuple[str, str, Sequence[Any]]] = field(default_factory=list)
    #: of each other message: its tag, queue and text
    messages: list[tuple[str, str, bytes]] = field(default_factory=list)
    #: whether the queues may hold more
    is_full: bool = False


class QueueReader:
    """Reserves messages, and sends script calls along. Any thread may :meth:`wake` it.

    ``taught`` are the scripts that a new connection makes known to Redis.
    """

    def __init__(self, redis: Redis, taught: Sequence[Script]) -> None:
        self._redis = redis
        self._taught = taught
        self._connection: Connection = redis.connection_pool.make_connection()  # type: ignore[assignment]
        self._is_connected = False
        #: what Redis knows the connection by; 0 if it may not be asked
        self._client_id = 0
        self._is_waiting = False
        self._orders = Orders()
        #: the queues that may hold messages, the one to look at first in front
        self._hot: dict[str, None] = {}
        self._looked_at = 0.0
        self._unsent: list[tuple[Any, ...]] = []
        self._unanswered: deque[tuple[ScriptCall[Any], Receiver]] = deque()

    def claim_with(self, claim_on_reserve: ClaimOnReserve) -> None:
        """Claim calls on these terms from the next reservation on."""
        self._orders.claim_with(claim_on_reserve)

    def wake(self) -> None:
        """End the wait for a wake-up key, if there is one."""
        if self._is_waiting and self._client_id:
            with contextlib.suppress(RedisError):
                self._redis.client_unblock(self._client_id)

    def post(self, call: ScriptCall[Any], receiver: Receiver) -> None:
        """Let a script call go out with the next packet; ``receiver`` gets its answer, or the error."""
        self._unsent.append(call.command)
        self._unanswered.append((call, receiver))

    def send(self) -> None:
        """Send what was posted, without waiting for the answers.

        Raises:
            redis.exceptions.RedisError: the connection is lost; every receiver has been told.
        """
        commands, self._unsent = self._unsent, []
        if commands:
            with self._telling_of_loss():
                self._write(commands)

    def settle(self) -> None:
        """Send what was posted, and hand over all answers that are outstanding; raises as :meth:`send`."""
        self.send()
        while self._unanswered:  # scripts that Redis did not know are sent again
            with self._telling_of_loss():
                self._settle()
            self.send()

    def reserve(self, queues: Sequence[str], credit: int, extra: int) -> Batch:
        """Reserve ``credit`` messages, and up to ``extra`` more, in the trip that carries what was posted.

        If no queue is known to hold any it waits for a wake-up key, half a second at most. Raises as
        :meth:`send`.
        """
        if monotonic() - self._looked_at >= SLEEP_SECONDS:
            self._look_everywhere(queues)
        served = frozenset(queues)
        hot = list(itertools.islice((queue for queue in self._hot if queue in served), MOST_HOT))
        commands, self._unsent = self._unsent, []
        with self._telling_of_loss():
            if hot:
                order = self._orders.order(hot, credit, extra)
                self._write([*commands, order.script_call.command])
                self._settle()
                return self._batch(order, self._answer(order))
            self._connect()
            is_ordering = len(queues) <= MOST_ORDERED and self._client_id and self._orders.is_claiming
            order_ = self._orders.order(queues, 1, is_choosy=True) if is_ordering else None
            commands.append(("BRPOP", *map(wake_up_key, queues), SLEEP_SECONDS))
            if order_ is not None:
                commands.append(order_.script_call.command)
            self._write(commands)
            self._settle()
            return self._woken(queues, order_)

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()
        self._is_connected = False

    def _woken(self, queues: Sequence[str], order: Order | None) -> Batch:
        self._is_waiting = True
        try:
            rung = answer_of(self._connection)
        finally:
            self._is_waiting = False
        reserved = None if order is None else answer_of(self._connection)
        if isinstance(reserved, NoScriptError):  # which had no effect; the next one teaches Redis the script
            order, reserved = None, None
        if isinstance(reserved, RedisError):
            raise reserved
        if isinstance(rung, RedisError):
            if order is None:
                raise rung
            rung = None  # what was reserved counts
        if rung is None:
            self._look_everywhere(queues)
        else:
            queue = rung[0].decode().removesuffix(WAKE_UP_SUFFIX)
            self._hot = {queue: None, **self._hot}
        if order is None:
            return Batch(is_full=True)
        self._hot.update(dict.fromkeys(order.queues))
        return self._batch(order, reserved)

    def _look_everywhere(self, queues: Sequence[str]) -> None:
        self._hot = dict.fromkeys([*self._hot, *queues])
        self._looked_at = monotonic()

    def _answer(self, order: Order) -> Any:
        answer = answer_of(self._connection)
        if isinstance(answer, NoScriptError):
            self._write([order.script_call.full_command])
            answer = answer_of(self._connection)
        if isinstance(answer, RedisError):
            raise answer
        return answer

    def _batch(self, order: Order, answer: Any) -> Batch:
        emptied, taken = answer
        for number in emptied:
            self._hot.pop(order.queues[number], None)
        first = order.queues[0]
        if first in self._hot:  # another one has its turn first
            del self._hot[first]
            self._hot[first] = None
        batch = Batch(order.sent_at, is_full=bool(self._hot))
        for tag, number, message, claim in zip(*[iter(taken)] * 4, strict=True):
            queue = order.queues[number]
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
        for _ in range(len(self._unanswered)):
            answer = answer_of(self._connection)
            call, receiver = self._unanswered.popleft()
            if isinstance(answer, NoScriptError):  # sent again with the next packet
                self._unsent.append(call.full_command)
                self._unanswered.append((call, receiver))
            else:
                receiver(answer if isinstance(answer, RedisError) else call.parse(answer))

    def _write(self, commands: Sequence[tuple[Any, ...]]) -> None:
        self._connect()
        # redis-py's own check of the connection might open a new one, unknown to the event loop
        self._connection.send_packed_command([packet(commands)], check_health=False)

    def _connect(self) -> None:
        if self._is_connected:
            return
        self._connection.connect()
        # all in one trip: leases run out while a slow network is asked again and again
        teach = [("SCRIPT", "LOAD", script.text) for script in self._taught]
        self._connection.send_packed_command([packet([*teach, ("CLIENT", "ID")])], check_health=False)
        # a user that may not load scripts sends the text of each instead
        answer = [answer_of(self._connection) for _ in range(len(teach) + 1)][-1]
        self._client_id = answer if isinstance(answer, int) else 0
        self._is_connected = True

    @contextlib.contextmanager
    def _telling_of_loss(self) -> Any:
        """Tell every receiver that its answer is lost, if the connection is."""
        try:
            yield
        except RedisError as error:
            self.close()
            self._unsent = []
            while self._unanswered:
                self._unanswered.popleft()[1](error)
            raise

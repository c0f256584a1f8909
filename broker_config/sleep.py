"""How a worker sleeps until there is something to do: on the *bells* of its queues, with a standing order.

The order is sent right behind the ``BRPOP``, on the same connection, so Redis carries it out the moment that
a bell rings: the message comes with the bell, and a trip is saved. It asks for one message, as a worker that
is frozen or cut off while it sleeps takes that along for a lease; and only for one whose call is claimed with
it: calls that must wait for a limit would be spread among workers, and overtake each other. Whoever cannot
have the order carried out at once, with ``CLIENT UNBLOCK``, gives none: a sleeper must be able to change its
mind.
"""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.connection import Connection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from broker_config.in_flight import Order
from broker_config.queues import bell
from broker_config.scripts import answer_of, packet

#: how long a worker sleeps on its bells before it looks at the queues anyway
SLEEP_SECONDS = 0.5

#: to look at more queues than these costs more than the trip that an order saves
MOST_ORDERED = 8


@dataclass(frozen=True, slots=True)
class Awakening:
    """What has ended a sleep: the bell and what it held, or time; and the order with its answer, if any."""

    rung: Sequence[bytes] | None
    order: Order | None = None
    reserved: Any = None


class Sleep:
    """The sleep of one consumer; ``commands`` reach Redis while it lasts."""

    def __init__(self, commands: Redis) -> None:
        self._commands = commands
        self._order: Order | None = None
        #: the socket that sleeps, and the id that Redis knows it by; 0 if it may not be asked
        self._sleeper: tuple[Any, int] = (None, 0)

    @property
    def ordered(self) -> int:
        """How many messages the last sleep has on order."""
        return 0 if self._order is None else self._order.credit

    def takes_orders(self, connection: Connection, queues: Sequence[str]) -> bool:
        """Say whether a sleep on these queues may have an order.

        Raises:
            redis.exceptions.ConnectionError: Redis cannot be reached.
        """
        if len(queues) > MOST_ORDERED:
            return False
        if self._sleeper[0] is not connection._sock:
            connection.send_command("CLIENT", "ID")
            answer = answer_of(connection)
            self._sleeper = connection._sock, answer if isinstance(answer, int) else 0
        return bool(self._sleeper[1])

    def begin(self, connection: Connection, queues: Sequence[str], order: Order | None) -> None:
        """Fall asleep.

        Raises:
            redis.exceptions.ConnectionError: Redis cannot be reached.
        """
        self._order = order
        commands: list[tuple[Any, ...]] = [("BRPOP", *map(bell, queues), SLEEP_SECONDS)]
        if order is not None:
            commands.append(order.errand.command)
        # redis-py's own check of the connection might make a new one, of which nobody would know
        connection.send_packed_command([packet(commands)], check_health=False)

    def wake(self) -> bool:
        """Have the order carried out now; say whether Redis can be reached.

        If it refuses to, the order is carried out when the sleep ends, and there are no more orders.
        """
        try:
            self._commands.client_unblock(self._sleeper[1])
        except ResponseError:
            self._sleeper = self._sleeper[0], 0
        except RedisError:
            return False
        return True

    def end(self, connection: Connection) -> Awakening:
        """Read what has ended the sleep, or wait for it.

        Raises:
            redis.exceptions.RedisError: the connection is lost, nobody may sleep, or the order has failed.
        """
        order, self._order = self._order, None
        rung = answer_of(connection)
        reserved = None if order is None else answer_of(connection)
        if isinstance(reserved, NoScriptError):  # which had no effect; the next trip teaches Redis the script
            order, reserved = None, None
        if isinstance(reserved, RedisError):
            raise reserved
        if isinstance(rung, RedisError):
            if order is None:
                raise rung
            rung = None  # what was reserved counts
        return Awakening(rung, order, reserved)

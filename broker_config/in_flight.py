"""The reservations in Redis: every message that has left its queue is kept here until it is acknowledged.

A reservation belongs to the worker that made it: its tag is made here, renewed while its worker lives and
compared by every acknowledgement (kombu's tag is made at publish and shared by all deliveries).
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from time import monotonic
from typing import Any, cast

from redis import Redis

from broker_config.process_identity import this_process
from broker_config.queues import WAKE_UP_SUFFIX, wake_up_key
from broker_config.scripts import ClaimOnReserve, Script, ScriptCall

IN_FLIGHT = "agent.in-flight"
IN_FLIGHT_INDEX = "agent.in-flight.index"

#: how many messages one trip reserves or finds at most
BATCH = 64

#: how long a worker waits on wake-up keys before it looks at the queues anyway
SLEEP_SECONDS = 0.5

_FOLDER = files("broker_config.scripts")
_consumers = itertools.count()


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be reserved: from which queues, and how many messages at most, beside extra ones."""

    script_call: ScriptCall[Any]
    queues: Sequence[str]
    credit: int
    #: ``time.monotonic()``
    sent_at: float


class Orders:
    """Writes down what one consumer wants reserved."""

    def __init__(self) -> None:
        self._tag = f"{this_process().id}:{next(_consumers)}:"
        self._count = 0
        self._lua = (_FOLDER / "reserve.lua").read_text("utf-8")
        self.claim_with(ClaimOnReserve())
        #: whether a reader of the messages is registered
        self.is_claiming = False

    def claim_with(self, claim_on_reserve: ClaimOnReserve) -> None:
        """Claim the call of every message that is reserved from now on."""
        self.is_claiming = True
        self._script = Script.of(f"{claim_on_reserve.lua}\n{self._lua}")
        self._argument, self._terms = claim_on_reserve.argument, claim_on_reserve.terms

    def order(
        self,
        queues: Sequence[str],
        credit: int,
        extra: int = 0,
        acknowledged: Sequence[str] = (),
        *,
        is_choosy: bool = False,
    ) -> Order:
        """Write an order, which must not be carried out twice; it takes along what is to be ``acknowledged``.

        A choosy one wants nothing but events, and messages that the claim on reserve speaks for.
        """
        self._count += 1
        keys = [IN_FLIGHT, IN_FLIGHT_INDEX]
        for queue in queues:
            keys += (queue, wake_up_key(queue))
        prefix = f"{self._tag}{self._count:09}:"  # tags in their order are messages in theirs
        choosy = "1" if is_choosy else ""
        arguments = [credit, extra, choosy, prefix, self._argument, len(acknowledged), *acknowledged]
        arguments += [self._terms.get(queue, "") for queue in queues]
        return Order(ScriptCall(self._script, keys, arguments), queues, credit, monotonic())


class InFlight:
    """Renews and ends reservations; ``run`` runs a script."""

    def __init__(self, run: Callable[[ScriptCall[Any]], Any]) -> None:
        self._run = run
        self._give_back, self._overdue, self._renew = (
            Script.read(_FOLDER, name) for name in ("give_back", "overdue", "renew")
        )

    def give_back(self, tags: Sequence[str]) -> int:
        """Put reserved messages back to the front of their queues; the last one will be taken first.

        Returns:
            How many there were.
        """
        if not tags:
            return 0
        return int(
            self._run(ScriptCall(self._give_back, [IN_FLIGHT, IN_FLIGHT_INDEX], [WAKE_UP_SUFFIX, *tags]))
        )

    def overdue(self, seconds: float) -> list[str]:
        """Return the tags of reservations that were not renewed for so long, the latest first."""
        tags = self._run(ScriptCall(self._overdue, [IN_FLIGHT_INDEX], [seconds, BATCH]))
        return [tag.decode() for tag in tags]

    def renew(self, tags: Sequence[str]) -> None:
        """Renew reservations."""
        if tags:
            self._run(ScriptCall(self._renew, [IN_FLIGHT_INDEX], tags))


class LeftMessages:
    """Puts back reservations not renewed for ``seconds``; those of a live worker are never that old.

    Every method raises redis.exceptions.RedisError if Redis cannot be reached.
    """

    def __init__(self, redis: Redis, seconds: float) -> None:
        self._redis = redis
        self._in_flight = InFlight(lambda script_call: script_call.run(redis))
        self._seconds = seconds

    def put_back(self) -> int:
        """Put a batch back to the front of its queues; return how many messages that were."""
        return self._in_flight.give_back(self._in_flight.overdue(self._seconds))

    def put_back_of(self, process_id: str) -> int:
        """Put back all that a process which has ended had reserved; return how many messages that were."""
        latest_first = cast("list[bytes]", self._redis.zrange(IN_FLIGHT_INDEX, 0, -1, desc=True))
        return self._in_flight.give_back(
            [tag.decode() for tag in latest_first if tag.startswith(process_id.encode())]
        )

"""Reservations: Redis keeps every message that has left its queue until it is acknowledged.

A reservation belongs to the worker that made it. Its tag is made here, is renewed while its worker lives, and
is compared by every acknowledgement. kombu's own tag is made when the message is published, and all
deliveries share it.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from time import monotonic
from typing import Any, cast

from redis import Redis

from broker_config.process_identity import this_process
from broker_config.queues import IN_FLIGHT, IN_FLIGHT_INDEX, WAKE_UP_SUFFIX, wake_up_key
from broker_config.scripts import ClaimOnReserve, Script, ScriptCall

#: the maximum number of messages that one script reserves or finds
BATCH = 64

#: how long a worker waits for wake-up keys before it checks the queues anyway
SLEEP_SECONDS = 0.5

_FOLDER = files("broker_config.scripts")
_consumers = itertools.count()


@dataclass(frozen=True, slots=True)
class Reservation:
    """A script call that reserves messages from these queues."""

    script_call: ScriptCall[Any]
    queues: Sequence[str]
    #: ``time.monotonic()``
    sent_at: float


class ReservationFactory:
    """Makes the reservations of one consumer."""

    def __init__(self) -> None:
        us = this_process()
        self._tag = f"{us.id}:{next(_consumers)}:{us.secret}:"
        self._count = 0
        self._lua = (_FOLDER / "reserve.lua").read_text("utf-8")
        self.claim_with(ClaimOnReserve())
        #: whether :meth:`claim_with` was called
        self.is_claiming = False

    def claim_with(self, claim_on_reserve: ClaimOnReserve) -> None:
        """From now on, claim the call of each message that is reserved."""
        self.is_claiming = True
        self._script = Script.of(f"{claim_on_reserve.lua}\n{self._lua}")
        self._argument, self._terms = claim_on_reserve.argument, claim_on_reserve.terms

    def make(
        self,
        queues: Sequence[str],
        credit: int,
        extra: int = 0,
        *,
        claimed_only: bool = False,
    ) -> Reservation:
        """Return a reservation of up to ``credit`` messages and ``extra`` more.

        Its script must not run twice. With ``claimed_only``, only events are reserved, and messages whose
        calls are claimed with them.
        """
        self._count += 1
        keys = [IN_FLIGHT, IN_FLIGHT_INDEX]
        for queue in queues:
            keys += (queue, wake_up_key(queue))
        prefix = f"{self._tag}{self._count:09}:"  # tags sort in the order of their messages
        options = [credit, extra, int(claimed_only), prefix, self._argument]
        terms = [self._terms.get(queue, "") for queue in queues]
        return Reservation(ScriptCall(self._script, keys, [*options, *terms]), queues, monotonic())


class InFlight:
    """Renews and ends reservations; ``run`` runs a script."""

    def __init__(self, run: Callable[[ScriptCall[Any]], Any]) -> None:
        self._run = run
        self._give_back = Script.read(_FOLDER, "wrong_type", "give_back")
        self._overdue, self._renew, self._acknowledge = (
            Script.read(_FOLDER, name) for name in ("overdue", "renew", "acknowledge")
        )

    def give_back(self, tags: Sequence[str]) -> int:
        """Put reserved messages back at the front of their queues, the last tag first; return how many."""
        return int(self._run(self.giving_back(tags))) if tags else 0

    def giving_back(self, tags: Sequence[str]) -> ScriptCall[Any]:
        """Return the script call of :meth:`give_back`."""
        return ScriptCall(self._give_back, [IN_FLIGHT, IN_FLIGHT_INDEX], [WAKE_UP_SUFFIX, *tags])

    def acknowledging(self, tag: str, record: str = "") -> ScriptCall[int]:
        """Return the script call that ends the reservation of a message which is not needed any more.

        ``record`` is the key of its call's record if what that says has replaced the message. If Redis has
        lost it, the message stays in flight until its reservation is overdue; the answer is 0 then, else 1.
        """
        keys = [IN_FLIGHT, IN_FLIGHT_INDEX, *([record] if record else [])]
        return ScriptCall(self._acknowledge, keys, [tag])

    def overdue(self, seconds: float) -> list[str]:
        """Return the tags of reservations that were not renewed for ``seconds``, the latest first."""
        tags = self._run(ScriptCall(self._overdue, [IN_FLIGHT_INDEX], [seconds, BATCH]))
        return [tag.decode() for tag in tags]

    def renew(self, tags: Sequence[str]) -> None:
        """Renew reservations."""
        if tags:
            self._run(ScriptCall(self._renew, [IN_FLIGHT_INDEX], tags))


class LeftMessages:
    """Puts back the messages of dead workers: live ones renew their reservations within ``seconds``.

    Every method raises redis.exceptions.RedisError if Redis cannot be reached.
    """

    def __init__(self, redis: Redis, seconds: float) -> None:
        self._redis = redis
        self._in_flight = InFlight(lambda script_call: script_call.run(redis))
        self._seconds = seconds

    def put_back(self, held: Sequence[str] = ()) -> int:
        """Renew the reservations ``held`` here, and put back a batch of others' messages; return how many."""
        self._in_flight.renew(held)
        return self._in_flight.give_back(self._in_flight.overdue(self._seconds))

    def put_back_of(self, process_id: str) -> int:
        """Put back all messages that a process which has ended had reserved; return how many."""
        latest_first = cast("list[bytes]", self._redis.zrange(IN_FLIGHT_INDEX, 0, -1, desc=True))
        return self._in_flight.give_back(
            [tag.decode() for tag in latest_first if tag.startswith(process_id.encode())]
        )

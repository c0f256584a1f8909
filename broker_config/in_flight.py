"""The reservations in Redis: every message that has left its queue stands here until it is acknowledged.

A reservation belongs to whoever made it: its tag is made here, renewed while its worker lives and
compared by every acknowledgement (kombu's tag is made at publish and shared by all deliveries).
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from time import monotonic
from typing import Any

from broker_config.queues import BELL_SUFFIX, bell
from broker_config.scripts import Companion, Errand, Script

IN_FLIGHT = "agent.in-flight"
IN_FLIGHT_INDEX = "agent.in-flight.index"

#: how many messages one trip reserves or finds at most
BATCH = 64

#: how long a worker waits on wake-up keys before it looks at the queues anyway
SLEEP_SECONDS = 0.5

_FOLDER = files("broker_config.scripts")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be reserved: from which queues, and how many messages at most, beside extra ones."""

    errand: Errand
    queues: Sequence[str]
    credit: int
    #: ``time.monotonic()``
    sent_at: float


class Orders:
    """Writes down what one consumer wants reserved."""

    def __init__(self) -> None:
        self._tag = f"{uuid.uuid4().hex}:"
        self._count = 0
        self._lua = (_FOLDER / "reserve.lua").read_text("utf-8")
        self.accompany(Companion())
        #: whether anybody speaks for messages
        self.is_accompanied = False

    def accompany(self, companion: Companion) -> None:
        """Have every message accompanied from now on."""
        self.is_accompanied = True
        self._terms = Script.of(f"{companion.lua}\n{self._lua}"), companion.argument

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

        A choosy one wants nothing but messages that the companion speaks for.
        """
        self._count += 1
        keys = [IN_FLIGHT, IN_FLIGHT_INDEX]
        for queue in queues:
            keys += (queue, bell(queue))
        prefix = f"{self._tag}{self._count:09}:"  # tags in their order are messages in theirs
        choosy = "1" if is_choosy else ""
        script, argument = self._terms
        arguments = [credit, extra, choosy, prefix, argument, len(acknowledged), *acknowledged]
        return Order(Errand(script, keys, arguments), queues, credit, monotonic())


class InFlight:
    """What becomes of reservations that were made; ``run`` carries a script out."""

    def __init__(self, run: Callable[[Errand], Any]) -> None:
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
        return int(self._run(Errand(self._give_back, [IN_FLIGHT, IN_FLIGHT_INDEX], [BELL_SUFFIX, *tags])))

    def overdue(self, seconds: float) -> list[str]:
        """Return the tags of reservations that nobody has renewed for so long, the latest first."""
        tags = self._run(Errand(self._overdue, [IN_FLIGHT_INDEX], [seconds, BATCH]))
        return [tag.decode() for tag in tags]

    def renew(self, tags: Sequence[str]) -> None:
        """Renew reservations."""
        if tags:
            self._run(Errand(self._renew, [IN_FLIGHT_INDEX], tags))

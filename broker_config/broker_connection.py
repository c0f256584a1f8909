"""A worker's connection to its broker: how soon it is tried again after it was lost."""

from collections.abc import Callable
from typing import Any, Self

from celery.app.amqp import AMQP
from kombu import Connection

#: seconds before it is tried again: first, how much more each time, and at most (kombu's own: 2, 2 and 30,
#: which is longer than many an outage, and in which a call that was let in by a limit loses its turn)
PATIENCE = {"interval_start": 0.2, "interval_step": 0.4, "interval_max": 3.0}


class BrokerConnection(Connection):
    """Comes back soon after its broker does."""

    def ensure_connection(
        self, errback: Callable[[Exception, float], object] | None = None, *args: Any, **kwargs: Any
    ) -> Self:
        """Connect, if need be again and again (kombu/connection.py ``ensure_connection``).

        ``errback`` is called once for each reason, not for each attempt.

        Raises:
            kombu.exceptions.OperationalError: it was tried as often or as long as the caller allows.
        """
        told: set[str] = set()

        def tell(error: Exception, interval: float) -> None:
            if errback is not None and str(error) not in told:
                told.add(str(error))
                errback(error, interval)

        super().ensure_connection(tell, *args, **(PATIENCE | kwargs))
        return self


class Amqp(AMQP):
    """Celery's messaging, over such connections."""

    Connection = BrokerConnection
